"""A client of the public HTTP API that repeats a request on another node until it is answered, and logs every response."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import httpx

from tests.chaos.records import Log

_PAUSE_SECONDS = 0.2
_AGAIN = frozenset({408, 409, 429, 500, 502, 503, 504})


class NotAnswered(Exception):
    """No node has answered in time."""


class Api:
    def __init__(self, bases: Sequence[str], log: Log, *, first: int = 0, timeout_seconds: float = 3.0) -> None:
        self._bases = itertools.cycle([*bases[first % len(bases) :], *bases[: first % len(bases)]])
        self._base = next(self._bases)
        self._client = httpx.Client(trust_env=False, timeout=timeout_seconds)
        self._log = log

    def close(self) -> None:
        self._client.close()

    def next_node(self) -> None:
        self._base = next(self._bases)

    def once(self, method: str, path: str, **request: Any) -> httpx.Response | None:
        """Send a request to the present node. Returns None if there was no response."""
        try:
            response = self._client.request(method, f"{self._base}{path}", **request)
        except httpx.HTTPError as error:
            self._log.write("no_response", path=path, node=self._base, error=repr(error))
            return None
        retry_after = response.headers.get("Retry-After")
        detail = None if response.is_success else response.text[:500]
        self._log.write(
            "response", path=path, node=self._base, status=response.status_code, retry_after=retry_after, detail=detail
        )
        return response

    def until_answered(
        self, method: str, path: str, stopping: threading.Event, *, give_up_seconds: float = 120.0, **request: Any
    ) -> httpx.Response:
        """Repeat a request until a node answers it with something else than a passing error."""
        give_up_at = time.monotonic() + give_up_seconds
        while time.monotonic() < give_up_at:
            response = self.once(method, path, **request)
            if response is not None and response.status_code not in _AGAIN:
                return response
            self.next_node()
            if stopping.wait(_PAUSE_SECONDS):
                break
        raise NotAnswered(path)


def seconds(text: str | None) -> float | None:
    """Return an instant of the API as seconds of the epoch."""
    return None if text is None else datetime.fromisoformat(text).timestamp()
