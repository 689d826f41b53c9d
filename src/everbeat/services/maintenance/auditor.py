"""The auditor: looks for ticks that are missing, doubled, late or overdue, and for faults of the cluster, and records findings.

It runs on one node at a time, under the lease of its loop. Every iteration makes the checks whose cost depends on the number of
ticks, and continues a sweep over all schedules, which computes ticks from the rules, for a limited time. See
docs/concepts/ledger-and-audit.md.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import msgspec

from everbeat.core.audit_findings import AuditFinding, FindingKind
from everbeat.core.rule_periods import MICROSECOND
from everbeat.core.timeline import TimelineCache
from everbeat.services.event_stream import EventStream
from everbeat.services.events import Emit, FindingsCounted, TicksOverdue, ignore
from everbeat.services.maintenance.cluster_checks import ClusterChecks
from everbeat.services.maintenance.finding_log import (
    MAX_RECORDED,
    FindingLog,
    FindingSubject,
    late_finding,
    new_finding,
    overdue_finding,
)
from everbeat.services.maintenance.finding_review import FindingReview
from everbeat.services.maintenance.leased_loop import LeasedLoop
from everbeat.services.maintenance.tick_checks import CheckedWindow, TickChecks
from everbeat.store.base import Store
from everbeat.store.values import LoopLease, SuspectTick

_PAGE = 500
_MAX_COUNTED = 10_000
_SWEEP_SHARE = 0.2
# A sweep checks again what the one before it has checked for the last time, and a little more.
_OVERLAP = timedelta(minutes=15)
_FIRST_WINDOW = timedelta(hours=1)
_RECENT = timedelta(minutes=5)


class AuditorSettings(NamedTuple):
    """`late_seconds`: when a tick that has not fired is overdue. `lease_seconds`: of the ownership of partitions."""

    interval_seconds: float = 15.0
    late_seconds: float = 17.0
    lease_seconds: float = 10.0


class SweepPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a sweep is: the last schedule, and the beginning of the sweep and of the one before."""

    after: UUID | None = None
    began_at: datetime | None = None
    previous_at: datetime | None = None


class AuditPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a run of the auditor stores for the next one."""

    sweep: SweepPosition = SweepPosition()
    reviewed: UUID | None = None
    unowned_since: datetime | None = None


_decode = msgspec.json.Decoder(AuditPosition).decode
_encode = msgspec.json.Encoder().encode


class Auditor(LeasedLoop):
    name = "auditor"

    def __init__(
        self,
        store: Store,
        node_id: UUID,
        timelines: TimelineCache,
        *,
        settings: AuditorSettings,
        emit: Emit = ignore,
        event_stream: EventStream | None = None,
    ) -> None:
        super().__init__(store, node_id, interval_seconds=settings.interval_seconds)
        self._settings = settings
        self._emit = emit
        self._late = timedelta(seconds=settings.late_seconds)
        self._log = FindingLog(store, emit, event_stream or EventStream())
        self._checks = TickChecks(store, timelines)
        self._cluster = ClusterChecks(store, self._log, lease_seconds=settings.lease_seconds)
        self._review = FindingReview(store, self._log)

    async def work(self, lease: LoopLease, now: datetime | None) -> str:
        try:
            position = _decode(lease.position)
        except msgspec.MsgspecError:  # of another version
            position = AuditPosition()
        self._checks.begin()
        unowned_since = await self._cluster.check(lease, position.unowned_since, now)
        await self._check_overdue(lease.now, now)
        await self._check_recent(lease.now)
        sweep = await self._sweep(position.sweep, lease.now)
        reviewed = await self._review.review(position.reviewed, lease.now, now)
        return _encode(AuditPosition(sweep, reviewed, unowned_since)).decode()

    async def after(self, lease: LoopLease | None, now: datetime | None) -> None:
        """Count the open findings. Every node does this, so that the metrics of all nodes are the same."""
        counts = await self._store.finding_count(limit=_MAX_COUNTED)
        ran_at = next((one.ran_at for one in await self._store.loop_lease_list() if one.name == self.name), None)
        self._emit(FindingsCounted(counts, ran_at))

    async def _check_overdue(self, moment: datetime, now: datetime | None) -> None:
        """Check the schedules that are overdue by their own position: an index names them, however many schedules there are."""
        overdue = await self._store.schedule_overdue(late_seconds=self._settings.late_seconds, limit=MAX_RECORDED, now=now)
        found = [
            overdue_finding(FindingSubject(one.tenant_id, one.id, one.spec.name), one.next_tick_at, moment)
            for one in overdue
            if one.next_tick_at is not None
        ]
        await self._log.record(found)
        if overdue:
            oldest = max((moment - one.due_at).total_seconds() for one in overdue if one.due_at is not None)
            self._emit(TicksOverdue(len(overdue), oldest, [one.spec.name for one in overdue[:5]]))

    async def _check_recent(self, moment: datetime) -> None:
        """Check the ticks whose tasks were created in the last minutes, however many schedules there are."""
        suspects = await self._store.tick_suspect(
            since=moment - _RECENT, late_seconds=self._settings.late_seconds, limit=MAX_RECORDED
        )
        backfilled = [one for one in suspects if one.fired_at is None and await self._is_backfilled(one)]
        found = [finding for one in suspects if one not in backfilled for finding in self._findings_of(one, moment)]
        await self._log.record(found)

    async def _is_backfilled(self, tick: SuspectTick) -> bool:
        at = tick.scheduled_for
        return at in await self._store.task_ticks(tick.tenant_id, tick.schedule_id, from_=at, to=at + MICROSECOND)

    def _findings_of(self, tick: SuspectTick, moment: datetime) -> list[AuditFinding]:
        subject = FindingSubject(tick.tenant_id, tick.schedule_id, tick.name)
        found = []
        if tick.tasks > 1:
            found.append(new_finding(FindingKind.DOUBLED, tick.scheduled_for, moment, subject, tasks=tick.tasks))
        if tick.fired_at is None:
            found.append(new_finding(FindingKind.MISSING, tick.scheduled_for, moment, subject, has_task=True))
        elif tick.fired_at - tick.scheduled_for > timedelta(seconds=tick.jitter_seconds) + self._late:
            found.append(late_finding(subject, tick.scheduled_for, tick.fired_at, moment))
        return found

    async def _sweep(self, position: SweepPosition, moment: datetime) -> SweepPosition:
        """Check pages of schedules, until all of them are checked or the time of this run is used up."""
        if position.began_at is None or position.began_at > moment:  # no sweep is under way, or the clock was set back
            position = SweepPosition(None, moment, position.previous_at)
        assert position.began_at is not None
        from_ = moment - _FIRST_WINDOW
        if position.previous_at is not None and position.previous_at <= moment:
            from_ = position.previous_at - _OVERLAP
        window = CheckedWindow(from_, moment, self._late)
        deadline = time.monotonic() + self._settings.interval_seconds * _SWEEP_SHARE
        after = position.after
        while True:
            page = await self._store.schedule_audit(after=after, limit=_PAGE)
            await self._record_page(await self._checks.check(page, window))
            if len(page) < _PAGE:
                return SweepPosition(None, None, position.began_at)
            after = page[-1].id
            if time.monotonic() >= deadline:
                return SweepPosition(after, position.began_at, position.previous_at)

    async def _record_page(self, found: Sequence[AuditFinding]) -> None:
        for start in range(0, len(found), MAX_RECORDED):
            await self._log.record(found[start : start + MAX_RECORDED])
