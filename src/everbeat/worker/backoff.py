"""Retries of a worker's requests: which failures are permanent, and how long to wait before the next try."""

from __future__ import annotations

import random

from everbeat.client.errors import ServerProblem

_PASSING = frozenset({401, 403, 408, 425, 429})
_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS = 0.1, 5.0


def is_rejection(error: BaseException) -> bool:
    """The server rejects this request, and would reject it again. A wrong key does not count: it can be corrected meanwhile."""
    return isinstance(error, ServerProblem) and 400 <= error.status < 500 and error.status not in _PASSING


class Backoff:
    """The delay before the next try: it doubles each time, with jitter, and is at least the Retry-After of the server."""

    def __init__(self, max_delay_seconds: float = _MAX_DELAY_SECONDS) -> None:
        self._max_delay_seconds = max_delay_seconds
        self._next = _FIRST_DELAY_SECONDS

    def reset(self) -> None:
        self._next = _FIRST_DELAY_SECONDS

    def seconds(self, error: BaseException) -> float:
        asked = error.retry_after_seconds if isinstance(error, ServerProblem) else None
        delay = random.uniform(self._next / 4, self._next)
        self._next = min(self._next * 2, self._max_delay_seconds)
        return delay if asked is None else max(delay, min(asked, self._max_delay_seconds))
