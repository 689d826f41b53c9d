"""The worst lag of a node's firing between two heartbeats, including ticks that are due and have not fired yet."""

from __future__ import annotations

from datetime import datetime


class FiringLag:
    def __init__(self) -> None:
        self._unfired: datetime | None = None
        self._worst: float | None = None

    def note_due(self, at: datetime) -> None:
        """Note that ticks are being fired, the oldest of which was due at this time."""
        self._unfired = at if self._unfired is None else min(self._unfired, at)

    def note_fired(self, now: datetime) -> None:
        """Note that everything that was due has fired."""
        if self._unfired is not None:
            self._worst = max(self._worst or 0.0, (now - self._unfired).total_seconds())
            self._unfired = None

    def clear(self) -> None:
        """Forget what is due: the node no longer owns it."""
        self._unfired = None

    def since(self) -> datetime | None:
        """Return when the oldest tick was due that is being fired."""
        return self._unfired

    def take(self, now: datetime) -> float | None:
        """Return the worst lag since the last call. None if nothing has been due since the node was started."""
        if self._unfired is not None:
            self._worst = max(self._worst or 0.0, (now - self._unfired).total_seconds())
        worst = self._worst
        if worst is not None:
            self._worst = 0.0
        return worst
