"""Explains why a schedule ran, did not run or will run at a given time: collects the data that core/explain.py evaluates."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from everbeat.core.audit_log import AuditLogAction
from everbeat.core.calendars import Calendar
from everbeat.core.definitions import rfc3339
from everbeat.core.errors import InvalidInput, NotFound
from everbeat.core.explain import ExplainContext, Explanation, NearbyTicks, PartitionOwner, ScheduleEdit, explain
from everbeat.core.pauses import Pause, pause_of
from everbeat.core.rules import Rule
from everbeat.core.schedules import Schedule, Status
from everbeat.core.targets import WorkerTarget, is_reserved_queue, queue_of
from everbeat.core.task_explanations import Fact, QueuePosition, RunningLimit, TaskContext, explain_task
from everbeat.core.tasks import LIVE_STATES, TaskRecord, TaskState
from everbeat.core.ticks import SkipReason, Tick
from everbeat.core.timeline import Timeline, TimelineCache
from everbeat.core.workers import Absence
from everbeat.core.zones import load_zone
from everbeat.services.ledger import accounted_until
from everbeat.services.schedules import ScheduleService
from everbeat.services.tasks import TaskService
from everbeat.services.tenants import TenantDirectory
from everbeat.services.workers import WorkerDirectory
from everbeat.store.base import Store
from everbeat.store.values import AuditLogFilter, FindingFilter, TaskFilter

_MICROSECOND = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)
_MAX_BLOCKERS_SCANNED = 200
_MAX_POSITION = 10_000
_MAX_FINDINGS = 10
_MAX_AUDIT_LOG_SCANNED = 200
_EDIT_WINDOW = timedelta(seconds=10)
_DAY = timedelta(days=1)


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
        directory: TenantDirectory | None = None,
    ) -> None:
        self._store = store
        self._schedules = schedules
        self._tasks = tasks
        self._timelines = timelines
        self._late_seconds = late_seconds
        self._workers = workers or WorkerDirectory(store)
        self._retention = timedelta(days=retention_days)
        self._directory = directory

    async def explain(self, tenant_id: UUID, ref: str, at: datetime | None, *, now: datetime | None = None) -> Explanation:
        """Explain the tick at that instant, by default the latest one that was expected. Whole seconds mean that second."""
        schedule = await self._schedules.get(tenant_id, ref)
        moment = await self._store.clock(now=now)
        if at is None:
            at = await self._latest_tick(schedule, moment)
        case = ExplainContext(
            schedule=schedule,
            at=at,
            now=moment,
            zone=load_zone("UTC"),
            accounted_until=accounted_until(schedule, moment, self._late_seconds),
            kept_since=moment - self._retention_of(tenant_id),
            rule=None,
        )
        case = await self._with_rule(case._replace(absence=await self._absence_of_schedule(schedule, moment)))
        row = await self._row(case, _search_end(at) if case.tick is None else case.at + _MICROSECOND)
        if row is None and case.tick is not None and case.at > moment:
            case = case._replace(pause=await self._pause_ahead(schedule, case.at, moment))
        found = explain(await self._with_row(case, row) if row is not None else await self._with_history(case))
        return found._replace(facts=[*found.facts, *await self._finding_facts(case)])

    async def _finding_facts(self, case: ExplainContext) -> list[Fact]:
        """What the auditor found about the tick."""
        schedule, window = case.schedule, (case.at, _search_end(case.at) if case.tick is None else case.at + _MICROSECOND)
        facts = []
        for is_resolved in (False, True):
            filter_ = FindingFilter(is_resolved, schedule_id=schedule.id, from_at=window[0], to_at=window[1])
            for finding in await self._store.finding_list(schedule.tenant_id, filter_, limit=_MAX_FINDINGS):
                link = f"/v1/audit/findings?schedule={schedule.id}&from={rfc3339(window[0])}&to={rfc3339(window[1])}"
                state = finding.state.value if finding.resolution is None else finding.resolution.value
                facts.append(Fact("finding", f"{finding.kind.value}, {state}", link))
                facts.append(Fact("found_at", rfc3339(finding.found_at)))
        return facts

    async def explain_task(self, tenant_id: UUID, task_id: UUID, *, now: datetime | None = None) -> TaskExplanation:
        """Explain what a task waits for, or how it ended."""
        task = await self._tasks.get(tenant_id, task_id)
        attempts = await self._tasks.attempts(tenant_id, task_id)
        is_waiting = task.state in (TaskState.READY, TaskState.SCHEDULED, TaskState.HELD)
        moment = await self._store.clock(now=now)
        case = TaskContext(task, len(attempts), moment)
        if is_waiting:
            pauses = await self._store.pause_list(tenant_id, now=now)
            case = case._replace(pause=pause_of(pauses, tenant_id, task.queue, moment))
        if is_waiting and not is_reserved_queue(task.queue):
            case = case._replace(absence=await self._workers.absence(tenant_id, task.queue, task.type, now=now))
        if task.state is TaskState.READY:
            case = case._replace(position=await self._position(task), limit=await self._running_limit(tenant_id))
        if task.state is TaskState.HELD and task.schedule_id is not None:
            case = case._replace(holders=await self._holders(tenant_id, task))
        return TaskExplanation(task.state, *explain_task(case))

    async def _position(self, task: TaskRecord) -> QueuePosition:
        ahead, examined = await self._store.task_position(
            task.tenant_id, task.queue, priority=task.priority, run_at=task.run_at, id_=task.id, limit=_MAX_POSITION
        )
        return QueuePosition(ahead, is_minimum=examined >= _MAX_POSITION)

    async def _running_limit(self, tenant_id: UUID) -> RunningLimit | None:
        for tenant in await self._store.tenant_find(ids=[tenant_id]):
            if tenant.quotas.max_running is not None:
                depths = await self._store.task_depths(tenant_id)
                running = sum(one.count for one in depths if one.state == TaskState.RUNNING)
                return RunningLimit(running, tenant.quotas.max_running)
        return None

    async def _holders(self, tenant_id: UUID, task: TaskRecord) -> Sequence[TaskRecord]:
        """Return the unfinished tasks of the schedule that were created before a held one."""
        filter_ = TaskFilter(schedule_id=task.schedule_id)
        page = await self._tasks.page(tenant_id, filter_, before=task.id, limit=_MAX_BLOCKERS_SCANNED)
        return [one for one in page.tasks if one.state in LIVE_STATES and one.state is not TaskState.HELD]

    def _retention_of(self, tenant_id: UUID) -> timedelta:
        own = None if self._directory is None else self._directory.quotas_of(tenant_id).retention_days
        return self._retention if own is None else min(self._retention, timedelta(days=own))

    async def _latest_tick(self, schedule: Schedule, now: datetime) -> datetime:
        """Return the last time at which the schedule was expected to tick; before its first tick, the next one."""
        recent = await self._store.tick_recent(
            schedule.tenant_id, [schedule.id], from_=now - self._retention_of(schedule.tenant_id), limit=1
        )
        latest = max((row.until or row.scheduled_for for row in recent if row.scheduled_for <= now), default=None)
        rule = schedule.spec.rule
        try:
            timeline = self._timelines.get(rule, schedule.id, await self._calendars(schedule.tenant_id, rule))
        except InvalidInput:
            return latest or now
        expected = await asyncio.to_thread(timeline.last_until, now)
        since = max(schedule.rule_at, schedule.created_at)
        if expected is not None and expected > since and schedule.status is not Status.FINISHED:
            latest = expected if latest is None else max(latest, expected)
        if latest is not None:
            return latest
        return await asyncio.to_thread(timeline.next_tick, now) or now

    async def _with_history(self, case: ExplainContext) -> ExplainContext:
        """Add what explains a tick without a row: the owner of the partition, and who paused the schedule."""
        if case.tick is not None and case.at <= case.now and case.at >= case.kept_since:
            case = case._replace(owner=await self._owner(case.schedule, case.now))
        if case.schedule.status is Status.PAUSED:
            case = case._replace(paused=await self._pause_of_schedule(case.schedule, case.now))
        return case

    async def _owner(self, schedule: Schedule, now: datetime) -> PartitionOwner | None:
        for one in await self._store.partition_list():
            if one.partition == schedule.partition:
                is_owned = one.owner is not None and one.lease_until is not None and one.lease_until > now
                return PartitionOwner(one.partition, await self._node_name(one.owner) if is_owned else None)
        return None

    async def _node_name(self, node: UUID | None) -> str | None:
        """Return the name of a node, or its id if it has left the cluster."""
        if node is None:
            return None
        _, nodes = await self._store.node_list()
        return next((one.name for one in nodes if one.id == node), str(node))

    async def _edit(self, schedule: Schedule, at: datetime) -> ScheduleEdit:
        window = (at - _EDIT_WINDOW, at + _EDIT_WINDOW)
        found = await self._audit_log_entry(schedule, AuditLogAction.SCHEDULE_UPDATE, *window)
        return ScheduleEdit(at, None if found is None else found.by)

    async def _pause_of_schedule(self, schedule: Schedule, until: datetime) -> ScheduleEdit | None:
        return await self._audit_log_entry(schedule, AuditLogAction.SCHEDULE_PAUSE, until - self._retention, until + _SECOND)

    async def _audit_log_entry(
        self, schedule: Schedule, action: AuditLogAction, from_: datetime, to: datetime
    ) -> ScheduleEdit | None:
        """Return the newest entry on the schedule in the window. Scans a limited number of entries with this action."""
        filter_ = AuditLogFilter(from_at=from_, to_at=to, action=action.value)
        entries = await self._store.audit_log_list(schedule.tenant_id, filter_, before=None, limit=_MAX_AUDIT_LOG_SCANNED)
        return next((ScheduleEdit(one.at, one.actor) for one in entries if one.subject == str(schedule.id) and one.at), None)

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
        if (edited_at := await self._edited_at(case)) is not None:
            case = case._replace(edit=await self._edit(case.schedule, edited_at))
        # A rule that ticks once in years takes long to compute; the tick loop must not wait for it.
        return await asyncio.to_thread(_on_timeline, case, timeline)

    async def _edited_at(self, case: ExplainContext) -> datetime | None:
        """Return when the rule changed: the end of a past rule, or the beginning of the present one shortly before the time."""
        schedule = case.schedule
        if not case.is_past_rule:
            is_recent = schedule.created_at < schedule.rule_at <= case.at < schedule.rule_at + _DAY
            return schedule.rule_at if is_recent else None
        for past in await self._store.schedule_past_rules(schedule.tenant_id, [schedule.id]):
            if past.since < case.at <= past.until:
                return past.until
        return None

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
        case = case._replace(at=max(case.at, row.scheduled_for), node=await self._node_name(row.node))
        if row.task_id is not None:
            try:
                task = await self._tasks.get(tenant_id, row.task_id)
            except NotFound:  # past its retention
                return case._replace(row=row)
            attempts = await self._tasks.attempts(tenant_id, row.task_id)
            return case._replace(row=row, task=task, attempts=len(attempts))
        if row.reason is SkipReason.PAUSED:
            pause = await self._pause_at(case.schedule, row.fired_at)
            paused = await self._pause_of_schedule(case.schedule, row.fired_at) if pause is None else None
            return case._replace(row=row, pause=pause, paused=paused)
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
