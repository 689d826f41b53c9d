"""Check verbs that are the same in both dialects."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.checks import Check, CheckOutcome, CheckState, CheckTick, CheckTransition, Ping
from everbeat.store.check_rows import check_from_row, ping_from_row, tick_from_row, transition_from_row
from everbeat.store.shared import SharedVerbs
from everbeat.store.values import CheckTickTotal

_LAST_NUMBER = 2**62


class CheckVerbs(SharedVerbs):
    """The verbs that read checks. Each dialect adds its operations, and the verbs that write several tables."""

    async def check_list(
        self,
        tenant_id: UUID,
        *,
        state: CheckState | None = None,
        prefix: str | None = None,
        after_name: str | None = None,
        limit: int,
    ) -> list[Check]:
        values = {"state": None if state is None else state.value, "prefix": prefix, "after_name": after_name or ""}
        rows = await self._read("check_list", tenant_id=tenant_id, limit=limit, **values)
        return [check_from_row(row) for row in rows]

    async def check_find(
        self, tenant_id: UUID, names: Sequence[str], *, now: datetime | None = None
    ) -> tuple[datetime, list[Check]]:
        rows = await self._read("check_find", tenant_id=tenant_id, names=list(names))
        return await self.clock(now=now), [check_from_row(row) for row in rows]

    async def check_find_tokens(self, tokens: Sequence[str], *, now: datetime | None = None) -> tuple[datetime, list[Check]]:
        rows = await self._read("check_find_tokens", tokens=list(tokens))
        return await self.clock(now=now), [check_from_row(row) for row in rows]

    async def check_due(self, *, limit: int, now: datetime | None = None) -> tuple[datetime, list[Check]]:
        rows = await self._read("check_due", limit=limit, now=now)
        return await self.clock(now=now), [check_from_row(row) for row in rows]

    async def check_delete(
        self, tenant_id: UUID, name: str, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> int:
        return await self._change_with_audit_log("check_delete", audit_log, now, tenant_id=tenant_id, name=name)

    async def check_ping_list(self, tenant_id: UUID, check_id: UUID, *, before: int | None = None, limit: int) -> list[Ping]:
        values = {"check_id": check_id, "before": _LAST_NUMBER if before is None else before, "limit": limit}
        return [ping_from_row(row) for row in await self._read("check_ping_list", tenant_id=tenant_id, **values)]

    async def check_tick_list(
        self, tenant_id: UUID, check_id: UUID, *, from_: datetime, to: datetime, limit: int
    ) -> list[CheckTick]:
        values = {"check_id": check_id, "from_at": from_, "to_at": to, "limit": limit}
        return [tick_from_row(row) for row in await self._read("check_tick_list", tenant_id=tenant_id, **values)]

    async def check_tick_recent(
        self, tenant_id: UUID, ids: Sequence[UUID], *, from_: datetime, limit: int
    ) -> dict[UUID, list[CheckTick]]:
        found: dict[UUID, list[CheckTick]] = {id_: [] for id_ in ids}
        for row in await self._read("check_tick_recent", tenant_id=tenant_id, ids=list(ids), from_at=from_, limit=limit):
            found[row["check_id"]].append(tick_from_row(row))
        return found

    async def check_tick_totals(self, tenant_id: UUID, *, from_: datetime, to: datetime) -> list[CheckTickTotal]:
        rows = await self._read("check_tick_totals", tenant_id=tenant_id, from_at=from_, to_at=to)
        return [CheckTickTotal(row["check_id"], CheckOutcome(row["outcome"]), int(row["count"])) for row in rows]

    async def check_transition_list(
        self, tenant_id: UUID, check_id: UUID, *, before: int | None = None, limit: int
    ) -> list[tuple[int, CheckTransition]]:
        values = {"check_id": check_id, "before": _LAST_NUMBER if before is None else before, "limit": limit}
        rows = await self._read("check_transition_list", tenant_id=tenant_id, **values)
        return [(row["number"], transition_from_row(row)) for row in rows]

    async def check_state_counts(self) -> dict[str, int]:
        return {row["state"]: row["count"] for row in await self._read("check_state_counts")}

    async def check_prune(self, *, before: datetime, keep: int, limit: int) -> int:
        values = {"before_at": before, "limit": limit}
        count = await self._change("check_prune_pings", keep=keep, **values)
        count += await self._change("check_prune_ticks", **values)
        return count + await self._change("check_prune_transitions", **values)
