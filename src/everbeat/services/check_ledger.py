"""The ledger of checks: for the API and the dashboard, and counted for the audit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from everbeat.core.check_ledger import CheckLedgerEntry, clip, computed_entries, merged
from everbeat.core.check_states import missing_instants
from everbeat.core.checks import Check, CheckOutcome
from everbeat.core.errors import InvalidInput
from everbeat.core.timeline import TimelineCache
from everbeat.services.audit import audit_window
from everbeat.services.check_changes import expectation_of
from everbeat.services.time_slices import TimeSlices
from everbeat.store.base import Store

_MICROSECOND = timedelta(microseconds=1)
_DAY = timedelta(days=1)
_PAGE = 500


class CheckCount(msgspec.Struct):
    """The expected pings of a window, and what became of them."""

    expected: int = 0
    pinged: int = 0
    failed: int = 0
    missed: int = 0
    skipped: int = 0

    def add(self, outcome: CheckOutcome, count: int) -> None:
        self.expected += count
        setattr(self, outcome.value, getattr(self, outcome.value) + count)

    def add_all(self, other: CheckCount) -> None:
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))


class CheckLedgerService:
    def __init__(self, store: Store, timelines: TimelineCache) -> None:
        self._store = store
        self._timelines = timelines

    async def entries(
        self,
        check: Check,
        moment: datetime,
        *,
        from_: datetime | None = None,
        to: datetime | None = None,
        after: datetime | None = None,
        limit: int,
    ) -> list[CheckLedgerEntry]:
        """Return the entries in [from_, to), oldest first, after the given one. Default: from one day ago to one day ahead."""
        start = from_ if from_ is not None else max(check.created_at, moment - _DAY)
        end = to if to is not None else moment + _DAY
        if end <= start:
            raise InvalidInput.of("to", "must be later than from")
        recorded = await self._store.check_tick_list(
            check.tenant_id, check.id, from_=start if after is None else max(start, after + _MICROSECOND), to=end, limit=limit
        )
        if after is not None:
            start = max(start, after + _MICROSECOND)
            recorded = [tick for tick in recorded if tick.scheduled_for > after]
        computed = computed_entries(check, expectation_of(check, self._timelines), moment, start=start, end=end)
        return merged(recorded, computed, limit)

    async def recent(
        self, tenant_id: UUID, checks: Sequence[Check], moment: datetime, *, from_: datetime, limit: int
    ) -> dict[UUID, list[CheckLedgerEntry]]:
        """Return the newest entries of several checks up to now."""
        if not checks:
            return {}
        found = await self._store.check_tick_recent(tenant_id, [check.id for check in checks], from_=from_, limit=limit)
        entries = {}
        for check in checks:
            computed = computed_entries(check, expectation_of(check, self._timelines), moment, start=from_, end=moment)
            entries[check.id] = merged(found[check.id], computed, limit + 2)[-limit:]
        return entries

    async def audit(
        self, tenant_id: UUID, *, from_: datetime | None, to: datetime | None, now: datetime | None = None
    ) -> CheckCount:
        """Count the expected pings of all checks of a tenant. Missed ones that are not recorded yet follow from the rules."""
        moment = await self._store.clock(now=now)
        start, end = audit_window(from_, to, moment)
        end += _MICROSECOND if to is None or to > moment else timedelta(0)
        count = CheckCount()
        for one in await self._store.check_tick_totals(tenant_id, from_=start, to=end):
            count.add(one.outcome, one.count)
        name: str | None = None
        slices = TimeSlices()
        while True:
            page = await self._store.check_list(tenant_id, after_name=name, limit=_PAGE)
            for check in page:
                await slices.pause()
                expectation = expectation_of(check, self._timelines)
                missing = clip(missing_instants(check.position, expectation, moment), expectation, start, end)
                if missing is not None:
                    count.add(CheckOutcome.MISSED, missing.number)
            if len(page) < _PAGE:
                return count
            name = page[-1].spec.name

    async def audit_all(self, *, from_: datetime | None, to: datetime | None, now: datetime | None = None) -> CheckCount:
        """Count the expected pings of all tenants."""
        total = CheckCount()
        name: str | None = None
        while tenants := await self._store.tenant_list(after_name=name, limit=_PAGE):
            for tenant in tenants:
                total.add_all(await self.audit(tenant.id, from_=from_, to=to, now=now))
            name = tenants[-1].name
            if len(tenants) < _PAGE:
                break
        return total
