"""endpoint_list, endpoint_find, endpoint_write, endpoint_delete and server_secret."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec

from everbeat.core.endpoints import WebhookEndpoint
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.base import Store
from everbeat.store.values import AuditLogFilter
from tests.factories import NOW, OTHER_TENANT, make_audit_entry


def endpoint(name: str = "billing", **more: Any) -> WebhookEndpoint:
    fields: dict[str, Any] = {
        "tenant_id": DEFAULT_TENANT,
        "url": "https://example.org/",
        "method": None,
        "headers": {"X-Ä": "ü"},
        "max_concurrent": 3,
        "rate_per_second": 0.5,
        "secret": "whsec_a",
        "old_secret": "whsec_b",
        "old_secret_until": NOW + timedelta(hours=1),
        "revision": 1,
        "created_at": NOW,
        "updated_at": NOW,
    }
    return WebhookEndpoint(name=name, **{**fields, **more})


async def test_endpoint_write_stores_every_field(store: Store) -> None:
    given = endpoint()
    assert await store.endpoint_write(given, expected=None, now=NOW)
    assert await store.endpoint_find([(DEFAULT_TENANT, "billing")]) == [given]
    plain = endpoint("plain", max_concurrent=None, rate_per_second=None, old_secret=None, old_secret_until=None, method="PUT")
    assert await store.endpoint_write(plain, expected=None, now=NOW)
    assert await store.endpoint_list(DEFAULT_TENANT, after_name=None, limit=10) == [given, plain]
    assert await store.endpoint_list(DEFAULT_TENANT, after_name="billing", limit=10) == [plain]


async def test_endpoint_write_changes_only_the_expected_revision(store: Store) -> None:
    await store.endpoint_write(endpoint(), expected=None, now=NOW)
    changed = endpoint(url="https://example.com/", revision=2)
    entry = make_audit_entry(action="endpoint.put")
    assert not await store.endpoint_write(changed, expected=7, audit_log=[entry], now=NOW)
    assert not await store.endpoint_write(changed, expected=None, audit_log=[entry], now=NOW)
    assert await store.audit_log_list(DEFAULT_TENANT, AuditLogFilter(), before=None, limit=10) == []
    results = await asyncio.gather(*(store.endpoint_write(changed, expected=1, now=NOW) for _ in range(4)))
    assert sorted(results) == [False, False, False, True]
    assert await store.endpoint_find([(DEFAULT_TENANT, "billing")]) == [changed]


async def test_endpoint_find_returns_endpoints_of_several_tenants(store: Store) -> None:
    ours, theirs = endpoint(), msgspec.structs.replace(endpoint(), tenant_id=OTHER_TENANT, url="https://example.net/")
    for one in (ours, theirs):
        await store.endpoint_write(one, expected=None, now=NOW)
    keys = [(OTHER_TENANT, "billing"), (DEFAULT_TENANT, "billing"), (DEFAULT_TENANT, "none")]
    assert {one.tenant_id: one for one in await store.endpoint_find(keys)} == {DEFAULT_TENANT: ours, OTHER_TENANT: theirs}
    assert await store.endpoint_find([]) == []


async def test_endpoint_list_and_endpoint_delete_concern_one_tenant(store: Store) -> None:
    await store.endpoint_write(endpoint(), expected=None, now=NOW)
    assert await store.endpoint_list(OTHER_TENANT, after_name=None, limit=10) == []
    assert await store.endpoint_delete(OTHER_TENANT, "billing", now=NOW) == 0
    assert await store.endpoint_delete(DEFAULT_TENANT, "billing", now=NOW) == 1
    assert await store.endpoint_find([(DEFAULT_TENANT, "billing")]) == []


async def test_endpoint_delete_of_a_missing_endpoint_changes_nothing(store: Store) -> None:
    assert await store.endpoint_delete(DEFAULT_TENANT, "none", audit_log=[make_audit_entry()], now=NOW) == 0


async def test_server_secret_is_the_same_for_all(store: Store) -> None:
    found = await asyncio.gather(*(store.server_secret("callbacks", str(number)) for number in range(5)))
    assert len(set(found)) == 1
    assert await store.server_secret("callbacks", "later") == found[0]
    assert await store.server_secret("other", "later") == "later"
