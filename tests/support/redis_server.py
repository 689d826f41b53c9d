"""A private Redis (Debian package `redis-server`) that writes every command to its log before it replies."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.local_server import LocalServer, exchange, find_program


class RedisServer(LocalServer):
    name = "redis"

    @classmethod
    def find(cls) -> str:
        return find_program("redis-server", "run `make services` as root")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> Sequence[str]:
        options = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", "")
        return [self._program, *options, "--appendonly", "yes", "--appendfsync", "always"]

    def is_ready(self) -> bool:
        return exchange(self.port, b"PING\r\n").startswith(b"+PONG")
