"""Reviews open findings: resolves those whose tick has been recorded, fired or backfilled, or whose schedule is gone."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from everbeat.core.audit_findings import AuditFinding, FindingKind, Resolution
from everbeat.core.rule_periods import MICROSECOND
from everbeat.core.ticks import Outcome
from everbeat.services.maintenance.finding_log import FindingLog, FindingSubject, late_finding, new_finding
from everbeat.store.base import Store

_PAGE = 200
_OF_TICKS = (FindingKind.MISSING, FindingKind.OVERDUE, FindingKind.DOUBLED)


class FindingReview:
    def __init__(self, store: Store, log: FindingLog) -> None:
        self._store = store
        self._log = log

    async def review(self, after: UUID | None, moment: datetime, now: datetime | None) -> UUID | None:
        """Review a page of open findings. Returns the last one of the page, or None to begin again."""
        page = await self._store.finding_open(after=after, limit=_PAGE)
        resolutions: dict[UUID, Resolution] = {}
        found: list[AuditFinding] = []
        for finding in page:
            if finding.kind in _OF_TICKS:
                resolution, more = await self._judge(finding, moment)
                found += more
                if resolution is not None:
                    resolutions[finding.id] = resolution
        await self._log.resolve(resolutions, now)
        await self._log.record(found)
        return page[-1].id if len(page) == _PAGE else None

    async def _judge(self, finding: AuditFinding, moment: datetime) -> tuple[Resolution | None, list[AuditFinding]]:
        """Return how a finding is resolved, if it is, and what was found instead."""
        assert finding.tenant_id is not None
        assert finding.schedule_id is not None
        tenant_id, id_, at = finding.tenant_id, finding.schedule_id, finding.scheduled_for
        schedules = (await self._store.schedule_find(tenant_id, ids=[id_])).schedules
        if not schedules:
            return Resolution.REMOVED, []
        if finding.kind is FindingKind.DOUBLED:
            doubled = await self._store.tick_doubled(tenant_id, [id_], from_=at, to=at + MICROSECOND)
            return (None, []) if doubled else (Resolution.OVER, [])
        rows = await self._store.tick_list(tenant_id, id_, from_=at, to=at + MICROSECOND, limit=2)
        subject = FindingSubject(tenant_id, id_, schedules[0].spec.name)
        if rows and rows[-1].outcome is Outcome.SKIPPED:
            return Resolution.RECORDED, []
        if rows:
            is_overdue = finding.kind is FindingKind.OVERDUE
            late = [late_finding(subject, at, rows[-1].fired_at, moment)] if is_overdue else []
            return (Resolution.FIRED if is_overdue else Resolution.RECORDED), late
        if finding.kind is FindingKind.MISSING:
            ticks = await self._store.task_ticks(tenant_id, id_, from_=at, to=at + MICROSECOND)
            return (Resolution.BACKFILLED if at in ticks else None), []
        if schedules[0].cursor_at < at:
            return None, []
        return Resolution.OVER, [new_finding(FindingKind.MISSING, at, moment, subject)]
