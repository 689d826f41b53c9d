"""When something must have happened at the latest: the bound of an undisturbed cluster, extended by the faults around it.

Instants are by the database clock, because ticks are due by it. A fault is known by the time of this machine, so it is shifted
by the step that the clock of the database had at that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.chaos.catalog import DATABASE_CLOCK, FIRE, KINDS, NODE_KINDS
from tests.chaos.checker.evidence import Evidence, FaultDone

Interval = tuple[float, float]

# How late something may be while nothing is disturbed.
BASE_SECONDS = {"fire": 2.0, "start": 4.0, "deliver": 6.0}
# A pause of the whole machine delays everything for a moment longer than it lasts.
STALL_RECOVERY_SECONDS = 1.5


class DatabaseClock:
    """Converts the time of this machine to that of the database, whose clock faults have stepped."""

    def __init__(self, faults: Iterable[FaultDone]) -> None:
        self._steps = [(fault.started_at, fault.ended_at, fault.value) for fault in faults if fault.kind == DATABASE_CLOCK]

    def offsets(self, from_: float, to: float) -> list[float]:
        """Return the offsets in force at some time of the interval."""
        steps = [value for start, end, value in self._steps if start - 0.5 <= to and from_ <= end + 0.5]
        is_always_stepped = any(start <= from_ and to <= end for start, end, _ in self._steps)
        return steps if is_always_stepped else [0.0, *steps]

    def span(self, from_: float, to: float) -> Interval:
        """Return the earliest and the latest time that the database may have shown in the interval."""
        offsets = self.offsets(from_, to)
        return from_ + min(offsets), to + max(offsets)

    def latest_shown(self, at: float) -> float:
        """Return the latest time that the database has shown so far: what is due once stays due when its clock goes back."""
        return max([at, *(min(at, end) + value + 0.5 for start, end, value in self._steps if start - 0.5 <= at)])

    def machine_times(self, at: float) -> list[float]:
        """Return the times of this machine at which the database may have shown this time: one, unless its clock went back."""
        found = [at - value for start, end, value in self._steps if start <= at - value <= end]
        is_plain = not any(start < at < end for start, end, _ in self._steps)
        return [at, *found] if is_plain else found or [at]

    def was_stepped(self, from_: float, to: float) -> bool:
        return any(start - 1 <= to and from_ <= end + 1 for start, end, _ in self._steps)


class Deadlines:
    """The latest instants for one kind of event: `fire`, `start` or `deliver`."""

    def __init__(self, evidence: Evidence, what: str) -> None:
        self._base = BASE_SECONDS[what]
        clock = DatabaseClock(evidence.faults)
        delaying = [_excused(fault, evidence) for fault in evidence.faults if what in KINDS[fault.kind].delays]
        delaying += [(from_, to + STALL_RECOVERY_SECONDS) for from_, to in evidence.stalls]
        # A clock that is ahead makes more ticks late. One that is behind only delays those that are due meanwhile.
        spans = [(from_, max(to, clock.span(from_, to)[1])) for from_, to in delaying]
        self._shadows = [] if what == FIRE else list(_shadows(evidence.faults))
        self._spans = _merged(spans, self._base)
        rate = float(evidence.run["settings"]["catch_up_rate"])
        self._limited = _caught_up(self._spans, self._base, rate)

    def latest(self, at: float, *, rate_limited: bool = False) -> float:
        """Return the latest time for something due at this time. A schedule that catches up on all ticks does so at a rate."""
        latest = at
        for from_, to in self._limited if rate_limited else self._spans:
            if from_ <= at + self._base and at <= to:
                latest = max(latest, to)
        for from_, to, until in self._shadows:
            if from_ <= at <= to:
                latest = max(latest, until)
        return latest + self._base

    def is_undisturbed(self, at: float, *, rate_limited: bool = False) -> bool:
        """Whether only the bound of an undisturbed cluster applies."""
        return self.latest(at, rate_limited=rate_limited) == at + self._base


def _shadows(faults: Iterable[FaultDone]) -> Iterator[tuple[float, float, float]]:
    """Yield the times that the database showed while its clock was behind, and until when what was due then may wait."""
    for fault in faults:
        if fault.kind == DATABASE_CLOCK and fault.value < 0:
            until = fault.ended_at + KINDS[DATABASE_CLOCK].recovery_seconds
            yield fault.started_at + fault.value - 1.0, fault.ended_at + fault.value + 1.0, until


def _excused(fault: FaultDone, evidence: Evidence) -> Interval:
    """Return how long a fault may delay something, in the time of this machine."""
    kind = KINDS[fault.kind]
    until = fault.ended_at + kind.recovery_seconds
    if kind.is_takeover and not _is_accompanied(fault, evidence):
        until = min(until, fault.started_at + evidence.lease_seconds + 1.0)
    return fault.started_at, until


def _is_accompanied(fault: FaultDone, evidence: Evidence) -> bool:
    """Whether another fault may have disturbed the nodes that take over."""
    lease = evidence.lease_seconds
    return any(
        other is not fault
        and other.kind in NODE_KINDS
        and FIRE in KINDS[other.kind].delays
        and other.started_at <= fault.ended_at + lease
        and other.ended_at + KINDS[other.kind].recovery_seconds >= fault.started_at
        for other in evidence.faults
    )


def _merged(spans: Iterable[Interval], gap: float) -> list[Interval]:
    """Return the spans in order, those that overlap or almost touch as one."""
    found: list[Interval] = []
    for from_, to in sorted(spans):
        if found and from_ <= found[-1][1] + gap:
            found[-1] = (found[-1][0], max(found[-1][1], to))
        else:
            found.append((from_, to))
    return found


def _caught_up(spans: list[Interval], gap: float, rate: float) -> list[Interval]:
    """Extend each span by the time that it takes to catch up on its ticks while new ones come."""
    extended = [(from_, to + (to - from_) / (rate - 1.0)) for from_, to in spans]
    merged = _merged(extended, gap)
    return merged if len(merged) == len(spans) else _caught_up(_joined(spans, merged), gap, rate)


def _joined(spans: list[Interval], around: list[Interval]) -> list[Interval]:
    """Join the spans that lie in one of the surrounding ones."""
    found = []
    for from_, to in around:
        inside = [span for span in spans if from_ <= span[0] <= to]
        found.append((from_, max(span[1] for span in inside)))
    return found
