"""When to try again what another transaction has locked.

A batch skips rows that are locked, so that they do not delay the others. They are tried again alone, after a short time that
grows up to `MAX_DELAY_SECONDS`. The holder of the lock usually commits within milliseconds; a frozen node holds it until the
database ends its transaction. Times are arguments; this module reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

_FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 0.01, 0.25

# The pauses between the tries of a request that changes locked rows: about a second altogether. The client is then asked to
# try again, so that requests do not pile up behind a lock.
REQUEST_DELAYS_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.15, *[MAX_DELAY_SECONDS] * 3)


def lock_delay(tries: int) -> float:
    """The pause after this number of tries."""
    return min(_FIRST_DELAY_SECONDS * 2.0 ** min(tries, 16), MAX_DELAY_SECONDS)


class HasId(Protocol):
    @property
    def id(self) -> UUID: ...


T = TypeVar("T", bound=HasId)


class _Waiting(NamedTuple, Generic[T]):
    entry: T
    since: float
    retry_at: float
    tries: int


class LockRetries(Generic[T]):
    """Entries whose rows are locked, each with the time of its next try. Times are those of a monotonic clock."""

    def __init__(self) -> None:
        self._waiting: dict[UUID, _Waiting[T]] = {}
        # Entries that are being tried: they keep their history, in case they are still locked.
        self._tried: dict[UUID, _Waiting[T]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, id_: UUID) -> bool:
        return id_ in self._waiting

    def add(self, entry: T, now: float) -> None:
        """Add an entry that was found locked."""
        before = self._tried.pop(entry.id, None)
        tries, since = (0, now) if before is None else (before.tries + 1, before.since)
        self._waiting[entry.id] = _Waiting(entry, since, now + lock_delay(tries), tries)

    def replace(self, entry: T) -> None:
        """Replace an entry that waits, because it has changed."""
        self._waiting[entry.id] = self._waiting[entry.id]._replace(entry=entry)

    def take(self, now: float | None) -> list[T]:
        """Remove and return the entries that are to be tried at this time; all entries if it is None."""
        due = {id_: one for id_, one in self._waiting.items() if now is None or one.retry_at <= now}
        for id_ in due:
            del self._waiting[id_]
        self._tried = due
        return [one.entry for one in due.values()]

    def discard(self, ids: Iterable[UUID]) -> None:
        for id_ in ids:
            self._waiting.pop(id_, None)

    def clear(self) -> None:
        self._waiting.clear()
        self._tried.clear()

    def next_at(self) -> float | None:
        return min((one.retry_at for one in self._waiting.values()), default=None)

    def longest(self, now: float) -> tuple[float, UUID] | None:
        """How long the entry that has been locked for the longest time has been so, and its id."""
        waiting = [(now - one.since, id_) for id_, one in self._waiting.items()]
        return max(waiting, default=None)
