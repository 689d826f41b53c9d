"""tenant_list, tenant_find, tenant_write, idempotent_response_find."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from everbeat.core.errors import StoreRefused
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tenants import Tenant, TenantQuotas
from everbeat.store.base import Store
from everbeat.store.values import AuditLogFilter, IdempotentResponse, TenantWrite
from tests.factories import NOW, OTHER_TENANT, make_audit_entry, seconds

RESPONSE = IdempotentResponse(key="k", fingerprint=b"f", status=201, body=b"{}")


def make_tenant(name: str = "billing", **more: Any) -> Tenant:
    return Tenant(**{"id": uuid4(), "name": name, "created_at": NOW, "updated_at": NOW, **more})


def changed(tenant: Tenant, **more: Any) -> Tenant:
    return msgspec.structs.replace(tenant, revision=tenant.revision + 1, updated_at=NOW + seconds(1), **more)


async def write(store: Store, *tenants: Tenant) -> None:
    assert await store.tenant_write([TenantWrite(one) for one in tenants], now=NOW)


async def test_tenant_list_initially_returns_a_default_tenant_without_limits(store: Store) -> None:
    (tenant,) = await store.tenant_list(after_name=None, limit=10)
    assert (tenant.id, tenant.name, tenant.weight, tenant.quotas) == (DEFAULT_TENANT, "default", 1.0, TenantQuotas())


async def test_tenant_list_pages_by_name(store: Store) -> None:
    await write(store, *(make_tenant(name) for name in ("a", "C", "b")))
    assert [one.name for one in await store.tenant_list(after_name=None, limit=2)] == ["C", "a"]
    assert [one.name for one in await store.tenant_list(after_name="a", limit=9)] == ["b", "default"]


async def test_tenant_find_accepts_ids_and_names_and_returns_each_tenant_once(store: Store) -> None:
    one, two = make_tenant("one"), make_tenant("two", weight=2.5)
    await write(store, one, two)
    found = await store.tenant_find(ids=[one.id, two.id, uuid4()], names=["two", "three"])
    assert sorted(found, key=lambda tenant: tenant.name) == [one, two]


async def test_tenant_write_stores_every_quota(store: Store) -> None:
    quotas = TenantQuotas(
        max_schedules=1,
        max_ready=2,
        max_running=3,
        submits_per_second=0.5,
        max_payload_bytes=4,
        min_priority=5,
        retention_days=6.5,
    )
    tenant = make_tenant(quotas=quotas, weight=0.25)
    await write(store, tenant)
    assert await store.tenant_find(ids=[tenant.id]) == [tenant]
    free = changed(tenant, quotas=TenantQuotas(), name="renamed")
    assert await store.tenant_write([TenantWrite(free, expected=1)], now=NOW)
    assert await store.tenant_find(ids=[tenant.id]) == [free]


async def test_tenant_write_with_another_revision_changes_nothing(store: Store) -> None:
    tenant, unrelated = make_tenant(), make_tenant("unrelated")
    await write(store, tenant, unrelated)
    writes = [TenantWrite(changed(unrelated, weight=5.0), expected=1), TenantWrite(changed(tenant, weight=5.0), expected=2)]
    assert not await store.tenant_write(writes, audit_log=[make_audit_entry()], now=NOW)
    assert [one.weight for one in await store.tenant_find(ids=[tenant.id, unrelated.id])] == [1.0, 1.0]
    assert await store.audit_log_list(None, AuditLogFilter(), before=None, limit=10) == []


@pytest.mark.parametrize("expected", [None, 1], ids=["new", "renamed"])
async def test_tenant_write_with_a_taken_name_changes_nothing(store: Store, expected: int | None) -> None:
    tenant = make_tenant()
    await write(store, tenant)
    other = make_tenant(tenant.name) if expected is None else changed(tenant, name="default")
    assert not await store.tenant_write([TenantWrite(other, expected=expected)], now=NOW)
    assert await store.tenant_find(names=[tenant.name]) == [tenant]


@pytest.mark.parametrize("more", [{"weight": 0.0}, {"quotas": TenantQuotas(max_ready=-1)}], ids=["weight", "quota"])
async def test_tenant_write_of_invalid_values_is_rejected(store: Store, more: dict[str, Any]) -> None:
    with pytest.raises(StoreRefused):
        await store.tenant_write([TenantWrite(make_tenant(**more))], now=NOW)


async def test_tenant_write_writes_the_audit_log_in_the_same_transaction(store: Store) -> None:
    entry = make_audit_entry(action="tenant.create", subject="billing")
    assert await store.tenant_write([TenantWrite(make_tenant())], audit_log=[entry], now=NOW)
    (found,) = await store.audit_log_list(None, AuditLogFilter(), before=None, limit=10)
    assert found == msgspec.structs.replace(entry, at=NOW)


async def test_tenant_write_stores_one_response_for_each_key_and_owner(store: Store) -> None:
    assert await store.tenant_write([TenantWrite(make_tenant("one"))], response=RESPONSE, now=NOW)
    assert not await store.tenant_write([TenantWrite(make_tenant("two"))], response=RESPONSE, now=NOW)
    assert await store.tenant_write(
        [TenantWrite(make_tenant("three"))], response_tenant_id=OTHER_TENANT, response=RESPONSE, now=NOW
    )
    assert [one.name for one in await store.tenant_find(names=["one", "two"])] == ["one"]


async def test_idempotent_response_find_returns_a_response_for_a_day(store: Store) -> None:
    assert await store.tenant_write([TenantWrite(make_tenant())], response=RESPONSE, now=NOW)
    assert await store.idempotent_response_find(DEFAULT_TENANT, "k", now=NOW + seconds(86_399)) == RESPONSE
    assert await store.idempotent_response_find(DEFAULT_TENANT, "k", now=NOW + seconds(86_401)) is None
    assert await store.idempotent_response_find(OTHER_TENANT, "k", now=NOW) is None
    assert await store.idempotent_response_find(UUID(int=9), "other", now=NOW) is None
