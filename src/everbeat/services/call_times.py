"""The durations of the database calls of this node in the last minutes, by verb."""

from __future__ import annotations

import time

from everbeat.clock import Monotonic
from everbeat.core.capacity_advice import SlowCall

_WINDOW_SECONDS = 300.0


class CallTimes:
    """Keeps sums for the current and the previous window, so that a verb that was slow once is forgotten."""

    def __init__(self, *, monotonic: Monotonic = time.monotonic) -> None:
        self._monotonic = monotonic
        self._current: dict[str, SlowCall] = {}
        self._previous: dict[str, SlowCall] = {}
        self._ends_at = monotonic() + _WINDOW_SECONDS

    def observe(self, verb: str, seconds: float) -> None:
        now = self._monotonic()
        if now >= self._ends_at:
            self._previous = self._current if now < self._ends_at + _WINDOW_SECONDS else {}
            self._current = {}
            self._ends_at = now + _WINDOW_SECONDS
        self._current[verb] = _plus(self._current.get(verb), verb, 1, seconds, seconds)

    def slowest(self, limit: int = 5) -> list[SlowCall]:
        """Return the verbs with the highest mean."""
        calls = dict(self._previous)
        for verb, call in self._current.items():
            calls[verb] = _plus(calls.get(verb), verb, call.calls, call.mean_seconds * call.calls, call.max_seconds)
        return sorted(calls.values(), key=lambda call: -call.mean_seconds)[:limit]


def _plus(call: SlowCall | None, verb: str, calls: int, seconds: float, longest: float) -> SlowCall:
    if call is None:
        return SlowCall(verb, calls, seconds / calls, longest)
    total = call.calls + calls
    return SlowCall(verb, total, (call.mean_seconds * call.calls + seconds) / total, max(call.max_seconds, longest))
