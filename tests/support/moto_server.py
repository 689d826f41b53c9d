"""An emulator of SQS (moto) in a process of its own. It keeps messages in memory: stopping it loses them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence

from tests.support.local_server import LocalServer, ServiceMissing, exchange

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


class MotoServer(LocalServer):
    name = "moto"

    @classmethod
    def find(cls) -> str:
        if importlib.util.find_spec("moto") is None:
            raise ServiceMissing("moto is not installed: run pip install -e '.[dev]'")
        return sys.executable

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        return [self._program, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def environment(self) -> Mapping[str, str]:
        return CREDENTIALS

    def is_ready(self) -> bool:
        return exchange(self.port, b"GET /moto-api/data.json HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.")
