"""Creates tasks of a schedule on request: one now, or tasks for past ticks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import uuid_utils.compat

from everbeat.core.access import Caller
from everbeat.core.audit_log import AuditLogAction
from everbeat.core.calendars import Calendar
from everbeat.core.definitions import check_payload_size, rfc3339
from everbeat.core.errors import Conflict, InvalidInput
from everbeat.core.schedules import Schedule, Status
from everbeat.core.submissions import task_from_schedule
from everbeat.core.tasks import NewTask, Origin, TaskKey, TaskRecord
from everbeat.core.ticks import Outcome
from everbeat.core.timeline import Timeline, TimelineCache
from everbeat.services.audit_log import AuditLogEntries, new_audit_log_entries
from everbeat.services.ids import new_ids
from everbeat.services.schedules import ScheduleService
from everbeat.services.tasks import TaskService
from everbeat.store.base import Store

MAX_TICKS = 10_000
_BATCH_SIZE = 1000
_MAX_EXAMINED = 50_000
_MICROSECOND = timedelta(microseconds=1)
_MIN_TIME = datetime.min.replace(tzinfo=UTC)


class BackfillResult(NamedTuple):
    """The number of new tasks (on a dry run, of tasks that would be created) and their ticks."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used
    ticks: list[datetime]


class BackfillService:
    def __init__(self, store: Store, schedules: ScheduleService, tasks: TaskService, timelines: TimelineCache) -> None:
        self._store = store
        self._schedules = schedules
        self._tasks = tasks
        self._timelines = timelines

    async def trigger(
        self,
        tenant_id: UUID,
        ref: str,
        payload: bytes | None = None,
        *,
        key: TaskKey | None = None,
        by: Caller | None = None,
        now: datetime | None = None,
    ) -> TaskRecord:
        """Create a task of the schedule now, in addition to its ticks. This also works while the schedule is paused."""
        schedule = await self._schedules.get(tenant_id, ref)
        task = task_from_schedule(schedule, uuid_utils.compat.uuid7(), Origin.TRIGGER, payload=payload, key=key)
        if payload is not None:
            check_payload_size(payload)
            await self._tasks.quotas.check_payloads(tenant_id, [payload])
        audit_log = new_audit_log_entries(
            by, AuditLogAction.SCHEDULE_TRIGGER, schedule.id, name=schedule.spec.name, task_id=task.id
        )
        return (await self._tasks.add_one(task, audit_log=audit_log, now=now))[0]

    async def backfill(
        self,
        tenant_id: UUID,
        ref: str,
        *,
        from_: datetime,
        to: datetime,
        missing_only: bool = True,
        dry_run: bool = False,
        rate_per_second: float | None = None,
        key: str | None = None,
        by: Caller | None = None,
        now: datetime | None = None,
    ) -> BackfillResult:
        """Create tasks for the past ticks in [from_, to), by default only for those without a task.

        A repeated call, for example after a crash, creates no second task for a tick if `missing_only` is set or if it has
        the same `key`.
        """
        if to <= from_:
            raise InvalidInput.of("to", "must be later than from")
        schedule = await self._schedules.get(tenant_id, ref)
        moment = await self._store.clock(now=now)
        # An active schedule fires or records the ticks after its cursor itself.
        end = min(to, moment, schedule.cursor_at + _MICROSECOND) if schedule.status is Status.ACTIVE else min(to, moment)
        timeline = await self._timeline(schedule)
        ticks = await asyncio.to_thread(_ticks_between, timeline, from_, end)
        if missing_only and ticks:
            ticks = await self._missing(schedule, ticks)
        if dry_run or not ticks:
            return BackfillResult(len(ticks), ticks)
        key_prefix = f"backfill {schedule.id}" if missing_only else key and f"backfill {schedule.id} {key}"
        tasks = _new_tasks(schedule, ticks, moment, key_prefix, rate_per_second)
        detail = {"name": schedule.spec.name, "from": from_, "to": to, "count": len(ticks)}
        audit_log = new_audit_log_entries(by, AuditLogAction.SCHEDULE_BACKFILL, schedule.id, tenant_id=tenant_id, **detail)
        created = await self._write(tenant_id, tasks, audit_log, now)
        return BackfillResult(len(created), created)

    async def _missing(self, schedule: Schedule, ticks: list[datetime]) -> list[datetime]:
        from_, to = ticks[0], ticks[-1] + _MICROSECOND
        done = set(await self._store.task_ticks(schedule.tenant_id, schedule.id, from_=from_, to=to))
        # In pages, because a past rule may have ticked more often than the present one.
        while rows := await self._store.tick_list(schedule.tenant_id, schedule.id, from_=from_, to=to, limit=MAX_TICKS):
            done.update(row.scheduled_for for row in rows if row.outcome is Outcome.FIRED)
            from_ = max(from_, rows[-1].scheduled_for + _MICROSECOND)
            if len(rows) < MAX_TICKS:
                break
        return [tick for tick in ticks if tick not in done]

    async def _write(
        self, tenant_id: UUID, tasks: list[NewTask], audit_log: AuditLogEntries, now: datetime | None
    ) -> list[datetime]:
        created: list[datetime] = []
        tasks = await self._tasks.quotas.with_allowed_priority(tenant_id, tasks)
        async with self._tasks.quotas.reserve(tenant_id, tasks, is_rate_limited=False, now=now):
            for start in range(0, len(tasks), _BATCH_SIZE):
                batch = tasks[start : start + _BATCH_SIZE]
                # The audit log entry is written once, with the first batch that creates a task.
                submitted = await self._tasks.add(batch, audit_log=() if created else audit_log, now=now)
                new = [task for index, task in enumerate(batch) if index not in submitted.repeated]
                created += [task.scheduled_for for task in new if task.scheduled_for is not None]
        return created

    async def _timeline(self, schedule: Schedule) -> Timeline:
        rule = schedule.spec.rule
        calendars: Mapping[str, Calendar] = {}
        if rule.exclude or rule.only:
            calendars = {one.name: one for one in await self._store.calendar_list(schedule.tenant_id)}
        try:
            return self._timelines.get(rule, schedule.id, calendars)
        except InvalidInput as error:
            raise Conflict(f"the schedule cannot be computed: {error}") from None


def _new_tasks(
    schedule: Schedule, ticks: list[datetime], moment: datetime, key_prefix: str | None, rate_per_second: float | None
) -> list[NewTask]:
    """Return a task for each tick. With `key_prefix`, concurrent backfills create only one task for each tick."""
    return [
        task_from_schedule(
            schedule,
            id_,
            Origin.BACKFILL,
            scheduled_for=tick,
            run_at=moment + timedelta(seconds=index / rate_per_second) if rate_per_second else None,
            key=TaskKey(f"{key_prefix} {rfc3339(tick)}", b"") if key_prefix else None,
        )
        for index, (id_, tick) in enumerate(zip(new_ids(len(ticks)), ticks, strict=True))
    ]


def _ticks_between(timeline: Timeline, from_: datetime, to: datetime) -> list[datetime]:
    ticks: list[datetime] = []
    if to <= from_:
        return ticks
    after = from_ - _MICROSECOND if from_ > _MIN_TIME else from_
    for examined, occurrence in enumerate(timeline.occurrences(after, to - _MICROSECOND), start=1):
        if occurrence.skip is None:
            ticks.append(occurrence.at)
        if len(ticks) > MAX_TICKS:
            raise InvalidInput.of("to", f"the window has more than {MAX_TICKS} ticks; use a shorter window")
        if examined > _MAX_EXAMINED:
            message = f"the window has more than {_MAX_EXAMINED} ticks, including excluded ones; use a shorter window"
            raise InvalidInput.of("to", message)
    return ticks
