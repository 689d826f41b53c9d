"""Reads the schedules of Celery Beat: `beat_schedule` of an application, and the tables of django-celery-beat.

The fire times to compare with come from Celery's own schedule objects. Everbeat's triggers are made from their fields, not from
their text, because Celery combines the day fields with AND, where cron uses OR: a crontab with both becomes an `rrule`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from everbeat.core.definitions import rfc3339
from everbeat.imports.base import FireTimes, ImportPlan, NotCarriedOver, PlannedSchedule
from everbeat.imports.crontab_schedules import IMPORT_LABEL, slug_of

# The intervals are counted from here, so that a second import changes nothing.
INTERVAL_ANCHOR = datetime(2000, 1, 1, tzinfo=UTC)
SOLAR = (
    "Everbeat has no triggers for sunrise and sunset; use a fixed time, or submit the task from a program that computes them"
)
_WEEKDAYS = ("SU", "MO", "TU", "WE", "TH", "FR", "SA")
_OPTIONS = ("queue", "exchange", "routing_key", "priority", "expires", "headers")
_IGNORED_OPTIONS = ("expire_seconds", "periodic_task_name", "retry", "retry_policy", "ignore_result", "relative")


@dataclass(frozen=True, kw_only=True)
class CeleryBeatOptions:
    """What applies to all schedules. `broker`: the name of the connection. `mode`: of the targets; None: of the connection."""

    broker: str
    mode: str | None = None
    prefix: str = "beat"
    overlap: str = "allow"
    catch_up: str = "latest"
    max_attempts: int = 1


@dataclass(frozen=True, kw_only=True)
class BeatEntry:
    """One entry of Celery Beat. `schedule` is an object of Celery. `fields`: further fields of the definition."""

    source: str
    name: str
    task: str
    schedule: Any
    args: Any = ()
    kwargs: Any = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    problem: str | None = None


class NotConvertible(ValueError):
    """An entry that no schedule represents, with the reason."""


def beat_schedule_entries(app: Any) -> list[BeatEntry]:
    """Return the entries of `beat_schedule` of a Celery application."""
    from celery.schedules import maybe_schedule

    entries = []
    for name, fields in (app.conf.beat_schedule or {}).items():
        entries.append(
            BeatEntry(
                source=f"beat_schedule[{name!r}]",
                name=str(name),
                task=str(fields.get("task", name)),
                schedule=maybe_schedule(fields.get("schedule"), bool(fields.get("relative", False)), app=app),
                args=fields.get("args") or (),
                kwargs=fields.get("kwargs") or {},
                options=fields.get("options") or {},
            )
        )
    return entries


def plan_celery_beat(app: Any, entries: Iterable[BeatEntry], options: CeleryBeatOptions) -> ImportPlan:
    """Return the schedules of these entries, and what is not carried over."""
    plan = ImportPlan()
    names: set[str] = set()
    for entry in entries:
        name = f"{options.prefix}.{slug_of(entry.name)}" if options.prefix else slug_of(entry.name)
        try:
            if name in names:
                raise NotConvertible(f"another entry has the name {name} as well")
            plan.schedules.append(_planned(app, name, entry, options))
            names.add(name)
        except NotConvertible as error:
            plan.not_carried_over.append(NotCarriedOver(entry.source, entry.name, str(error)))
    return plan


def _planned(app: Any, name: str, entry: BeatEntry, options: CeleryBeatOptions) -> PlannedSchedule:
    if entry.problem is not None:
        raise NotConvertible(entry.problem)
    trigger, expected = trigger_of(entry.schedule, str(app.timezone))
    target, notes = _target(app, entry, options)
    definition: dict[str, Any] = {
        "name": name,
        "description": entry.source,
        **trigger,
        "target": target,
        "payload": _payload(entry),
        "overlap": options.overlap,
        "catch_up": options.catch_up,
        "max_attempts": options.max_attempts,
        "labels": {IMPORT_LABEL: "celery-beat"},
        **entry.fields,
        **{name: rfc3339(at.astimezone(UTC)) for name in ("starts_at", "ends_at") if (at := getattr(entry, name)) is not None},
    }
    if expected is not None:
        expected = _within(expected, entry.starts_at, entry.ends_at)
    return PlannedSchedule(source=entry.source, definition=definition, expected_times=expected, notes=tuple(notes))


# Triggers


def trigger_of(schedule: Any, zone: str) -> tuple[dict[str, Any], FireTimes | None]:
    """Return the trigger of a schedule of Celery, and the function that computes Celery's times."""
    from celery.schedules import crontab, solar
    from celery.schedules import schedule as interval

    if isinstance(schedule, solar):
        raise NotConvertible(f"{schedule.event} at {schedule.lat}, {schedule.lon}: {SOLAR}")
    if isinstance(schedule, crontab):
        return {**_crontab_trigger(schedule), "timezone": _zone_of(schedule, zone)}, crontab_times(schedule)
    clocked_time = getattr(schedule, "clocked_time", None)
    if clocked_time is not None:
        return {"at": rfc3339(clocked_time.astimezone(UTC))}, None
    if type(schedule) is not interval:
        raise NotConvertible(f"a schedule of the type {type(schedule).__name__} is unknown to Everbeat")
    seconds = schedule.run_every.total_seconds()
    every = int(seconds) if seconds == int(seconds) else seconds
    return {"every_seconds": every, "anchor": rfc3339(INTERVAL_ANCHOR)}, interval_times(schedule)


def _zone_of(schedule: Any, zone: str) -> str:
    found = str(getattr(schedule, "tz", None) or zone)
    return "UTC" if found in ("UTC", "tzutc()", "datetime.timezone.utc") else found


def _crontab_trigger(schedule: Any) -> dict[str, Any]:
    minutes = field_text(schedule.minute, 0, 59)
    hours = field_text(schedule.hour, 0, 23)
    days = field_text(schedule.day_of_month, 1, 31)
    months = field_text(schedule.month_of_year, 1, 12)
    weekdays = field_text(schedule.day_of_week, 0, 6)
    if "*" in (days, weekdays):
        return {"cron": f"{minutes} {hours} {days} {months} {weekdays}"}
    parts = {
        "FREQ": "DAILY",
        "BYMONTH": "" if months == "*" else _list(schedule.month_of_year),
        "BYMONTHDAY": _list(schedule.day_of_month),
        "BYDAY": ",".join(_WEEKDAYS[day] for day in sorted(schedule.day_of_week)),
        "BYHOUR": _list(schedule.hour),
        "BYMINUTE": _list(schedule.minute),
        "BYSECOND": "0",
    }
    return {"rrule": ";".join(f"{name}={value}" for name, value in parts.items() if value)}


def _list(values: Iterable[int]) -> str:
    return ",".join(str(value) for value in sorted(values))


def field_text(values: Iterable[int], first: int, last: int) -> str:
    """Return the cron text of a set of values: `*`, `*/n`, or a list of numbers and ranges."""
    found = sorted(values)
    if found == list(range(first, last + 1)):
        return "*"
    step = found[1] - found[0] if len(found) > 2 else 1
    if step > 1 and found == list(range(found[0], last + 1, step)):
        return f"*/{step}" if found[0] == first else f"{found[0]}-{last}/{step}"
    return ",".join(_ranges(found))


def _ranges(values: list[int]) -> Iterator[str]:
    start = previous = values[0]
    for value in [*values[1:], None]:
        if value is not None and value == previous + 1:
            previous = value
            continue
        yield str(start) if start == previous else f"{start}-{previous}"
        if value is not None:
            start = previous = value


def _within(times: FireTimes, starts_at: datetime | None, ends_at: datetime | None) -> FireTimes:
    """Return the times from one instant to another, as an entry of Celery Beat with a start and an end runs."""

    def limited(after: datetime, count: int) -> list[datetime]:
        if starts_at is not None:
            after = max(after, starts_at - timedelta(seconds=1))
        return [time for time in times(after, count) if ends_at is None or time < ends_at]

    return limited


def crontab_times(schedule: Any) -> FireTimes:
    """Return a function that computes the times of a crontab as Celery Beat does."""

    def times(after: datetime, count: int) -> list[datetime]:
        return _following(schedule, after.astimezone(UTC).replace(microsecond=0), count)

    return times


def interval_times(schedule: Any) -> FireTimes:
    """Return a function that computes the times of an interval, for a Beat whose last run was at a multiple of it."""

    def times(after: datetime, count: int) -> list[datetime]:
        every: timedelta = schedule.run_every
        last_run = INTERVAL_ANCHOR + ((after - INTERVAL_ANCHOR) // every) * every
        return _following(schedule, last_run, count)

    return times


def _following(schedule: Any, last_run: datetime, count: int) -> list[datetime]:
    """Return the next times after a run. Celery computes them one by one, each at the moment of the run before it."""
    found: list[datetime] = []
    nowfun = schedule.nowfun
    try:
        while len(found) < count:
            schedule.nowfun = _constant(last_run)
            following = (last_run + schedule.remaining_estimate(last_run)).astimezone(UTC)
            if following <= last_run:
                break
            found.append(following)
            last_run = following
    finally:
        schedule.nowfun = nowfun
    return found


def _constant(moment: datetime) -> Callable[[], datetime]:
    return lambda: moment


# Targets and payloads


def _target(app: Any, entry: BeatEntry, options: CeleryBeatOptions) -> tuple[dict[str, Any], list[str]]:
    given = entry.options
    target: dict[str, Any] = {"kind": "celery", "task": entry.task, "broker": options.broker}
    if options.mode is not None:
        target["mode"] = options.mode
    target["queue"] = _queue_name(given.get("queue") or _routed_queue(app, entry))
    for name in ("exchange", "routing_key", "priority"):
        if given.get(name) is not None:
            target[name] = given[name]
    if given.get("headers"):
        target["headers"] = {str(name): str(value) for name, value in given["headers"].items() if name != "periodic_task_name"}
    if (expires := given.get("expires")) is not None:
        target["expires_seconds"] = _expires_seconds(expires)
    if not target.get("headers", True):
        del target["headers"]
    unknown = sorted(given.keys() - {*_OPTIONS, *_IGNORED_OPTIONS})
    return target, [f"the options {', '.join(unknown)} are not carried over"] if unknown else []


def _routed_queue(app: Any, entry: BeatEntry) -> Any:
    """Return the queue that `task_routes` selects for the task."""
    return app.amqp.router.route({}, entry.task).get("queue") or app.conf.task_default_queue


def _queue_name(queue: Any) -> str:
    return str(getattr(queue, "name", queue))


def _expires_seconds(expires: Any) -> float:
    if isinstance(expires, timedelta):
        return expires.total_seconds()
    if isinstance(expires, (int, float)):
        return expires
    raise NotConvertible(f"the option expires is a fixed time, {expires}; use a number of seconds after each run")


def _payload(entry: BeatEntry) -> dict[str, Any]:
    payload = {name: value for name, value in (("args", entry.args), ("kwargs", entry.kwargs)) if value}
    try:
        decoded: dict[str, Any] = json.loads(json.dumps(payload, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise NotConvertible(f"the arguments are not JSON: {error}") from None
    return decoded
