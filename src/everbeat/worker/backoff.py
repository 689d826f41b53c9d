"""Retries of a worker's requests: which errors are permanent, and how long to wait before the next try."""

from __future__ import annotations

import random

from everbeat.client.errors import ServerProblem

_TEMPORARY_STATUSES = frozenset({401, 403, 408, 425, 429})
_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS = 0.1, 5.0


def is_rejection(error: BaseException) -> bool:
    """Whether the server would reject the request again. False for an invalid key, because it may be corrected."""
    return isinstance(error, ServerProblem) and 400 <= error.status < 500 and error.status not in _TEMPORARY_STATUSES


class Backoff:
    """The delay before the next try. It doubles each time, with jitter, and is at least the server's Retry-After."""

    def __init__(self, max_delay_seconds: float = _MAX_DELAY_SECONDS) -> None:
        self._max_delay_seconds = max_delay_seconds
        self._next = _FIRST_DELAY_SECONDS

    def reset(self) -> None:
        self._next = _FIRST_DELAY_SECONDS

    def seconds(self, error: BaseException) -> float:
        retry_after = error.retry_after_seconds if isinstance(error, ServerProblem) else None
        delay = random.uniform(self._next / 4, self._next)
        self._next = min(self._next * 2, self._max_delay_seconds)
        return delay if retry_after is None else max(delay, min(retry_after, self._max_delay_seconds))
