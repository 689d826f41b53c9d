"""Records and resolves findings: in the database first, then as engine events and in the event stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import uuid_utils.compat

from everbeat.core.audit_findings import AuditFinding, FindingKind, Resolution
from everbeat.core.definitions import rfc3339
from everbeat.services.event_stream import EventKind, EventStream
from everbeat.services.events import Emit, FindingsOpened, FindingsResolved
from everbeat.store.base import Store

# Limits the findings of one iteration. What is beyond them is found again by the next ones.
MAX_RECORDED = 1000
_encode = msgspec.json.Encoder().encode


class FindingSubject(NamedTuple):
    """The schedule that a finding is about."""

    tenant_id: UUID
    schedule_id: UUID
    name: str


def new_finding(
    kind: FindingKind, scheduled_for: datetime, found_at: datetime, subject: FindingSubject | None = None, **details: Any
) -> AuditFinding:
    """Return a finding about a schedule or, without a subject, about the cluster."""
    is_late = kind is FindingKind.LATE
    return AuditFinding(
        id=uuid_utils.compat.uuid7(),
        tenant_id=None if subject is None else subject.tenant_id,
        schedule_id=None if subject is None else subject.schedule_id,
        kind=kind,
        scheduled_for=scheduled_for,
        found_at=found_at,
        resolved_at=found_at if is_late else None,
        resolution=Resolution.NOTED if is_late else None,
        details=_encode(details if subject is None else {"name": subject.name, **details}).decode(),
    )


def late_finding(subject: FindingSubject, tick: datetime, fired_at: datetime, found_at: datetime) -> AuditFinding:
    lag = round((fired_at - tick).total_seconds(), 3)
    return new_finding(FindingKind.LATE, tick, found_at, subject, fired_at=rfc3339(fired_at), lag_seconds=lag)


def overdue_finding(subject: FindingSubject, tick: datetime, found_at: datetime) -> AuditFinding:
    seconds = round((found_at - tick).total_seconds(), 3)
    return new_finding(FindingKind.OVERDUE, tick, found_at, subject, overdue_seconds=seconds)


class FindingLog:
    def __init__(self, store: Store, emit: Emit, event_stream: EventStream) -> None:
        self._store = store
        self._emit = emit
        self._event_stream = event_stream

    async def record(self, findings: Sequence[AuditFinding]) -> list[AuditFinding]:
        """Store findings. Returns those that were not open before."""
        if not findings:
            return []
        opened = await self._store.finding_record(findings[:MAX_RECORDED])
        if opened:
            self._emit(FindingsOpened(opened))
            self._publish(opened)
        return opened

    async def resolve(self, resolutions: Mapping[UUID, Resolution], now: datetime | None) -> None:
        if not resolutions:
            return
        resolved = await self._store.finding_resolve(resolutions, now=now)
        if resolved:
            self._emit(FindingsResolved(resolved))
            self._publish(resolved)

    def _publish(self, findings: Sequence[AuditFinding]) -> None:
        for finding in findings if self._event_stream.has_subscribers else ():
            data = {
                "change": "finding",
                "id": finding.id,
                "kind": finding.kind.value,
                "state": finding.state.value,
                "schedule_id": finding.schedule_id,
                "scheduled_for": rfc3339(finding.scheduled_for),
            }
            self._event_stream.publish(EventKind.CLUSTER, finding.tenant_id, data)
