"""What a failed request to the server means for a worker: try again, or never again like this."""

from __future__ import annotations

import random

from everbeat.client.errors import ServerProblem

_PASSING = frozenset({401, 403, 408, 425, 429})
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 0.1, 5.0


def is_rejection(error: BaseException) -> bool:
    """The server understood and will not take it, however often it is sent. Keys may be put right, so they are not among it."""
    return isinstance(error, ServerProblem) and 400 <= error.status < 500 and error.status not in _PASSING


class Backoff:
    """How long to wait before the next try: longer each time, with full jitter, but as long as the server asked for."""

    def __init__(self, longest_seconds: float = _LONGEST_DELAY_SECONDS) -> None:
        self._longest = longest_seconds
        self._next = _FIRST_DELAY_SECONDS

    def reset(self) -> None:
        self._next = _FIRST_DELAY_SECONDS

    def seconds(self, error: BaseException) -> float:
        asked = error.retry_after_seconds if isinstance(error, ServerProblem) else None
        delay = random.uniform(self._next / 4, self._next)
        self._next = min(self._next * 2, self._longest)
        return delay if asked is None else max(delay, min(asked, self._longest))
