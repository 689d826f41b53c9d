"""A private RabbitMQ (Debian package `rabbitmq-server`), with a node name, a cookie and an epmd of its own."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.local_server import LocalServer, ServiceMissing, exchange, find_program, kill_group
from tests.support.processes import free_port

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
# One scheduler thread that does not spin, because many tests run on few cores.
SCHEDULING = "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"


class RabbitMq(LocalServer):
    name = "rabbitmq"

    def __init__(self) -> None:
        super().__init__()
        self._epmd_port, self._distribution_port = free_port(), free_port()
        self._epmd: subprocess.Popen[bytes] | None = None

    @classmethod
    def find(cls) -> str:
        # Debian's wrapper in /usr/sbin insists on the user rabbitmq and on /var/lib/rabbitmq; the server's own script does not.
        scripts = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
        if not scripts:
            raise ServiceMissing("rabbitmq-server is not installed: run `make services` as root")
        return str(scripts[-1])

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def prepare(self) -> None:
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\nlog.console = true\nlog.console.level = warning\nlog.file = false\n"
        )
        (self.folder / "enabled_plugins").write_text("[].\n")

    def environment(self) -> Mapping[str, str]:
        folder = str(self.folder)
        return {
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": "everbeat@localhost",
            "RABBITMQ_MNESIA_BASE": folder,
            "RABBITMQ_LOG_BASE": folder,
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{SCHEDULING} -kernel inet_dist_use_interface {{127,0,0,1}}",
        }

    def command(self) -> Sequence[str]:
        return [self._program]

    def start(self) -> None:
        # Otherwise the server starts an epmd that outlives it.
        if self._epmd is None:
            self._epmd = self.spawn([find_epmd(), "-port", str(self._epmd_port), "-address", "127.0.0.1"])
        super().start()

    def is_ready(self) -> bool:
        # A server that accepts the protocol header replies with the method connection.start on channel 0.
        return exchange(self.port, PROTOCOL_HEADER)[:3] == b"\x01\x00\x00"

    def remove(self) -> None:
        self.kill9()
        epmd, self._epmd = self._epmd, None
        if epmd is not None:
            kill_group(epmd)
        super().remove()


@functools.cache
def find_epmd() -> str:
    # Not from PATH alone: a copy that belongs to another Erlang would not know this one's environment.
    beside = [str(path) for path in Path("/usr/lib/erlang").glob("erts-*/bin/epmd")]
    return beside[0] if beside else shutil.which("epmd") or find_program("epmd", "run `make services` as root")
