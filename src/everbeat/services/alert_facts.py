"""The facts from which the rules of one tenant are judged in one pass. Each is read once, although several rules use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from everbeat.core.alert_facts import AlertSignal, ReadyAge, ScheduleRun, SignalKind, SlowTask
from everbeat.core.calendars import Calendar
from everbeat.core.checks import Check, CheckState
from everbeat.core.errors import InvalidInput
from everbeat.core.schedules import Schedule
from everbeat.core.ticks import Tick
from everbeat.core.timeline import Timeline, TimelineCache
from everbeat.core.workers import WorkerInfo
from everbeat.store.base import Store
from everbeat.store.values import DeadError, DeadFilter

# Limits of one pass. A list that is as long as its limit is not complete, so that nothing is taken as over because of it.
MAX_LISTED = 1000
MAX_COMPLETIONS = 5000
MAX_WORKERS = 1000

_LEDGER_WINDOW = timedelta(days=90)


class TenantFacts:
    def __init__(
        self,
        store: Store,
        timelines: TimelineCache,
        tenant_id: UUID,
        moment: datetime,
        signals: Sequence[AlertSignal],
        now: datetime | None,
    ) -> None:
        self.tenant_id = tenant_id
        self.moment = moment
        self._store = store
        self._timelines = timelines
        self._signals = signals
        self._now = now
        self._schedules: dict[UUID, Schedule | None] = {}
        self._runs: dict[int, dict[UUID, list[ScheduleRun]]] = {}
        self._workers: dict[str, list[WorkerInfo]] = {}
        self._calendars: Mapping[str, Calendar] | None = None
        self._completions: dict[tuple[str, str], datetime] | None = None
        self._checks: list[Check] | None = None
        self._ready: tuple[float, list[ReadyAge]] | None = None

    def signals(self, *kinds: SignalKind) -> list[AlertSignal]:
        return [one for one in self._signals if one.kind in kinds]

    async def schedules(self, ids: Iterable[UUID | None]) -> dict[UUID, Schedule]:
        """Return the schedules with these ids, as far as they exist."""
        wanted = {id_ for id_ in ids if id_ is not None}
        missing = sorted(wanted - self._schedules.keys())
        for start in range(0, len(missing), MAX_LISTED):
            page = missing[start : start + MAX_LISTED]
            found = await self._store.schedule_find(self.tenant_id, ids=page)
            self._schedules |= dict.fromkeys(page) | {one.id: one for one in found.schedules}
        return {id_: one for id_ in wanted if (one := self._schedules[id_]) is not None}

    async def schedule_named(self, name: str) -> Schedule | None:
        found = (await self._store.schedule_find(self.tenant_id, names=[name])).schedules
        return found[0] if found else None

    async def runs(self, ids: Iterable[UUID], limit: int) -> dict[UUID, list[ScheduleRun]]:
        """Return the newest runs of each schedule, newest first."""
        known = self._runs.setdefault(limit, {})
        missing = sorted(set(ids) - known.keys())
        for start in range(0, len(missing), MAX_LISTED):
            page = missing[start : start + MAX_LISTED]
            known |= {id_: [] for id_ in page}
            for run in await self._store.schedule_runs(self.tenant_id, page, limit=limit):
                known[run.schedule_id].append(run)
        return known

    async def ticks(self, ids: Iterable[UUID], limit: int) -> dict[UUID, list[Tick]]:
        """Return the newest ledger rows of each schedule, oldest first."""
        wanted = sorted(set(ids))
        found: dict[UUID, list[Tick]] = {id_: [] for id_ in wanted}
        from_ = self.moment - _LEDGER_WINDOW
        for start in range(0, len(wanted), MAX_LISTED):
            page = wanted[start : start + MAX_LISTED]
            for tick in await self._store.tick_recent(self.tenant_id, page, from_=from_, limit=limit):
                found[tick.schedule_id].append(tick)
        return found

    async def late(self, seconds: float) -> list[Schedule]:
        return await self._store.schedule_late(self.tenant_id, late_seconds=seconds, limit=MAX_LISTED, now=self._now)

    async def slow(self, seconds: float) -> list[SlowTask]:
        return await self._store.task_slow(self.tenant_id, seconds=seconds, limit=MAX_LISTED, now=self._now)

    async def ready_ages(self, seconds: float) -> list[ReadyAge]:
        """Return the queues and types with tasks that have been ready for longer, at least those of `seconds`."""
        if self._ready is None or self._ready[0] > seconds:
            found = await self._store.task_ready_ages(self.tenant_id, seconds=seconds, limit=MAX_LISTED, now=self._now)
            self._ready = seconds, found
        return self._ready[1]

    async def workers(self, queue: str) -> list[WorkerInfo]:
        if queue not in self._workers:
            self._workers[queue] = await self._store.worker_list(self.tenant_id, queue=queue, limit=MAX_WORKERS)
        return self._workers[queue]

    async def completions(self) -> dict[tuple[str, str], datetime]:
        """Return when tasks without a schedule were last completed, by queue and type."""
        if self._completions is None:
            found = await self._store.task_completions(self.tenant_id, limit=MAX_COMPLETIONS)
            self._completions = {(one.queue, one.type): one.completed_at for one in found}
        return self._completions

    async def checks_down(self) -> tuple[list[Check], bool]:
        """Return the checks that are down, and whether these are all."""
        if self._checks is None:
            self._checks = await self._store.check_list(self.tenant_id, state=CheckState.DOWN, limit=MAX_LISTED)
        return self._checks, len(self._checks) < MAX_LISTED

    async def dead_errors(self, task_ids: Sequence[UUID]) -> dict[UUID, DeadError]:
        if not task_ids:
            return {}
        wanted = tuple(task_ids[:MAX_LISTED])
        found = await self._store.dead_errors(self.tenant_id, DeadFilter(task_ids=wanted), limit=MAX_LISTED)
        return {one.task_id: one for one in found}

    async def timeline(self, schedule: Schedule) -> Timeline | None:
        """Return the timeline of a schedule; None if it cannot be computed."""
        rule = schedule.spec.rule
        calendars: Mapping[str, Calendar] = {}
        if rule.exclude or rule.only:
            if self._calendars is None:
                self._calendars = {one.name: one for one in await self._store.calendar_list(self.tenant_id)}
            calendars = self._calendars
        try:
            return self._timelines.get(rule, schedule.id, calendars)
        except InvalidInput:
            return None

    @property
    def store(self) -> Store:
        return self._store
