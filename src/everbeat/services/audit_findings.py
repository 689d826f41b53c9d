"""The findings of the auditor as the API lists them: open ones first, and among them the newest first."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from everbeat.core.audit_findings import AuditFinding, FindingKind, FindingState
from everbeat.store.base import Store
from everbeat.store.values import FindingFilter


class FindingPosition(NamedTuple):
    """The last finding of a page: its state and id."""

    state: FindingState
    id: UUID


class FindingQuery(NamedTuple):
    """`state` None: open and resolved findings. `from_at` and `to_at` limit the time of the tick."""

    state: FindingState | None = None
    kind: FindingKind | None = None
    schedule_id: UUID | None = None
    from_at: datetime | None = None
    to_at: datetime | None = None


class AuditFindingService:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def page(
        self, tenant_id: UUID | None, query: FindingQuery, *, after: FindingPosition | None, limit: int
    ) -> list[AuditFinding]:
        """Return the findings of a tenant and of the cluster, or of all tenants (None), after the given one."""
        states = [state for state in FindingState if query.state in (None, state)]
        if after is not None and after.state is FindingState.RESOLVED:
            states = [state for state in states if state is FindingState.RESOLVED]
        found: list[AuditFinding] = []
        for state in states:
            before = after.id if after is not None and after.state is state else None
            filter_ = FindingFilter(
                state is FindingState.RESOLVED, query.kind, query.schedule_id, query.from_at, query.to_at, before
            )
            found += await self._store.finding_list(tenant_id, filter_, limit=limit - len(found))
            if len(found) >= limit:
                break
        return found
