"""The tenant directory: cached weights and quotas, refreshed after notices, and kept while the database is unavailable."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from everbeat.core.errors import StoreUnavailable
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tenants import Tenant, TenantQuotas
from everbeat.services.tenants import TenantDirectory
from everbeat.store.base import Store
from everbeat.store.values import Notice, TenantWrite
from tests.factories import NOW, node_heartbeat


class FakeClock:
    """A monotonic clock that tests advance."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def tenant(name: str = "billing", weight: float = 3.0, **quotas: int) -> Tenant:
    return Tenant(id=uuid4(), name=name, weight=weight, quotas=TenantQuotas(**quotas), created_at=NOW, updated_at=NOW)


async def write(store: Store, *tenants: Tenant) -> None:
    assert await store.tenant_write([TenantWrite(one) for one in tenants], now=NOW)


async def test_it_returns_weights_and_quotas_of_all_tenants(store: Store) -> None:
    many = [tenant(f"t{number:04}", max_running=number) for number in range(1100)]
    await write(store, *many)
    directory = TenantDirectory(store)
    await directory.refresh()
    assert [directory.max_running_of(one.id) for one in many] == list(range(1100))
    assert directory.weight_of(many[7].id) == 3.0
    assert directory.name_of(many[7].id) == "t0007"


async def test_an_unknown_tenant_has_weight_one_and_no_limits(store: Store) -> None:
    directory = TenantDirectory(store)
    assert (directory.weight_of(uuid4()), directory.quotas_of(uuid4()), directory.api_nodes) == (1.0, TenantQuotas(), 1)
    await directory.refresh()
    assert directory.quotas_of(DEFAULT_TENANT) == TenantQuotas()


async def test_it_is_refreshed_after_a_notice_or_after_refresh_seconds(store: Store) -> None:
    clock = FakeClock()
    directory = TenantDirectory(store, refresh_seconds=5, monotonic=clock)
    await directory.refresh()
    first, second = tenant("first"), tenant("second")
    await write(store, first)
    await directory.refresh()
    assert directory.name_of(first.id) is None
    store.publish(Notice.TENANTS)
    await directory.refresh()
    assert directory.name_of(first.id) == "first"
    await write(store, second)
    clock.now += 5
    await directory.refresh()
    assert directory.name_of(second.id) == "second"


async def test_a_refresh_waits_for_the_read_that_a_change_has_started(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = TenantDirectory(store)
    await directory.refresh()
    first = tenant("first")
    await write(store, first)
    reading, may_end, read = asyncio.Event(), asyncio.Event(), store.pause_list

    async def slow_read(*args: Any, **more: Any) -> Any:
        reading.set()
        await may_end.wait()
        return await read(*args, **more)

    monkeypatch.setattr(store, "pause_list", slow_read)
    store.publish(Notice.TENANTS)
    loop = asyncio.create_task(directory.run_once())
    await reading.wait()
    claim = asyncio.create_task(directory.refresh())
    await asyncio.sleep(0)
    assert not claim.done()
    may_end.set()
    await claim
    assert directory.name_of(first.id) == "first"
    await loop


async def test_it_counts_the_live_nodes_with_the_api_role(store: Store) -> None:
    for roles in (("api",), ("api", "scheduler"), ("scheduler",)):
        await store.partition_renew(node_heartbeat(uuid4(), roles=roles), frozenset(), now=NOW)
    directory = TenantDirectory(store)
    await directory.refresh(now=NOW)
    assert directory.api_nodes == 2


async def test_a_failed_refresh_keeps_the_old_values(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    known = tenant()
    await write(store, known)
    directory = TenantDirectory(store)
    await directory.refresh()

    async def away(**_more: object) -> list[Tenant]:
        raise StoreUnavailable("unavailable")

    monkeypatch.setattr(store, "tenant_list", away)
    store.publish(Notice.TENANTS)
    with pytest.raises(StoreUnavailable):
        await directory.refresh()
    assert directory.weight_of(known.id) == 3.0
    assert directory.is_stale
