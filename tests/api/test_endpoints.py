"""GET /v1/endpoints, GET, PUT, DELETE /v1/endpoints/{name} and POST …/rotate."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.conftest import ON_BOTH_STORES, fields_of, problem_of

URL = "https://billing.example.org/hooks"


async def put(client: httpx.AsyncClient, name: str = "billing", **more: Any) -> httpx.Response:
    return await client.put(f"/v1/endpoints/{name}", json={"url": URL, **more})


@ON_BOTH_STORES
async def test_the_secret_is_shown_once_and_header_values_never(client: httpx.AsyncClient) -> None:
    response = await put(client, headers={"Authorization": "Bearer x", "X-Team": "a"}, max_concurrent=5, rate_per_second=2)
    assert response.status_code == 201
    assert response.headers["location"] == "/v1/endpoints/billing"
    created = response.json()
    assert created.pop("secret").startswith("whsec_")
    assert created["headers"] == {"Authorization": "***", "X-Team": "a"}
    assert (created["url"], created["max_concurrent"], created["rate_per_second"]) == (URL, 5, 2)
    assert (await client.get("/v1/endpoints/billing")).json() == created
    assert (await client.get("/v1/endpoints")).json()["items"] == [created]
    assert "Bearer x" not in (await client.get("/v1/endpoints/billing")).text


async def test_a_put_replaces_everything_but_the_secrets(client: httpx.AsyncClient, context: Any) -> None:
    secret = (await put(client, headers={"X-Token": "1", "X-B": "2"})).json()["secret"]
    response = await put(client, headers={"x-token": "***"}, method="PUT")
    assert (response.status_code, response.json()["revision"], "secret" in response.json()) == (200, 2, False)
    (stored,) = await context.endpoints.page(response_tenant(), after_name=None, limit=10)
    assert (dict(stored.headers), stored.method, stored.secret) == ({"x-token": "1"}, "PUT", secret)


def response_tenant() -> Any:
    from everbeat.core.schedules import DEFAULT_TENANT

    return DEFAULT_TENANT


async def test_an_identical_put_changes_nothing(client: httpx.AsyncClient) -> None:
    await put(client, headers={"X-Token": "1"})
    response = await put(client, headers={"X-Token": "***"})
    assert (response.status_code, response.headers["etag"]) == (200, '"1"')


async def test_a_rotation_shows_the_new_secret_and_keeps_the_old_one_for_a_day(client: httpx.AsyncClient, context: Any) -> None:
    first = (await put(client)).json()
    rotated = (await client.post("/v1/endpoints/billing/rotate")).json()
    assert rotated["secret"] != first["secret"]
    (stored,) = await context.endpoints.page(response_tenant(), after_name=None, limit=10)
    assert (stored.secret, stored.old_secret) == (rotated["secret"], first["secret"])
    assert (stored.old_secret_until - stored.updated_at).total_seconds() == 86_400
    assert stored.request(stored.updated_at).secrets == (rotated["secret"], first["secret"])
    assert stored.request(stored.old_secret_until).secrets == (rotated["secret"],)


async def test_stored_secrets_are_not_sent_to_another_host(client: httpx.AsyncClient) -> None:
    await put(client, headers={"X-Token": "1"})
    body = {"url": "https://elsewhere.example.org/", "headers": {"X-Token": "***"}}
    assert fields_of(await client.put("/v1/endpoints/billing", json=body)) == ["headers"]


async def test_a_removed_endpoint_is_gone(client: httpx.AsyncClient) -> None:
    await put(client)
    assert (await client.delete("/v1/endpoints/billing")).status_code == 204
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/rotate")):
        problem_of(await client.request(method, f"/v1/endpoints/billing{path}"), 404)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"url": "http://127.0.0.1/"}, "url"),
        ({"url": "http://169.254.169.254/"}, "url"),
        ({"url": "https://user:x@example.org/"}, "url"),
        ({"url": "ftp://example.org/"}, "url"),
        ({"headers": {"Host": "x"}}, "headers"),
        ({"headers": {"X-Token": "***"}}, "headers"),
        ({"headers": {"X-A": "a\r\nb"}}, "headers"),
        ({"max_concurrent": 0}, "max_concurrent"),
        ({"rate_per_second": 0}, "rate_per_second"),
        ({"method": "TRACE"}, "method"),
        ({"secret": "whsec_x"}, "secret"),
    ],
)
async def test_it_refuses_wrong_fields(client: httpx.AsyncClient, body: dict[str, Any], field: str) -> None:
    assert fields_of(await client.put("/v1/endpoints/billing", json={"url": URL, **body})) == [field]


async def test_a_wrong_name_is_refused(client: httpx.AsyncClient) -> None:
    assert fields_of(await client.put("/v1/endpoints/a%20b", json={"url": URL})) == ["name"]


async def test_changes_are_in_the_audit_log_without_secrets(client: httpx.AsyncClient) -> None:
    await put(client, headers={"X-Token": "confidential"})
    await client.post("/v1/endpoints/billing/rotate")
    await client.delete("/v1/endpoints/billing")
    response = await client.get("/v1/audit-log")
    actions = [item["action"] for item in response.json()["items"]]
    assert actions == ["endpoint.delete", "endpoint.rotate", "endpoint.put"]
    assert "confidential" not in response.text
    assert "whsec_" not in response.text


async def test_the_pages_contain_every_endpoint_once(client: httpx.AsyncClient) -> None:
    for name in ("c", "a", "b"):
        await put(client, name)
    first = (await client.get("/v1/endpoints?limit=2")).json()
    rest = (await client.get("/v1/endpoints", params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert [item["name"] for item in first["items"] + rest["items"]] == ["a", "b", "c"]
    assert rest["next_cursor"] is None
