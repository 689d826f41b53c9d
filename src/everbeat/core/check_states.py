"""What pings and the passing of time do to a check. Pure: `steps` are computed from a check and an instant.

Protocol. A check expects pings. For cron, these are the ticks after the last recorded one; for an interval, the next one is an
interval after the last ping. An expected ping is missed when its grace has passed. A run that has started counts as arrived,
and has its own deadline. Every expected ping gets one ledger entry: `pinged` or `failed` by the ping that ends the wait, or
`missed`. Nothing is written while a check is down: the ping that ends this records the missed pings as one range, and until
then readers compute it. Every function first does what time alone has done, so the result does not depend on when, or whether,
the evaluator has run.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from everbeat.core.checks import (
    MAX_OPEN_RUNS,
    Check,
    CheckOutcome,
    CheckPosition,
    CheckSpec,
    CheckState,
    CheckTick,
    CheckTransition,
    DownReason,
    OpenRun,
    Ping,
    PingKind,
)
from everbeat.core.timeline import Timeline

_MICROSECOND = timedelta(microseconds=1)
# A ping of a job whose clock is ahead arrives before the tick of its cron expression.
_EARLY_FRACTION = 0.05
_MAX_EARLY = timedelta(seconds=30)
_WAITING = (CheckState.NEW, CheckState.UP)

_replace = msgspec.structs.replace


class Instants(NamedTuple):
    """Consecutive expected pings."""

    first: datetime
    last: datetime
    number: int


class Expectation:
    """When pings of a check are expected. `timeline` is that of a cron expression; None for an interval."""

    def __init__(self, spec: CheckSpec, timeline: Timeline | None) -> None:
        self.grace = spec.grace
        self.run_limit = spec.run_limit
        self.period = spec.period
        self._timeline = timeline

    def next(self, after: datetime) -> datetime | None:
        if self.period is not None:
            return after + self.period
        assert self._timeline is not None
        return self._timeline.next_tick(after)

    def instants(self, first: datetime | None, until: datetime) -> Instants | None:
        """Return the expected pings from `first` to `until`, both inclusive."""
        if first is None or first > until:
            return None
        if self.period is not None:
            number = (until - first) // self.period + 1
            return Instants(first, first + (number - 1) * self.period, number)
        assert self._timeline is not None
        last = self._timeline.last_until(until)
        if last is None or last < first:
            return None
        return Instants(first, last, self._timeline.count_between(first - _MICROSECOND, until))

    def is_nearly(self, at: datetime, expected_at: datetime) -> bool:
        """Whether a ping that arrives slightly too early is the expected one. Only cron has an instant to be early for."""
        if self.period is not None or self._timeline is None:
            return False
        before = self._timeline.last_until(expected_at - _MICROSECOND)
        gap = _MAX_EARLY if before is None else (expected_at - before) * _EARLY_FRACTION
        return expected_at - at <= min(gap, _MAX_EARLY)

    def latest(self, at: datetime) -> datetime | None:
        """Return the last tick of cron at or before an instant."""
        return None if self._timeline is None else self._timeline.last_until(at)


class CheckStep(NamedTuple):
    """A new position, and what is recorded with it."""

    position: CheckPosition
    ticks: tuple[CheckTick, ...] = ()
    transitions: tuple[CheckTransition, ...] = ()

    def then(self, other: CheckStep) -> CheckStep:
        return CheckStep(other.position, self.ticks + other.ticks, self.transitions + other.transitions)


def first_position(now: datetime) -> CheckPosition:
    """Return the position of a new check, which waits for its first ping without a deadline."""
    return CheckPosition(state=CheckState.NEW, state_since=now, cursor_at=now)


def due_step(position: CheckPosition, expectation: Expectation, now: datetime) -> CheckStep:
    """Apply the passing of time: a check whose deadline has passed goes down."""
    if position.state not in _WAITING or position.due_at is None or position.due_at > now:
        return CheckStep(position)
    overdue = [run for run in position.runs if run.started_at + expectation.run_limit <= now]
    reason = DownReason.UNFINISHED if overdue else DownReason.MISSED
    runs = tuple(run for run in position.runs if run not in overdue)
    until = now if overdue else now - expectation.grace
    tick = _tick(expectation.instants(position.expected_at, until), CheckOutcome.MISSED, now, reason=reason)
    scheduled_for = position.expected_at if tick is not None else None
    transition = CheckTransition(
        at=now, from_state=position.state, to_state=CheckState.DOWN, reason=reason, scheduled_for=scheduled_for
    )
    down = _replace(position, state=CheckState.DOWN, state_since=now, reason=reason, due_at=None, runs=runs)
    return CheckStep(_after(down, expectation, tick), () if tick is None else (tick,), (transition,))


def missing_instants(position: CheckPosition, expectation: Expectation, now: datetime) -> Instants | None:
    """Return the missed pings of a check that the ledger does not have yet."""
    if position.state is CheckState.PAUSED:
        return None
    arrived_at = min((run.started_at for run in position.runs), default=now)
    return expectation.instants(position.expected_at, arrived_at - expectation.grace)


def ping_step(position: CheckPosition, expectation: Expectation, ping: Ping) -> tuple[CheckStep, Ping]:
    """Apply a ping. Returns the step, and the ping with its number and the duration of its run."""
    step = due_step(position, expectation, ping.at)
    position = _replace(step.position, ping_count=step.position.ping_count + 1)
    ping = _replace(ping, number=position.ping_count)
    if ping.kind is PingKind.LOG:
        return step.then(CheckStep(position)), ping
    position = _replace(position, last_ping_at=ping.at)
    if ping.kind is PingKind.START:
        return step.then(CheckStep(_with_due(_started(position, ping), expectation))), ping
    run = next((run for run in position.runs if run.rid == ping.rid), None)
    if run is not None:
        seconds = max(0.0, (ping.at - run.started_at).total_seconds())
        ping = _replace(ping, duration_seconds=seconds)
        runs = tuple(one for one in position.runs if one is not run)
        position = _replace(position, runs=runs, last_duration_seconds=seconds)
    if position.state is CheckState.PAUSED:
        return step.then(CheckStep(position)), ping
    return step.then(_ended(position, expectation, ping, ping.at if run is None else run.started_at)), ping


def _started(position: CheckPosition, ping: Ping) -> CheckPosition:
    """Add a run. A second start without an end in between keeps the first, so that a job that restarts in a loop is noticed."""
    if any(run.rid == ping.rid for run in position.runs) or len(position.runs) >= MAX_OPEN_RUNS:
        return position
    return _replace(position, runs=(*position.runs, OpenRun(ping.at, ping.rid)))


def _ended(position: CheckPosition, expectation: Expectation, ping: Ping, arrived_at: datetime) -> CheckStep:
    """Record what a success or a failure answers, and when the next ping is expected."""
    is_success = ping.kind is PingKind.SUCCESS
    outcome = CheckOutcome.PINGED if is_success else CheckOutcome.FAILED
    missed = _tick(
        expectation.instants(position.expected_at, arrived_at - expectation.grace),
        CheckOutcome.MISSED,
        ping.at,
        reason=DownReason.MISSED,
    )
    position = _after(position, expectation, missed)
    answered = _tick(_answered(position, expectation, ping.at), outcome, ping.at, ping=ping)
    if answered is not None:
        position = _replace(position, cursor_at=answered.until or answered.scheduled_for)
    latest = ping.at if position.cursor_at is None else max(ping.at, position.cursor_at)
    state, reason = (CheckState.UP, None) if is_success else (CheckState.DOWN, position.reason or DownReason.FAILED)
    transitions: tuple[CheckTransition, ...] = ()
    if state is not position.state:
        scheduled_for = None if answered is None else answered.scheduled_for
        transitions = (
            CheckTransition(
                at=ping.at,
                from_state=position.state,
                to_state=state,
                reason=reason,
                scheduled_for=scheduled_for,
                ping_number=ping.number,
            ),
        )
        position = _replace(position, state=state, state_since=ping.at, reason=reason)
    position = _with_due(_replace(position, expected_at=expectation.next(latest)), expectation)
    return CheckStep(position, tuple(tick for tick in (missed, answered) if tick is not None), transitions)


def _answered(position: CheckPosition, expectation: Expectation, at: datetime) -> Instants | None:
    """Return the expected pings that a ping answers: those that have come, or one that is near."""
    expected_at = position.expected_at
    if found := expectation.instants(expected_at, at):
        return found
    if expectation.period is not None:
        # A ping that comes early moves the next expected one. Pings in quick succession get one entry in half an interval.
        is_extra = (
            expected_at is not None and position.cursor_at is not None and at - position.cursor_at < expectation.period / 2
        )
        return None if is_extra else Instants(at, at, 1)
    if expected_at is None:  # the first ping: it answers the tick just before it
        latest = expectation.latest(at)
        is_recent = latest is not None and at - latest <= expectation.grace and latest > (position.cursor_at or latest)
        return Instants(latest, latest, 1) if latest is not None and is_recent else None
    return Instants(expected_at, expected_at, 1) if expectation.is_nearly(at, expected_at) else None


def pause_step(position: CheckPosition, expectation: Expectation, now: datetime) -> CheckStep:
    """Pause a check. Pings are recorded while it is paused, and change nothing."""
    step = due_step(position, expectation, now)
    step = step.then(_closed(step.position, expectation, now))
    return step.then(_to(step.position, CheckState.PAUSED, now))


def resume_step(position: CheckPosition, expectation: Expectation, now: datetime) -> CheckStep:
    """Resume a paused check. If it has had a ping before, the next one is expected from now on."""
    skipped = _tick(expectation.instants(position.expected_at, now), CheckOutcome.SKIPPED, now)
    position = _replace(position, expected_at=None if position.expected_at is None else expectation.next(now), cursor_at=now)
    step = _to(position, CheckState.NEW, now)
    return CheckStep(_with_due(step.position, expectation), () if skipped is None else (skipped,), step.transitions)


def edit_step(
    position: CheckPosition, before: Expectation, after: Expectation, now: datetime, *, has_new_rule: bool
) -> CheckStep:
    """Apply a change of the definition. A new rule counts from now on; the past keeps what the old rule required."""
    step = due_step(position, before, now)
    is_expecting = step.position.expected_at is not None or step.position.state in (CheckState.UP, CheckState.DOWN)
    if has_new_rule and is_expecting:
        if step.position.state is CheckState.PAUSED:
            outcome, until = CheckOutcome.SKIPPED, now
        else:
            outcome, until = CheckOutcome.MISSED, now - before.grace
        tick = _tick(before.instants(step.position.expected_at, until), outcome, now, reason=_reason_of(outcome))
        position = _replace(step.position, cursor_at=now, expected_at=after.next(now))
        step = step.then(CheckStep(position, () if tick is None else (tick,)))
    return step.then(CheckStep(_with_due(step.position, after)))


def _closed(position: CheckPosition, expectation: Expectation, now: datetime) -> CheckStep:
    """Record the missed pings of a check that is down, before it is paused."""
    if position.state is not CheckState.DOWN:
        return CheckStep(position)
    instants = expectation.instants(position.expected_at, now - expectation.grace)
    tick = _tick(instants, CheckOutcome.MISSED, now, reason=DownReason.MISSED)
    return CheckStep(_after(position, expectation, tick), () if tick is None else (tick,))


def _to(position: CheckPosition, state: CheckState, now: datetime) -> CheckStep:
    transition = CheckTransition(at=now, from_state=position.state, to_state=state)
    changed = _replace(position, state=state, state_since=now, reason=None, runs=(), due_at=None)
    return CheckStep(changed, (), (transition,))


def _reason_of(outcome: CheckOutcome) -> DownReason | None:
    return DownReason.MISSED if outcome is CheckOutcome.MISSED else None


def _tick(
    instants: Instants | None,
    outcome: CheckOutcome,
    now: datetime,
    *,
    reason: DownReason | None = None,
    ping: Ping | None = None,
) -> CheckTick | None:
    if instants is None:
        return None
    return CheckTick(
        scheduled_for=instants.first,
        outcome=outcome,
        reason=reason,
        recorded_at=now,
        ping_number=None if ping is None else ping.number,
        until=instants.last if instants.number > 1 else None,
        count=instants.number,
    )


def _after(position: CheckPosition, expectation: Expectation, tick: CheckTick | None) -> CheckPosition:
    """Move behind a ledger entry."""
    if tick is None:
        return position
    last = tick.until or tick.scheduled_for
    return _replace(position, cursor_at=last, expected_at=expectation.next(last))


def _with_due(position: CheckPosition, expectation: Expectation) -> CheckPosition:
    """Set when the check goes down by itself. A run in progress has arrived, and only its own deadline counts."""
    due_at = None
    if position.state in _WAITING:
        if position.runs:
            due_at = min(run.started_at for run in position.runs) + expectation.run_limit
        elif position.expected_at is not None:
            due_at = position.expected_at + expectation.grace
    return _replace(position, due_at=due_at)


def with_step(check: Check, step: CheckStep) -> Check:
    """Return the check after a step. Each transition has a version of its own, which numbers it."""
    return _replace(check, position=step.position, version=check.version + max(1, len(step.transitions)))
