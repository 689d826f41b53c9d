"""/v1/tenants: list, create, read, change."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from everbeat.core.schedules import DEFAULT_TENANT
from tests.api.conftest import ON_BOTH_STORES, fields_of, problem_of

pytestmark = ON_BOTH_STORES


async def create(client: httpx.AsyncClient, name: str = "billing", **more: Any) -> dict[str, Any]:
    response = await client.post("/v1/tenants", json={"name": name, **more})
    assert response.status_code == 201, response.text
    tenant: dict[str, Any] = response.json()
    assert response.headers["location"] == f"/v1/tenants/{tenant['id']}"
    return tenant


async def test_it_creates_reads_and_lists(client: httpx.AsyncClient) -> None:
    quotas: dict[str, Any] = {
        "max_ready": 7,
        "max_running": 2,
        "submits_per_second": 0.5,
        "max_payload_bytes": 1000,
        "min_priority": 60,
    }
    tenant = await create(client, weight=3, **quotas)
    assert quotas.items() <= tenant.items()
    assert (tenant["weight"], tenant["max_schedules"], tenant["revision"]) == (3.0, 100_000, 1)
    for ref in (tenant["id"], "billing"):
        response = await client.get(f"/v1/tenants/{ref}")
        assert (response.json(), response.headers["etag"]) == (tenant, '"1"')
    items = (await client.get("/v1/tenants")).json()["items"]
    assert [one["name"] for one in items] == ["billing", "default"]
    assert items[1]["id"] == str(DEFAULT_TENANT)
    assert items[1]["max_schedules"] is None


async def test_it_pages_by_name(client: httpx.AsyncClient) -> None:
    for name in ("c", "a", "b"):
        await create(client, name)
    names, cursor = [], None
    while True:
        page = (await client.get("/v1/tenants", params={"limit": 2, **({"cursor": cursor} if cursor else {})})).json()
        names += [one["name"] for one in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert names == ["a", "b", "c", "default"]


async def test_a_taken_name_is_a_conflict(client: httpx.AsyncClient) -> None:
    await create(client)
    problem_of(await client.post("/v1/tenants", json={"name": "billing"}), 409)
    other = await create(client, "other")
    problem_of(await client.patch(f"/v1/tenants/{other['id']}", json={"name": "billing"}), 409)


async def test_the_same_key_gives_the_same_tenant(client: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "k"}
    first, again = [await client.post("/v1/tenants", json={"name": "one"}, headers=headers) for _ in range(2)]
    assert (first.status_code, first.content) == (again.status_code, again.content)
    assert fields_of(await client.post("/v1/tenants", json={"name": "two"}, headers=headers)) == ["Idempotency-Key"]


async def test_it_changes_only_the_given_fields(client: httpx.AsyncClient) -> None:
    tenant = await create(client, max_ready=7, max_running=2)
    changed = (await client.patch("/v1/tenants/billing", json={"max_ready": None, "weight": 2.5})).json()
    assert changed == {**tenant, "max_ready": None, "weight": 2.5, "revision": 2, "updated_at": changed["updated_at"]}
    same = await client.patch("/v1/tenants/billing", json={"weight": 2.5})
    assert same.json()["revision"] == 2
    assert (await client.patch("/v1/tenants/default", json={"max_schedules": 5})).json()["max_schedules"] == 5


async def test_a_change_of_another_revision_is_refused(client: httpx.AsyncClient) -> None:
    await create(client)
    assert (await client.patch("/v1/tenants/billing", json={"weight": 2}, headers={"If-Match": '"1"'})).status_code == 200
    problem = problem_of(await client.patch("/v1/tenants/billing", json={"weight": 3}, headers={"If-Match": "1"}), 409)
    assert problem["type"].endswith("revision-mismatch")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "all"}, "name"),
        ({"name": str(DEFAULT_TENANT)}, "name"),
        ({"name": "a", "weight": 0}, "weight"),
        ({"name": "a", "weight": None}, "weight"),
        ({"name": "a", "max_ready": -1}, "max_ready"),
        ({"name": "a", "max_running": 2**31}, "max_running"),
        ({"name": "a", "submits_per_second": 0}, "submits_per_second"),
        ({"name": "a", "max_payload_bytes": 11 * 1024 * 1024}, "max_payload_bytes"),
        ({"name": "a", "min_priority": -1}, "min_priority"),
        ({"name": "a", "min_priority": 1001}, "min_priority"),
        ({"name": "a", "color": "red"}, "color"),
    ],
)
async def test_it_refuses_invalid_values(client: httpx.AsyncClient, body: dict[str, Any], field: str) -> None:
    assert fields_of(await client.post("/v1/tenants", json=body)) == [field]


async def test_an_unknown_tenant_is_not_found(client: httpx.AsyncClient) -> None:
    for ref in ("unknown", "a%20b", "00000000-0000-0000-0000-000000000009"):
        problem_of(await client.get(f"/v1/tenants/{ref}"), 404)
        problem_of(await client.patch(f"/v1/tenants/{ref}", json={}), 404)
        problem_of(await client.get(f"/v1/tenants/{ref}/keys"), 404)
        problem_of(await client.post(f"/v1/tenants/{ref}/keys", json={"scopes": ["read"]}), 404)
    problem_of(await client.patch("/v1/tenants/default", json={"name": "mine"}), 409)
