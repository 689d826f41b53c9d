"""/v1/tenants/{tenant}/keys and /v1/keys/{id}: create, list, revoke; a secret is shown once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from everbeat.api.app import ApiContext
from everbeat.core.keys import is_well_formed
from everbeat.services.keys import KeyService
from everbeat.store.base import Store
from everbeat.store.values import AuditLogFilter
from tests.api.conftest import fields_of, make_client, problem_of

PATH = "/v1/tenants/default/keys"


async def create(client: httpx.AsyncClient, *scopes: str, **more: Any) -> dict[str, Any]:
    response = await client.post(PATH, json={"scopes": list(scopes) or ["read"], **more})
    assert response.status_code == 201, response.text
    key: dict[str, Any] = response.json()
    return key


async def test_the_secret_is_only_in_the_first_response(client: httpx.AsyncClient, store: Store) -> None:
    made = await create(client, "manage", name="ci", expires_at="2100-01-01T00:00:00+01:00")
    text = made.pop("key")
    assert is_well_formed(text)
    assert made["expires_at"] == "2099-12-31T23:00:00.000000Z"
    listed = await client.get(PATH)
    assert listed.json()["items"] == [made]
    assert text not in listed.text
    audit_log = await store.audit_log_list(None, AuditLogFilter(), before=None, limit=10)
    assert [one.action for one in audit_log] == ["key.create"]
    assert text not in audit_log[0].detail


async def test_keys_are_listed_in_the_order_of_creation(client: httpx.AsyncClient) -> None:
    ids = [(await create(client))["id"] for _ in range(3)]
    first = (await client.get(PATH, params={"limit": 2})).json()
    second = (await client.get(PATH, params={"cursor": first["next_cursor"]})).json()
    assert [one["id"] for one in first["items"] + second["items"]] == ids
    assert second["next_cursor"] is None


async def test_a_fleet_key_works_for_all_tenants_and_does_nothing_else(client: httpx.AsyncClient) -> None:
    assert (await create(client, "work", all_tenants=True))["all_tenants"]
    assert fields_of(await client.post(PATH, json={"scopes": ["manage"], "all_tenants": True})) == ["scopes"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "scopes"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes[0]"),
        ({"scopes": ["read"], "name": ""}, "name"),
        ({"scopes": ["read"], "name": "a\x00b"}, "name"),
        ({"scopes": ["read"], "expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"scopes": ["read"], "expires_at": "2100-01-01T00:00:00"}, "expires_at"),
        ({"scopes": ["read"], "hash": "x"}, "hash"),
    ],
)
async def test_it_refuses_an_invalid_key(client: httpx.AsyncClient, body: dict[str, Any], field: str) -> None:
    assert fields_of(await client.post(PATH, json=body)) == [field]
    assert (await client.get(PATH)).json()["items"] == []


async def test_a_repeated_request_returns_the_key_from_the_same_node_only(
    context: ApiContext, client: httpx.AsyncClient, store: Store
) -> None:
    headers, body = {"Idempotency-Key": "k"}, {"scopes": ["read"]}
    first, again = [await client.post(PATH, json=body, headers=headers) for _ in range(2)]
    assert first.json() == again.json()
    assert fields_of(await client.post(PATH, json={"scopes": ["submit"]}, headers=headers)) == ["Idempotency-Key"]
    async with make_client(context._replace(keys=KeyService(store))) as other_node:
        problem = problem_of(await other_node.post(PATH, json=body, headers=headers), 409)
        assert first.json()["id"] in problem["detail"]
        assert first.json()["key"] not in problem["detail"]
        assert fields_of(await other_node.post(PATH, json={"scopes": ["submit"]}, headers=headers)) == ["Idempotency-Key"]
    assert len((await client.get(PATH)).json()["items"]) == 1


async def test_a_secret_is_returned_again_for_ten_minutes_only(context: ApiContext, store: Store) -> None:
    now = [0.0]
    async with make_client(context._replace(keys=KeyService(store, monotonic=lambda: now[0]))) as client:
        headers, body = {"Idempotency-Key": "k"}, {"scopes": ["read"]}
        assert (await client.post(PATH, json=body, headers=headers)).status_code == 201
        now[0] = 599.0
        assert (await client.post(PATH, json=body, headers=headers)).status_code == 201
        now[0] = 601.0
        problem_of(await client.post(PATH, json=body, headers=headers), 409)


async def test_a_key_is_revoked_once(client: httpx.AsyncClient, store: Store) -> None:
    key = await create(client)
    for _ in range(2):
        assert (await client.delete(f"/v1/keys/{key['id']}")).status_code == 204
    (listed,) = (await client.get(PATH)).json()["items"]
    revoked_at = datetime.fromisoformat(listed["revoked_at"])
    assert abs(revoked_at - datetime.now(UTC)) < timedelta(minutes=5)
    audit_log = await store.audit_log_list(None, AuditLogFilter(action="key.revoke"), before=None, limit=10)
    assert [one.subject for one in audit_log] == [key["id"]]


async def test_the_last_admin_key_cannot_be_revoked(client: httpx.AsyncClient) -> None:
    first, second = await create(client, "admin"), await create(client, "admin")
    assert (await client.delete(f"/v1/keys/{first['id']}")).status_code == 204
    problem_of(await client.delete(f"/v1/keys/{second['id']}"), 409)


async def test_an_unknown_key_is_not_found(client: httpx.AsyncClient) -> None:
    problem_of(await client.delete("/v1/keys/nonsense"), 404)
    problem_of(await client.delete("/v1/keys/00000000-0000-0000-0000-000000000009"), 404)
