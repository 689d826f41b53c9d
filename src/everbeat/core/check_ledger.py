"""The ledger of a check as readers see it: the recorded entries, and what follows from the rule and the time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from everbeat.core.check_states import Expectation, Instants, missing_instants
from everbeat.core.checks import Check, CheckOutcome, CheckState, CheckTick, DownReason

ShownOutcome = Literal["pinged", "failed", "missed", "skipped", "late", "upcoming"]
ShownReason = Literal["missed", "failed", "unfinished", "paused"]
_MICROSECOND = timedelta(microseconds=1)


class CheckLedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One expected ping, or several up to `until`. `pinged_at`: when the ping arrived that answered it."""

    scheduled_for: datetime
    outcome: ShownOutcome
    reason: ShownReason | None = None
    pinged_at: datetime | None = None
    ping_number: int | None = None
    until: datetime | None = None
    count: int = 1

    @property
    def lag_ms(self) -> float | None:
        if self.pinged_at is None:
            return None
        return round(max(0.0, (self.pinged_at - self.scheduled_for).total_seconds()) * 1000, 3)


def recorded_entry(tick: CheckTick) -> CheckLedgerEntry:
    is_answered = tick.outcome in (CheckOutcome.PINGED, CheckOutcome.FAILED)
    reason: ShownReason | None = None if tick.reason is None else tick.reason.value
    if tick.outcome is CheckOutcome.SKIPPED:
        reason = "paused"
    elif tick.outcome is CheckOutcome.FAILED:
        reason = "failed"
    return CheckLedgerEntry(
        scheduled_for=tick.scheduled_for,
        outcome=tick.outcome.value,
        reason=reason,
        pinged_at=tick.recorded_at if is_answered else None,
        ping_number=tick.ping_number,
        until=tick.until,
        count=tick.count,
    )


def computed_entries(
    check: Check, expectation: Expectation, now: datetime, *, start: datetime, end: datetime
) -> Iterator[CheckLedgerEntry]:
    """Yield what the ledger does not have yet, in [start, end): pings that are missed, late or upcoming."""
    position = check.position
    if position.expected_at is None:
        return
    if position.state is CheckState.PAUSED:
        if clipped := clip(expectation.instants(position.expected_at, now), expectation, start, end):
            yield _entry(clipped, "skipped", "paused")
        return
    missing = missing_instants(position, expectation, now)
    if missing is not None and (clipped := clip(missing, expectation, start, end)):
        yield _entry(clipped, "missed", DownReason.MISSED.value)
    following = position.expected_at if missing is None else expectation.next(missing.last)
    if following is not None and following < start and expectation.period is None:
        following = expectation.next(start - _MICROSECOND)
    while following is not None and following < end:
        if following >= start:
            yield _entry(Instants(following, following, 1), "late" if following <= now else "upcoming", None)
        following = expectation.next(following)
        if expectation.period is not None and following is not None and following > now:
            return  # when the next one is expected depends on the next ping


def clip(instants: Instants | None, expectation: Expectation, start: datetime, end: datetime) -> Instants | None:
    """Return those of consecutive expected pings that are in [start, end)."""
    if instants is None or instants.first >= end or instants.last < start:
        return None
    first = instants.first
    if first < start:
        period = expectation.period
        found = expectation.next(start - _MICROSECOND) if period is None else first + -(-(start - first) // period) * period
        if found is None:
            return None
        first = found
    return expectation.instants(first, min(instants.last, end - _MICROSECOND))


def merged(recorded: Sequence[CheckTick], computed: Iterator[CheckLedgerEntry], limit: int) -> list[CheckLedgerEntry]:
    """Return the entries in order. What is computed comes after what is recorded."""
    entries = [recorded_entry(tick) for tick in recorded[:limit]]
    for entry in computed:
        if len(entries) >= limit:
            break
        entries.append(entry)
    return entries


def _entry(instants: Instants, outcome: ShownOutcome, reason: ShownReason | None) -> CheckLedgerEntry:
    return CheckLedgerEntry(
        scheduled_for=instants.first,
        outcome=outcome,
        reason=reason,
        until=instants.last if instants.number > 1 else None,
        count=instants.number,
    )
