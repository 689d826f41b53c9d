"""Quotas: compares the limits of tenants with what exists.

There are no stored counters. The numbers of running tasks, ready tasks and schedules are derived from the rows, so neither a
crash nor a second node can leave a wrong number behind. The state of two quotas is in memory, only for tenants that have them:

submits_per_second: each node that serves requests grants its part of the rate, with a burst of one second.
max_ready: the number of tasks that are ready, or will be within a minute, counted at most one second ago, plus what this node
has added since. No request is refused because of an old count: the tasks are counted again first. The limit is exact for
consecutive requests to one node. Across nodes it is accurate to within one second. The minute is for requests that avoid the
quota with a short delay. A task that was accepted for a later time becomes ready at that time, even above the limit.
"""

from __future__ import annotations

import time
from asyncio import Lock
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from uuid import UUID

from everbeat.core.errors import QuotaExceeded
from everbeat.core.rates import Rate, admit
from everbeat.core.tasks import NewTask
from everbeat.core.tenants import TenantQuotas
from everbeat.services.tenants import TenantDirectory
from everbeat.store.base import Store

_MAX_COUNT_AGE_SECONDS = 1.0
_RETRY_SECONDS = 1.0
_SOON = timedelta(minutes=1)
_MAX_TENANTS = 20_000
_NO_LIMITS = TenantQuotas()


class _ReadyCount:
    """The ready tasks of a tenant: those counted, those this node has written since that count, and those it is writing."""

    __slots__ = ("added", "counted", "counted_at", "lock", "pending")

    def __init__(self) -> None:
        self.counted = 0
        self.counted_at = float("-inf")
        self.added = 0
        self.pending = 0
        self.lock = Lock()

    @property
    def total(self) -> int:
        return self.counted + self.added + self.pending


class QuotaReservation:
    """Reserved capacity for tasks that are being written. It ends when the write has succeeded or failed."""

    def __init__(self, ready: _ReadyCount, count: int) -> None:
        self._ready = ready
        self._count = count

    def done(self) -> None:
        """Count the tasks as written, even if that is unknown: before a request is refused, ready tasks are counted again."""
        self._ready.pending -= self._count
        self._ready.added += self._count


class QuotaService:
    """Enforces quotas. Without a directory there are no limits."""

    def __init__(
        self, store: Store, directory: TenantDirectory | None = None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._directory = directory
        self._monotonic = monotonic
        self._full_at: OrderedDict[UUID, float] = OrderedDict()
        self._ready: OrderedDict[UUID, _ReadyCount] = OrderedDict()

    async def of(self, tenant_id: UUID) -> TenantQuotas:
        if self._directory is None:
            return _NO_LIMITS
        await self._directory.refresh_if_changed()
        return self._directory.quotas_of(tenant_id)

    async def check_payloads(self, tenant_id: UUID, payloads: Sequence[bytes], known: Collection[bytes] = ()) -> None:
        """Raise QuotaExceeded if a payload is larger than the tenant may send. Payloads in `known` are allowed."""
        limit = (await self.of(tenant_id)).max_payload_bytes
        if limit is None:
            return
        for payload in payloads:
            if len(payload) > limit and payload not in known:
                raise QuotaExceeded(f"max_payload_bytes: the payload has {len(payload)} bytes, at most {limit} are allowed")

    # Submitting

    @asynccontextmanager
    async def reserve(
        self, tenant_id: UUID, tasks: Sequence[NewTask], *, is_rate_limited: bool = True, now: datetime | None = None
    ) -> AsyncIterator[None]:
        """Admit all tasks or raise QuotaExceeded. The context must enclose the writing of the tasks."""
        reservation = await self._admit(tenant_id, tasks, is_rate_limited, now)
        try:
            yield
        finally:
            if reservation is not None:
                reservation.done()

    async def _admit(
        self, tenant_id: UUID, tasks: Sequence[NewTask], is_rate_limited: bool, now: datetime | None
    ) -> QuotaReservation | None:
        quotas = await self.of(tenant_id)
        if quotas is _NO_LIMITS or (quotas.submits_per_second is None and quotas.max_ready is None):
            return None
        rated = len(tasks) if is_rate_limited else 0
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
        # A request that is larger than the burst needs a full bucket, and leaves a debt.
        wait = admit(rate, self._full_at.get(tenant_id, now), now, min(float(amount), rate.burst)).wait_seconds
        if wait:
            raise QuotaExceeded(f"submits_per_second: more than {per_second:g} tasks per second", wait)
        self._charge(tenant_id, per_second, amount)

    def _charge(self, tenant_id: UUID, per_second: float | None, amount: int) -> None:
        if per_second is None or not amount:
            return
        now = self._monotonic()
        full_at = max(self._full_at.get(tenant_id, now), now) + amount / self._rate(per_second).per_second
        self._full_at[tenant_id] = full_at
        self._full_at.move_to_end(tenant_id)
        if len(self._full_at) > _MAX_TENANTS:
            self._full_at.popitem(last=False)

    async def _ready_of(self, tasks: Sequence[NewTask], now: datetime | None) -> int:
        """Return how many of the tasks are ready soon, according to the database's clock."""
        timed = [task.run_at for task in tasks if task.run_at is not None]
        soon_seconds = _SOON.total_seconds()
        delayed = sum(task.run_at is None and (task.delay_seconds or 0) <= soon_seconds for task in tasks)
        if not timed:
            return delayed
        soon = await self._store.clock(now=now) + _SOON
        return delayed + sum(run_at <= soon for run_at in timed)

    async def _reserve_ready(self, tenant_id: UUID, limit: int, count: int, now: datetime | None) -> QuotaReservation | None:
        if not count:
            return None
        if count > limit:
            raise QuotaExceeded(f"max_ready: the request has {count} ready tasks, at most {limit} are allowed")
        ready = await self._counted(tenant_id, limit, count, now)
        if ready.total + count > limit:
            raise QuotaExceeded(
                f"max_ready: {ready.total} tasks are ready or due within a minute, at most {limit} are allowed", _RETRY_SECONDS
            )
        ready.pending += count
        return QuotaReservation(ready, count)

    @asynccontextmanager
    async def reserve_move(
        self, tenant_id: UUID, from_: datetime, to: datetime, *, now: datetime | None = None
    ) -> AsyncIterator[None]:
        """Admit the move of a task to another time, or raise QuotaExceeded. The context must enclose the write."""
        limit = (await self.of(tenant_id)).max_ready
        reservation = None
        if limit is not None and to < from_:
            soon = await self._store.clock(now=now) + _SOON
            reservation = await self._reserve_ready(tenant_id, limit, int(to <= soon < from_), now)
        try:
            yield
        finally:
            if reservation is not None:
                reservation.done()

    async def with_allowed_priority(self, tenant_id: UUID, tasks: list[NewTask]) -> list[NewTask]:
        """Return the tasks with priorities that the tenant may use."""
        lowest = (await self.of(tenant_id)).min_priority
        if lowest is None:
            return tasks
        return [task if task.priority >= lowest else task._replace(priority=lowest) for task in tasks]

    # Ticks

    async def has_ready_limits(self) -> bool:
        """Return whether any tenant has the quota max_ready, which also applies to ticks."""
        if self._directory is None:
            return False
        await self._directory.refresh_if_changed()
        return bool(self._directory.with_max_ready)

    async def remaining_ready(self, wanted: Mapping[UUID, int], *, now: datetime | None = None) -> dict[UUID, int]:
        """Return how many more tasks of each tenant may become ready. Tenants without a limit are not in the result."""
        if self._directory is None:
            return {}
        limits = {tenant_id: self._directory.quotas_of(tenant_id).max_ready or 0 for tenant_id in wanted}
        limits = {tenant_id: limit for tenant_id, limit in limits.items() if tenant_id in self._directory.with_max_ready}
        counted = {id_: await self._counted(id_, limit, wanted[id_], now) for id_, limit in limits.items()}
        # After the last await, so that concurrent reservations are included.
        return {id_: max(0, limit - counted[id_].total) for id_, limit in limits.items()}

    def reserve_ticks(self, counts: Counter[UUID]) -> list[QuotaReservation]:
        """Reserve capacity for ticks that are about to fire, for tenants that have a limit."""
        reservations = []
        for tenant_id, count in counts.items():
            ready = self._ready.get(tenant_id)
            if ready is not None and count:
                ready.pending += count
                reservations.append(QuotaReservation(ready, count))
        return reservations

    # Counting

    async def _counted(self, tenant_id: UUID, limit: int, wanted: int, now: datetime | None) -> _ReadyCount:
        """Return a recent count, or a new one if the recent count would refuse the request. With `now`, always a new one."""
        ready = self._ready.get(tenant_id)
        if ready is None:
            ready = self._ready[tenant_id] = _ReadyCount()
            self._drop_oldest()
        self._ready.move_to_end(tenant_id)
        async with ready.lock:
            is_recent = self._monotonic() - ready.counted_at < _MAX_COUNT_AGE_SECONDS
            if now is not None or not is_recent or ready.total + wanted > limit:
                ready.added, started = 0, self._monotonic()
                ready.counted = await self._store.task_ready_count(
                    tenant_id, limit=limit, soon_seconds=_SOON.total_seconds(), now=now
                )
                ready.counted_at = started
        return ready

    def _drop_oldest(self) -> None:
        while len(self._ready) > _MAX_TENANTS:
            _, oldest = next(iter(self._ready.items()))
            if oldest.pending:  # it is dropped later
                return
            self._ready.popitem(last=False)
