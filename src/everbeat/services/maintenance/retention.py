"""Retention: removes the rows of all tables that are past their retention. The pruner and `everbeat prune` use it.

Each step is one short transaction, so that nothing waits for it for long. On PostgreSQL a month is dropped as a table. On
SQLite rows are deleted in steps whose size adapts to their duration, with pauses as long as the steps, because a file has one
writer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar
from uuid import UUID

from everbeat.core.checks import MAX_PINGS_KEPT
from everbeat.core.retention import MONTH_TABLES, RetentionPeriods, TenantPeriods, next_step_size
from everbeat.core.workers import MAX_WORKERS_KEPT, RETENTION_SECONDS
from everbeat.services.events import Emit, Pruned, ignore
from everbeat.services.service_levels import RETENTION as LEVEL_RETENTION
from everbeat.store.base import Store

T = TypeVar("T")

_BUDGET_SECONDS = 2.0
# Signals are judged within seconds. Those of a tenant without alert rules are not needed at all.
_SIGNALS_KEPT_SECONDS = 3600.0
_TENANT_INTERVAL = timedelta(days=1)
_TENANTS_READ = 1000


class Removable(NamedTuple):
    """What would be removed from a table. `month`: None for a table that is not kept by month. `rows`: None if unknown."""

    table: str
    month: str | None
    rows: int | None
    bytes: int | None
    reason: str


class Retention:
    """Removes in steps. A caller repeats `step` while it returns True."""

    def __init__(
        self,
        store: Store,
        periods: RetentionPeriods,
        *,
        drops_months: bool = True,
        batch_size: int = 5000,
        budget_seconds: float = _BUDGET_SECONDS,
        emit: Emit = ignore,
    ) -> None:
        self._store = store
        self._periods = periods
        self._drops_months = drops_months
        self._batch_size = batch_size
        self._step_size = batch_size
        self._budget_seconds = budget_seconds
        self._emit = emit
        self._tenant_position: str | None = None
        self._is_reading_tenants = False
        self._tenants_due_at: datetime | None = None

    async def step(self, now: datetime | None = None) -> bool:
        """Remove a limited part of every table. Returns whether there is more to remove."""
        moment = await self._store.clock(now=now)
        has_more = await self._remove_rows(moment)
        if self._drops_months:
            has_more |= await self._remove_months(moment)
        return await self._remove_rows_of_tenants(moment) or has_more

    async def _remove_rows(self, moment: datetime) -> bool:
        store, periods, limit = self._store, self._periods, self._batch_size
        pruned = {
            "responses": await store.idempotent_response_prune(limit=limit, now=moment),
            "sessions": await store.session_prune(limit=limit, now=moment),
            "keys": await store.task_key_prune(limit=limit, now=moment),
            "workers": await store.worker_prune(
                unseen_seconds=RETENTION_SECONDS, keep=MAX_WORKERS_KEPT, limit=limit, now=moment
            ),
            "operations": await store.bulk_prune(finished_seconds=periods.history.total_seconds(), limit=limit, now=moment),
            "pauses": await store.pause_prune(ended_seconds=periods.ledger.total_seconds(), limit=limit, now=moment),
            "former rules": await store.past_rule_prune(before=moment - periods.ledger, limit=limit),
            "findings": await store.finding_prune(age_seconds=periods.ledger.total_seconds(), limit=limit, now=moment),
            "records of checks": await store.check_prune(before=moment - periods.ledger, keep=MAX_PINGS_KEPT, limit=limit),
            "service levels": await store.service_level_prune(before=moment - LEVEL_RETENTION, limit=limit),
            "incidents": await store.incident_prune(resolved_seconds=periods.ledger.total_seconds(), limit=limit, now=moment),
            "alert signals": await store.alert_signal_prune(old_seconds=_SIGNALS_KEPT_SECONDS, limit=limit, now=moment),
            "audit log entries": await store.audit_log_prune(before=moment - periods.audit_log, limit=limit),
        }
        if periods.dead_letters is not None:
            pruned["dead letters"] = await store.dead_prune(before=moment - periods.dead_letters, limit=limit)
        for what, count in pruned.items():
            self._report(what, count)
        return any(count >= limit for count in pruned.values())

    async def _remove_months(self, moment: datetime) -> bool:
        has_more = False
        for tables, before in self._periods.month_cutoffs(moment).items():
            deadline = time.monotonic() + self._budget_seconds
            while True:
                work = self._store.month_prune(before=before, limit=self._step_size, tables=tables)
                count = await self._timed(work)
                self._report("months" if self._store.dialect == "postgres" else "rows of months", count)
                if not count:
                    break
                if time.monotonic() > deadline:
                    has_more = True
                    break
        return has_more

    async def _remove_rows_of_tenants(self, moment: datetime) -> bool:
        """Read the months once a day, and delete the old rows of tenants with a shorter retention."""
        if not self._is_reading_tenants:
            if self._tenants_due_at is not None and moment < self._tenants_due_at:
                return False
            self._tenants_due_at = moment + _TENANT_INTERVAL
        periods = await self._periods_of_tenants()
        self._is_reading_tenants = bool(periods)
        deadline = time.monotonic() + self._budget_seconds
        while self._is_reading_tenants and time.monotonic() < deadline:
            work = self._store.tenant_prune(periods, position=self._tenant_position, limit=self._step_size, now=moment)
            step = await self._timed(work)
            self._report(f"{step.table} of tenants", step.deleted)
            self._tenant_position = step.position
            self._is_reading_tenants = step.position is not None
        return self._is_reading_tenants

    async def _periods_of_tenants(self) -> dict[UUID, TenantPeriods]:
        """The periods of the tenants with a shorter retention than the cluster."""
        found: dict[UUID, TenantPeriods] = {}
        after: str | None = None
        while True:
            page = await self._store.tenant_list(after_name=after, limit=_TENANTS_READ)
            for tenant in page:
                own = self._periods.of_tenant(tenant.quotas.retention_days)
                if own is not None:
                    found[tenant.id] = own
            if len(page) < _TENANTS_READ:
                return found
            after = page[-1].name

    async def _timed(self, work: Awaitable[T]) -> T:
        """Run a step. On SQLite, adapt the size of the next step, and leave the writer to others as long as this one took."""
        started = time.monotonic()
        result = await work
        if self._store.dialect == "sqlite":
            seconds = time.monotonic() - started
            self._step_size = next_step_size(self._step_size, seconds, self._batch_size)
            await asyncio.sleep(seconds)
        return result

    def _report(self, what: str, count: int) -> None:
        if count:
            self._emit(Pruned(what, count))

    # What would be removed

    async def removable(self, now: datetime | None = None) -> list[Removable]:
        """What is past its retention now. Nothing is changed."""
        moment = await self._store.clock(now=now)
        before = {table: at for tables, at in self._periods.month_cutoffs(moment).items() for table in tables}
        found = [
            Removable(one.table, one.month, one.rows, one.bytes, "retention")
            for one in await self._store.month_sizes(before=before)
        ]
        counts = await self._store.prune_count(
            periods=self._periods,
            workers_unseen_seconds=RETENTION_SECONDS,
            service_levels=LEVEL_RETENTION,
            now=moment,
        )
        found += [Removable(table, None, count, None, "retention") for table, count in counts.items() if count]
        return found + await self._removable_of_tenants(moment)

    async def _removable_of_tenants(self, moment: datetime) -> list[Removable]:
        periods = await self._periods_of_tenants()
        counts = dict.fromkeys(MONTH_TABLES, 0)
        position: str | None = None
        while periods:
            step = await self._store.tenant_prune(
                periods, position=position, limit=self._batch_size, now=moment, is_dry_run=True
            )
            if step.table:
                counts[step.table] += step.deleted
            position = step.position
            if position is None:
                break
        return [Removable(table, None, count, None, "retention of a tenant") for table, count in counts.items() if count]
