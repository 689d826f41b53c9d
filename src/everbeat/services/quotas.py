"""Quotas: what a tenant may have, held against what there is.

Nothing is counted for good: what is running, ready or registered is derived from the rows themselves, so that no crash and
no second node can leave a wrong number behind. Two are kept in memory and only for tenants that have them:

submits_per_second: each node that answers requests grants its part of the rate, one second's worth at once.
max_ready: the number of ready tasks, counted at most a second ago, and what this node added since. Nobody is refused on an
old number: what would be refused is counted again first. So it is exact for whoever comes one after the other to one node;
across nodes it is right within that second.
"""

from __future__ import annotations

import time
from asyncio import Lock
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from uuid import UUID

from everbeat.core.errors import QuotaExceeded
from everbeat.core.rates import Rate, admit
from everbeat.core.tasks import NewTask
from everbeat.core.tenants import TenantQuotas
from everbeat.services.tenants import TenantDirectory
from everbeat.store.base import Store

_COUNT_SECONDS = 1.0
_RETRY_SECONDS = 1.0
_MAX_REMEMBERED = 20_000
_NO_LIMITS = TenantQuotas()


class _Ready:
    """Ready tasks of a tenant: those counted, those this node wrote since the counting began, and those it is writing."""

    __slots__ = ("counted", "counted_at", "counting", "since", "under_way")

    def __init__(self) -> None:
        self.counted = 0
        self.counted_at = float("-inf")
        self.since = 0
        self.under_way = 0
        self.counting = Lock()

    @property
    def total(self) -> int:
        return self.counted + self.since + self.under_way


class QuotaReservation:
    """Room for tasks that are being written; it is given up by having written them, or by having failed to."""

    def __init__(self, ready: _Ready, count: int) -> None:
        self._ready = ready
        self._count = count

    def done(self) -> None:
        """Counted as written, also when nobody knows: before anybody is refused for it, the truth is counted."""
        self._ready.under_way -= self._count
        self._ready.since += self._count


class QuotaService:
    """Without a directory there are no limits."""

    def __init__(
        self, store: Store, directory: TenantDirectory | None = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._directory = directory
        self._monotonic = monotonic
        self._full_at: OrderedDict[UUID, float] = OrderedDict()
        self._ready: OrderedDict[UUID, _Ready] = OrderedDict()

    async def of(self, tenant_id: UUID) -> TenantQuotas:
        if self._directory is None:
            return _NO_LIMITS
        await self._directory.refresh_if_changed()
        return self._directory.quotas_of(tenant_id)

    async def check_payloads(
        self, tenant_id: UUID, payloads: Sequence[bytes | str], known: Collection[bytes | str] = ()
    ) -> None:
        """Refuse payloads larger than the tenant may send; those that are known already may stay as they are."""
        limit = (await self.of(tenant_id)).max_payload_bytes
        if limit is None:
            return
        for payload in payloads:
            size = len(payload.encode() if isinstance(payload, str) else payload)
            if size > limit and payload not in known:
                raise QuotaExceeded(f"max_payload_bytes: the payload has {size} bytes of at most {limit}")

    # Submitting

    @asynccontextmanager
    async def reserve(
        self, tenant_id: UUID, tasks: Sequence[NewTask], *, is_rated: bool = True, now: datetime | None = None
    ) -> AsyncIterator[None]:
        """Around the writing of new tasks: they are let in, or all of them are refused."""
        reserve_ticks = await self._admit(tenant_id, tasks, is_rated, now)
        try:
            yield
        finally:
            if reserve_ticks is not None:
                reserve_ticks.done()

    async def _admit(
        self, tenant_id: UUID, tasks: Sequence[NewTask], is_rated: bool, now: datetime | None
    ) -> QuotaReservation | None:
        quotas = await self.of(tenant_id)
        if quotas is _NO_LIMITS or (quotas.submits_per_second is None and quotas.max_ready is None):
            return None
        rated = len(tasks) if is_rated else 0
        self._take(tenant_id, quotas.submits_per_second, rated)
        if quotas.max_ready is None:
            return None
        try:
            return await self._reserve_ready(tenant_id, quotas.max_ready, await self._ready_of(tasks, now), now)
        except BaseException:
            self._charge(tenant_id, quotas.submits_per_second, -rated)
            raise

    def _rate(self, per_second: float) -> Rate:
        nodes = 1 if self._directory is None else self._directory.api_nodes
        return Rate(per_second / nodes, max(1.0, per_second / nodes))

    def _take(self, tenant_id: UUID, per_second: float | None, amount: int) -> None:
        if per_second is None or not amount:
            return
        rate, now = self._rate(per_second), self._monotonic()
        # What is larger than a burst has to wait for a full bucket, and leaves a debt.
        wait = admit(rate, self._full_at.get(tenant_id, now), now, min(float(amount), rate.burst)).wait_seconds
        if wait:
            raise QuotaExceeded(f"submits_per_second: more than {per_second:g} tasks a second", wait)
        self._charge(tenant_id, per_second, amount)

    def _charge(self, tenant_id: UUID, per_second: float | None, amount: int) -> None:
        if per_second is None or not amount:
            return
        now = self._monotonic()
        full_at = max(self._full_at.get(tenant_id, now), now) + amount / self._rate(per_second).per_second
        self._full_at[tenant_id] = full_at
        self._full_at.move_to_end(tenant_id)
        if len(self._full_at) > _MAX_REMEMBERED:
            self._full_at.popitem(last=False)

    async def _ready_of(self, tasks: Sequence[NewTask], now: datetime | None) -> int:
        """How many of these are ready as soon as they are written. The database's clock tells, if times are given."""
        timed = [task.run_at for task in tasks if task.run_at is not None]
        at_once = sum(task.run_at is None and not task.delay_seconds for task in tasks)
        if not timed:
            return at_once
        moment = await self._store.clock(now=now)
        return at_once + sum(run_at <= moment for run_at in timed)

    async def _reserve_ready(self, tenant_id: UUID, limit: int, count: int, now: datetime | None) -> QuotaReservation | None:
        if not count:
            return None
        if count > limit:
            raise QuotaExceeded(f"max_ready: {count} tasks at once, of which at most {limit} may be ready")
        ready = await self._counted(tenant_id, limit, count, now)
        if ready.total + count > limit:
            raise QuotaExceeded(f"max_ready: {ready.total} of {limit} tasks are ready already", _RETRY_SECONDS)
        ready.under_way += count
        return QuotaReservation(ready, count)

    # Ticks

    async def has_ready_limits(self) -> bool:
        """Whether any tenant has a limit that ticks can meet."""
        if self._directory is None:
            return False
        await self._directory.refresh_if_changed()
        return bool(self._directory.with_max_ready)

    async def remaining_ready(self, wanted: Mapping[UUID, int], *, now: datetime | None = None) -> dict[UUID, int]:
        """How many more tasks of each of these tenants may become ready; those without a limit are not in the answer."""
        if self._directory is None:
            return {}
        limits = {tenant_id: self._directory.quotas_of(tenant_id).max_ready or 0 for tenant_id in wanted}
        limits = {tenant_id: limit for tenant_id, limit in limits.items() if tenant_id in self._directory.with_max_ready}
        counted = {id_: await self._counted(id_, limit, wanted[id_], now) for id_, limit in limits.items()}
        # After all of the waiting: what others have taken meanwhile is in it.
        return {id_: max(0, limit - counted[id_].total) for id_, limit in limits.items()}

    def reserve_ticks(self, counts: Counter[UUID]) -> list[QuotaReservation]:
        """Keep room for ticks that are about to fire, as far as their tenants have limits."""
        reservations = []
        for tenant_id, count in counts.items():
            ready = self._ready.get(tenant_id)
            if ready is not None and count:
                ready.under_way += count
                reservations.append(QuotaReservation(ready, count))
        return reservations

    # Counting

    async def _counted(self, tenant_id: UUID, limit: int, wanted: int, now: datetime | None) -> _Ready:
        """A number that is young enough to admit by, and of this moment if it would refuse; stepped by hand, always."""
        ready = self._ready.get(tenant_id)
        if ready is None:
            ready = self._ready[tenant_id] = _Ready()
            self._forget()
        self._ready.move_to_end(tenant_id)
        async with ready.counting:
            is_young = self._monotonic() - ready.counted_at < _COUNT_SECONDS
            if now is not None or not is_young or ready.total + wanted > limit:
                ready.since, started = 0, self._monotonic()
                ready.counted = await self._store.task_ready_count(tenant_id, limit=limit)
                ready.counted_at = started
        return ready

    def _forget(self) -> None:
        while len(self._ready) > _MAX_REMEMBERED:
            _, oldest = next(iter(self._ready.items()))
            if oldest.under_way:  # it will be looked at again when more come
                return
            self._ready.popitem(last=False)
