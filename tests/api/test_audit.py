"""GET /v1/audit."""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest

from everbeat.api.app import ApiContext
from everbeat.core.schedules import DEFAULT_TENANT
from tests.api.conftest import definition, fields_of, problem_of
from tests.api.test_list_ticks import fire, registered_ago


async def test_an_empty_server_has_nothing_to_account_for(client: httpx.AsyncClient) -> None:
    answer = (await client.get("/v1/audit")).json()

    counts = {"expected": 0, "fired": 0, "skipped": {}, "missing": 0, "doubled": 0}
    assert {field: answer[field] for field in counts} == counts
    assert answer["tenants"] == [{"tenant_id": str(DEFAULT_TENANT), **counts}]
    assert (answer["schedules"], answer["faulty"], answer["next_cursor"]) == ([], [], None)


async def test_it_accounts_for_every_tick(client: httpx.AsyncClient, context: ApiContext) -> None:
    now = await registered_ago(context, hours=10)
    await fire(context.store, context)
    await context.schedules.pause(DEFAULT_TENANT, "hourly", note=None, now=now - timedelta(hours=5))
    await context.schedules.resume(DEFAULT_TENANT, "hourly", now=now - timedelta(hours=2))
    answer = (await client.get("/v1/audit")).json()

    skipped = sum(answer["skipped"].values())
    assert answer["fired"] == 1
    assert answer["skipped"]["paused"] >= 3
    assert answer["missing"] >= 1
    assert answer["doubled"] == 0
    assert answer["expected"] == answer["fired"] + skipped + answer["missing"]
    (schedule,) = answer["schedules"]
    assert (schedule["name"], schedule["status"]) == ("hourly", "active")
    assert schedule["expected"] == answer["expected"] == answer["tenants"][0]["expected"]


async def test_the_pages_hold_every_schedule_once_under_the_same_totals(client: httpx.AsyncClient) -> None:
    names = [f"s{number}" for number in range(5)]
    await client.post("/v1/schedules/batch", json={"schedules": [definition(name=name) for name in names]})
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await client.get("/v1/audit", params={"limit": 2, **cursor})).json()
        seen += [one["name"] for one in page["schedules"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}

    assert seen == names


async def test_the_window_can_be_chosen(client: httpx.AsyncClient) -> None:
    answer = (await client.get("/v1/audit?from=2026-01-01T00:00:00+01:00&to=2026-01-02T00:00:00Z")).json()

    assert (answer["from"], answer["to"]) == ("2025-12-31T23:00:00.000000Z", "2026-01-02T00:00:00.000000Z")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        *(("from=2026-01-01T00:00:00", "from"), ("to=x", "to"), ("limit=0", "limit"), ("cursor=x", "cursor")),
        *(("from=2999-01-01T00:00:00Z", "from"), ("from=1990-01-01T00:00:00Z", "from"), ("colour=x", "colour")),
        ("from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", "from"),
        ("to=1970-01-01T00:00:00Z", ""),
    ],
)
async def test_it_rejects_bad_parameters(client: httpx.AsyncClient, query: str, field: str) -> None:
    response = await client.get(f"/v1/audit?{query}")

    assert field == "" or fields_of(response) == [field]
    assert response.status_code in (200, 422)


async def test_operators_may_ask_about_one_tenant_or_all(client: httpx.AsyncClient) -> None:
    await client.post("/v1/schedules", json=definition())
    other = (await client.post("/v1/tenants", json={"name": "other"})).json()
    alone = (await client.get("/v1/audit", params={"tenant": "other"})).json()
    assert [one["tenant_id"] for one in alone["tenants"]] == [other["id"]]
    assert alone["schedules"] == []
    everybody = (await client.get("/v1/audit", params={"tenant": "all", "limit": 1})).json()
    assert [one["tenant_id"] for one in everybody["tenants"]] == [str(DEFAULT_TENANT)]
    rest = (await client.get("/v1/audit", params={"tenant": "all", "cursor": everybody["next_cursor"]})).json()
    assert [one["tenant_id"] for one in rest["tenants"]] == [other["id"]]
    assert rest["next_cursor"] is None
    problem_of(await client.get("/v1/audit", params={"tenant": "nobody"}), 404)
