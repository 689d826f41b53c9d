"""How the kinds of alert rules judge what was found. Pure: the facts and the time are arguments (services/alert_judge.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from statistics import median
from typing import NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from everbeat.core.alert_facts import ScheduleRun
from everbeat.core.alerts import WhenDeadline, WhenSkipped, WhenSlow, WhenSuccessRate
from everbeat.core.incidents import Subject
from everbeat.core.quiet_times import parse_clock
from everbeat.core.schedules import Schedule
from everbeat.core.tasks import TaskState
from everbeat.core.ticks import Outcome, SkipReason, Tick
from everbeat.core.timeline import Timeline
from everbeat.core.zones import load_zone

USUAL_RUNS = 20
MIN_USUAL_RUNS = 5

_DAY = timedelta(days=1)
_MICROSECOND = timedelta(microseconds=1)
_BAD_ENDS = (TaskState.DEAD, TaskState.FAILED)


# Subjects


def schedule_subject(id_: UUID, name: str, task_id: UUID | None = None) -> Subject:
    return Subject(f"schedule:{id_}", name, id_, task_id)


def type_subject(queue: str, type_: str, task_id: UUID | None = None) -> Subject:
    """Return the subject of tasks without a schedule."""
    return Subject(f"type:{queue}/{type_}", f"{type_} in queue {queue}", None, task_id)


def queue_subject(queue: str) -> Subject:
    return Subject(f"queue:{queue}", f"queue {queue}")


RULE_SUBJECT = Subject("rule", "all matching tasks")


# Runs


def has_completed_since(runs: Iterable[ScheduleRun], since: datetime) -> bool:
    """Whether a run was completed after that time."""
    return any(run.state is TaskState.COMPLETED and run.finished_at > since for run in runs)


def usual_seconds(runs: Sequence[ScheduleRun], *, without: UUID | None = None) -> float | None:
    """Return the median duration of the newest completed runs; None if there are too few to say what is usual."""
    durations = [run.seconds for run in runs if run.state is TaskState.COMPLETED and run.id != without]
    known = [seconds for seconds in durations if seconds is not None][:USUAL_RUNS]
    return median(known) if len(known) >= MIN_USUAL_RUNS else None


def slow_limit(when: WhenSlow, usual: float | None) -> float | None:
    """Return after how many seconds a run is slow; None if that cannot be said."""
    limits = [] if when.seconds is None else [when.seconds]
    if when.times_usual is not None and usual is not None:
        limits.append(max(1.0, when.times_usual * usual))
    return min(limits, default=None)


class SuccessRate(NamedTuple):
    completed: int
    runs: int

    @property
    def fraction(self) -> float:
        return self.completed / self.runs if self.runs else 1.0


def success_rate(outcomes: Mapping[TaskState, int]) -> SuccessRate:
    """Return how many of the finished tasks were completed. Cancelled ones are not counted."""
    completed = outcomes.get(TaskState.COMPLETED, 0)
    return SuccessRate(completed, completed + sum(outcomes.get(state, 0) for state in _BAD_ENDS))


def is_rate_low(when: WhenSuccessRate, rate: SuccessRate) -> bool:
    return rate.runs >= when.min_runs and rate.fraction < when.below


def is_rate_recovered(when: WhenSuccessRate, rate: SuccessRate) -> bool:
    """Whether an incident ends: the rate is high enough, or nothing has run in the window."""
    return rate.fraction >= when.below


# Ticks


class SkipStreak(NamedTuple):
    """The skipped ticks since the last one that fired. `last_at`: the newest of them. `has_fired`: a tick fired after them."""

    count: int  # type: ignore[assignment]  # it hides tuple.count, which is not used
    last_at: datetime | None
    has_fired: bool


def skip_streak(when: WhenSkipped, ticks: Sequence[Tick]) -> SkipStreak:
    """Count the newest ticks that were skipped for a reason of the rule. Those skipped for other reasons are passed over.

    `ticks`: the newest ledger rows of a schedule, oldest first.
    """
    count, last_at = 0, None
    reasons: frozenset[SkipReason] = frozenset(when.reasons)
    for tick in reversed(ticks):
        if tick.outcome is Outcome.FIRED:
            return SkipStreak(count, last_at, count == 0)
        if tick.reason in reasons:
            count += tick.count
            last_at = last_at or tick.until or tick.scheduled_for
    return SkipStreak(count, last_at, False)


def is_on_time_again(ticks: Iterable[Tick], since: datetime, *, within: timedelta | None = None) -> bool:
    """Whether a tick after that time was handled, `within` that much of its time: it fired, or was skipped but not missed."""
    return any(
        tick.reason is not SkipReason.MISFIRE
        and tick.scheduled_for > since
        and (within is None or tick.fired_at - tick.scheduled_for <= within)
        for tick in ticks
    )


# Deadlines


def last_deadline(by: time, zone: ZoneInfo, now: datetime) -> datetime:
    """Return the last instant at or before now that is this time of day in the zone."""
    day = now.astimezone(zone).date()
    at = _instant(day, by, zone)
    return at if at <= now else _instant(day - _DAY, by, zone)


def _instant(day: date, by: time, zone: ZoneInfo) -> datetime:
    """Return the instant of a local time. One in a gap is that much after the gap; of a repeated one it is the first."""
    return datetime.combine(day, by, zone).astimezone(UTC)


class Deadline(NamedTuple):
    """A deadline of a schedule: its ticks in (`after`, `at`] must be done by `at`. `first_tick`: the first of them."""

    at: datetime
    after: datetime
    first_tick: datetime


def deadline_of(when: WhenDeadline, schedule: Schedule, timeline: Timeline, now: datetime) -> Deadline | None:
    """Return the last deadline of a schedule; None if it had no tick in the day before it."""
    by = parse_clock(when.by)
    if by is None:
        return None
    zone = load_zone(when.timezone or schedule.spec.rule.timezone)
    at = last_deadline(by, zone, now)
    after = max(last_deadline(by, zone, at - _MICROSECOND), schedule.rule_at)
    if after >= at:
        return None
    first = next((one.at for one in timeline.occurrences(after, at) if one.skip is None), None)
    return None if first is None else Deadline(at, after, first)


def is_deadline_met(deadline: Deadline, runs: Sequence[ScheduleRun], limit: int) -> bool:
    """Whether a run was completed in time. `runs`: the `limit` newest ones.

    If all of them finished after the deadline, the schedule runs so often that earlier ones cannot be seen, and it is met.
    """
    completed = [run.finished_at for run in runs if run.state is TaskState.COMPLETED]
    if any(deadline.first_tick <= at <= deadline.at for at in completed):
        return True
    return len(runs) >= limit and all(run.finished_at > deadline.at for run in runs)


# Texts


def tasks_text(count: int) -> str:
    return "1 task" if count == 1 else f"{count:,} tasks"


def duration_text(seconds: float) -> str:
    """Return a duration as people write it: 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    whole = round(seconds)
    if whole < 1:
        return f"{seconds:.1f} s"
    parts = [(whole // 86_400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    first = next(index for index, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number)
