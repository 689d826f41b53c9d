"""Explains why a schedule ran, did not run or will run at a given time: collects the data that core/explain.py evaluates."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from everbeat.core.calendars import Calendar
from everbeat.core.errors import InvalidInput, NotFound
from everbeat.core.explain import ExplainContext, Explanation, Fact, NearbyTicks, explain, explain_task
from everbeat.core.pauses import Pause, pause_of
from everbeat.core.rules import Rule
from everbeat.core.schedules import Schedule
from everbeat.core.targets import WorkerTarget, is_reserved_queue, queue_of
from everbeat.core.tasks import LIVE_STATES, TaskRecord, TaskState
from everbeat.core.ticks import SkipReason, Tick
from everbeat.core.timeline import Timeline, TimelineCache
from everbeat.core.workers import Absence
from everbeat.core.zones import load_zone
from everbeat.services.ledger import accounted_until
from everbeat.services.schedules import ScheduleService
from everbeat.services.tasks import TaskService
from everbeat.services.workers import WorkerDirectory
from everbeat.store.base import Store
from everbeat.store.values import TaskFilter

_MICROSECOND = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)
_MAX_BLOCKERS_SCANNED = 200


class TaskExplanation(NamedTuple):
    """The state of a task, and why it is in this state."""

    state: TaskState
    explanation: str
    facts: list[Fact]


class Explainer:
    """The operation of /v1/schedules/{ref}/why."""

    def __init__(
        self,
        store: Store,
        schedules: ScheduleService,
        tasks: TaskService,
        timelines: TimelineCache,
        *,
        late_seconds: float,
        retention_days: float,
        workers: WorkerDirectory | None = None,
    ) -> None:
        self._store = store
        self._schedules = schedules
        self._tasks = tasks
        self._timelines = timelines
        self._late_seconds = late_seconds
        self._workers = workers or WorkerDirectory(store)
        self._retention = timedelta(days=retention_days)

    async def explain(self, tenant_id: UUID, ref: str, at: datetime | None, *, now: datetime | None = None) -> Explanation:
        """Explain the tick at that instant, by default now. A time in whole seconds means a tick within that second."""
        schedule = await self._schedules.get(tenant_id, ref)
        moment = await self._store.clock(now=now)
        at = moment if at is None else at
        case = ExplainContext(
            schedule=schedule,
            at=at,
            now=moment,
            zone=load_zone("UTC"),
            accounted_until=accounted_until(schedule, moment, self._late_seconds),
            kept_since=moment - self._retention,
            rule=None,
        )
        case = await self._with_rule(case._replace(absence=await self._absence_of_schedule(schedule, moment)))
        row = await self._row(case, _search_end(at) if case.tick is None else case.at + _MICROSECOND)
        if row is None and case.tick is not None and case.at > moment:
            case = case._replace(pause=await self._pause_ahead(schedule, case.at, moment))
        return explain(case if row is None else await self._with_row(case, row))

    async def explain_task(self, tenant_id: UUID, task_id: UUID, *, now: datetime | None = None) -> TaskExplanation:
        """Explain what a task waits for, or how it ended."""
        task = await self._tasks.get(tenant_id, task_id)
        attempts = await self._tasks.attempts(tenant_id, task_id)
        is_waiting = task.state in (TaskState.READY, TaskState.SCHEDULED, TaskState.HELD)
        absence = None
        if is_waiting and not is_reserved_queue(task.queue):
            absence = await self._workers.absence(tenant_id, task.queue, task.type, now=now)
        return TaskExplanation(task.state, *explain_task(task, len(attempts), absence))

    async def _absence_of_schedule(self, schedule: Schedule, now: datetime) -> Absence | None:
        target = schedule.spec.target
        if not isinstance(target, WorkerTarget):
            return None
        return await self._workers.absence(schedule.tenant_id, target.queue, target.type, now=now)

    async def _with_rule(self, case: ExplainContext) -> ExplainContext:
        rule, is_past = await self._rule_at(case.schedule, case.at)
        if rule is None:
            return case
        try:
            zone = load_zone(rule.timezone)
            timeline = self._timelines.get(rule, case.schedule.id, await self._calendars(case.schedule.tenant_id, rule))
        except InvalidInput:  # a faulty schedule, or a past rule with a deleted calendar: explain from the ledger alone
            return case
        case = case._replace(rule=rule, is_past_rule=is_past, zone=timeline.zone or zone)
        # A rule that ticks once in years takes long to compute; the tick loop must not wait for it.
        return await asyncio.to_thread(_on_timeline, case, timeline)

    async def _rule_at(self, schedule: Schedule, at: datetime) -> tuple[Rule | None, bool]:
        """Return the rule that was in force at that instant, and whether it is a past rule."""
        if at > schedule.rule_at:
            return schedule.spec.rule, False
        for past in await self._store.schedule_past_rules(schedule.tenant_id, [schedule.id]):
            if past.since < at <= past.until:
                return past.rule, True
        # At or before the registration there was no rule. The present one still gives the ticks around that time.
        return schedule.spec.rule, False

    async def _calendars(self, tenant_id: UUID, rule: Rule) -> Mapping[str, Calendar]:
        if not rule.exclude and not rule.only:
            return {}
        return {one.name: one for one in await self._store.calendar_list(tenant_id)}

    async def _row(self, case: ExplainContext, end: datetime) -> Tick | None:
        """Return the ledger row of the tick. A range of skipped ticks also covers the times between them, which have no row."""
        for row in await self._store.tick_list(case.schedule.tenant_id, case.schedule.id, from_=case.at, to=end, limit=1):
            if row.scheduled_for >= case.at or case.tick is not None or case.rule is None:
                return row
        return None

    async def _with_row(self, case: ExplainContext, row: Tick) -> ExplainContext:
        tenant_id = case.schedule.tenant_id
        case = case._replace(at=max(case.at, row.scheduled_for))
        if row.task_id is not None:
            try:
                task = await self._tasks.get(tenant_id, row.task_id)
            except NotFound:  # past its retention
                return case._replace(row=row)
            attempts = await self._tasks.attempts(tenant_id, row.task_id)
            return case._replace(row=row, task=task, attempts=len(attempts))
        if row.reason is SkipReason.PAUSED:
            return case._replace(row=row, pause=await self._pause_at(case.schedule, row.fired_at))
        blockers = await self._blockers(case.schedule, row) if row.reason is SkipReason.OVERLAP else ()
        return case._replace(row=row, blockers=blockers)

    async def _pause_ahead(self, schedule: Schedule, at: datetime, now: datetime) -> Pause | None:
        """Return the pause that is active now and, unless it is resumed, still is at that time."""
        active = [pause for pause in await self._store.pause_list(schedule.tenant_id, now=now) if pause.is_active_at(at)]
        return pause_of(active, schedule.tenant_id, queue_of(schedule.spec.target), at)

    async def _pause_at(self, schedule: Schedule, at: datetime) -> Pause | None:
        """Return the pause of its queue, its tenant or everything at that time; None if the schedule itself was paused."""
        queue = queue_of(schedule.spec.target)
        return pause_of(await self._store.pause_find(schedule.tenant_id, queue, at), schedule.tenant_id, queue, at)

    async def _blockers(self, schedule: Schedule, row: Tick) -> Sequence[TaskRecord]:
        """Return the tasks of the schedule that were unfinished when the tick was skipped. Scans a limited number of tasks."""
        found: dict[UUID, TaskRecord] = {}
        # The newest tasks too: ids contain the time of the node that created the task, which may differ from the database's.
        for before in (None, _first_id_after(row.fired_at)):
            page = await self._tasks.page(
                schedule.tenant_id, TaskFilter(schedule_id=schedule.id), before=before, limit=_MAX_BLOCKERS_SCANNED
            )
            found.update({task.id: task for task in page.tasks})
        return [
            task
            for task in found.values()
            if task.created_at <= row.fired_at
            and (task.state in LIVE_STATES or (task.finished_at is not None and task.finished_at >= row.fired_at))
        ]


def _search_end(at: datetime) -> datetime:
    return at + (_MICROSECOND if at.microsecond else _SECOND)


def _on_timeline(case: ExplainContext, timeline: Timeline) -> ExplainContext:
    if case.at < case.schedule.created_at:
        return case._replace(around=NearbyTicks(None, next(timeline.occurrences(case.schedule.created_at), None)))
    found = next(timeline.occurrences(case.at - _MICROSECOND, _search_end(case.at) - _MICROSECOND), None)
    if found is not None:
        return case._replace(at=found.at, tick=found)
    previous = timeline.last_until(case.at)
    before = None
    if previous is not None and previous >= case.schedule.created_at:
        before = next(timeline.occurrences(previous - _MICROSECOND, previous), None)
    return case._replace(around=NearbyTicks(before, next(timeline.occurrences(case.at), None), _fold_tick(case.at, timeline)))


def _fold_tick(at: datetime, timeline: Timeline) -> datetime | None:
    """Return the other instant of the same local time, if there are two (a fold) and the schedule ticks at the other one."""
    local = at.astimezone(timeline.zone)
    other = local.replace(fold=1 - local.fold).astimezone(at.tzinfo)
    if other == at:
        return None
    tick = next(timeline.occurrences(other - _MICROSECOND, _search_end(other) - _MICROSECOND), None)
    return None if tick is None else tick.at


def _first_id_after(at: datetime) -> UUID:
    """Return the smallest id of a task created after that instant. Ids begin with a time in milliseconds."""
    return UUID(int=(int(at.timestamp() * 1000) + 1) << 80)
