"""A private PgBouncer in transaction mode in front of a test PostgreSQL server (Debian package `pgbouncer`)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from typing import Self
from urllib.parse import urlsplit

from tests.support.postgres import clean_environment, identity, unprivileged_account
from tests.support.processes import free_port, make_folder, wait_until, watchdog

_SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))


class PgBouncerMissing(Exception):
    """PgBouncer is not installed on this machine."""


def find_pgbouncer() -> str:
    found = shutil.which("pgbouncer", path=_SEARCH_PATH)
    if found is None:
        raise PgBouncerMissing("pgbouncer is not installed; run `make tools` as root")
    return found


class PgBouncer:
    """A context manager that starts PgBouncer on a free loopback port and stops it.

    `pool_size` is small on purpose, so that clients share server connections.
    """

    def __init__(self, server_url: str, *, pool_size: int = 4) -> None:
        self.port = free_port()
        self._program = find_pgbouncer()
        parts = urlsplit(server_url)
        self._user = parts.username or "postgres"
        self._target = f"host={parts.hostname} port={parts.port} user={self._user}"
        self._pool_size = pool_size

    def url(self, database: str) -> str:
        return f"postgresql://{self._user}@127.0.0.1:{self.port}/{database}"

    def __enter__(self) -> Self:
        self._folder = make_folder("everbeat-pgbouncer-")
        (self._folder / "pgbouncer.ini").write_text(self._configuration())
        (self._folder / "users.txt").write_text(f'"{self._user}" ""\n')
        if (account := unprivileged_account()) is not None:  # PgBouncer refuses to run as root
            for path in (self._folder, *self._folder.iterdir()):
                os.chown(path, account.pw_uid, account.pw_gid)
        self._start()
        return self

    def restart(self) -> None:
        """Kill it, so that all connections are reset, and start it on the same port."""
        self._stop()
        self._start()

    def _start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, str(self._folder / "pgbouncer.ini")],
                env=clean_environment(),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **identity(),
            )
        watchdog().kill_later(self._process.pid, signal.SIGKILL)
        wait_until(self._accepts_connections, 20, lambda: f"PgBouncer ready\n{self.logs()}")

    def _stop(self) -> None:
        self._process.kill()
        self._process.wait()
        watchdog().forget(self._process.pid)

    def __exit__(self, *_: object) -> None:
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def logs(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def _configuration(self) -> str:
        return "\n".join(
            [
                "[databases]",
                f"* = {self._target}",
                "[pgbouncer]",
                "listen_addr = 127.0.0.1",
                f"listen_port = {self.port}",
                "unix_socket_dir =",
                "auth_type = trust",
                f"auth_file = {self._folder / 'users.txt'}",
                "pool_mode = transaction",
                f"default_pool_size = {self._pool_size}",
                "max_client_conn = 200",
                "",
            ]
        )

    def _accepts_connections(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"PgBouncer exited during startup:\n{self.logs()}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False
