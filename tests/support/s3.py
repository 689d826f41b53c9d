"""An S3-compatible server in this process, on a free port."""

from __future__ import annotations

import logging
import secrets
import urllib.request
from types import TracebackType
from typing import Self

from moto.server import ThreadedMotoServer

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


class S3Server:
    """An S3 server in memory. Buckets are created on demand and disappear with the server."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs one line for each request otherwise
        self._server = ThreadedMotoServer("127.0.0.1", 0)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._server.stop()

    @property
    def endpoint(self) -> str:
        host, port = self._server.get_host_and_port()
        return f"http://{host}:{port}"

    def make_bucket(self) -> str:
        """Create a bucket and return a URL in it."""
        name = f"everbeat-{secrets.token_hex(6)}"
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=10):
            return f"s3://{name}/some/prefix"
