"""GET /v1/audit."""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest

from everbeat.api.app import ApiContext
from everbeat.core.schedules import DEFAULT_TENANT
from tests.api.conftest import definition, fields_of, problem_of
from tests.api.test_list_ticks import fire, registered_ago


async def test_the_audit_of_an_empty_server_has_no_ticks(client: httpx.AsyncClient) -> None:
    report = (await client.get("/v1/audit")).json()

    counts = {"expected": 0, "fired": 0, "skipped": {}, "missing": 0, "doubled": 0}
    assert {field: report[field] for field in counts} == counts
    assert report["tenants"] == [{"tenant_id": str(DEFAULT_TENANT), **counts}]
    assert (report["schedules"], report["faulty"], report["next_cursor"]) == ([], [], None)


async def test_every_tick_is_accounted_for(client: httpx.AsyncClient, context: ApiContext) -> None:
    now = await registered_ago(context, hours=10)
    await fire(context.store, context)
    await context.schedules.pause(DEFAULT_TENANT, "hourly", note=None, now=now - timedelta(hours=5))
    await context.schedules.resume(DEFAULT_TENANT, "hourly", now=now - timedelta(hours=2))
    report = (await client.get("/v1/audit")).json()

    skipped = sum(report["skipped"].values())
    assert report["fired"] == 1
    assert report["skipped"]["paused"] >= 3
    assert report["missing"] >= 1
    assert report["doubled"] == 0
    assert report["expected"] == report["fired"] + skipped + report["missing"]
    (schedule,) = report["schedules"]
    assert (schedule["name"], schedule["status"]) == ("hourly", "active")
    assert schedule["expected"] == report["expected"] == report["tenants"][0]["expected"]


async def test_the_pages_contain_every_schedule_once(client: httpx.AsyncClient) -> None:
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
    report = (await client.get("/v1/audit?from=2026-01-01T00:00:00+01:00&to=2026-01-02T00:00:00Z")).json()

    assert (report["from"], report["to"]) == ("2025-12-31T23:00:00.000000Z", "2026-01-02T00:00:00.000000Z")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        *(("from=2026-01-01T00:00:00", "from"), ("to=x", "to"), ("limit=0", "limit"), ("cursor=x", "cursor")),
        *(("from=2999-01-01T00:00:00Z", "from"), ("from=1990-01-01T00:00:00Z", "from"), ("color=x", "color")),
        ("from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", "from"),
        ("to=1970-01-01T00:00:00Z", ""),
    ],
)
async def test_it_rejects_bad_parameters(client: httpx.AsyncClient, query: str, field: str) -> None:
    response = await client.get(f"/v1/audit?{query}")

    assert field == "" or fields_of(response) == [field]
    assert response.status_code in (200, 422)


async def test_operators_may_audit_one_tenant_or_all(client: httpx.AsyncClient) -> None:
    await client.post("/v1/schedules", json=definition())
    other = (await client.post("/v1/tenants", json={"name": "other"})).json()
    one_tenant = (await client.get("/v1/audit", params={"tenant": "other"})).json()
    assert [one["tenant_id"] for one in one_tenant["tenants"]] == [other["id"]]
    assert one_tenant["schedules"] == []
    all_tenants = (await client.get("/v1/audit", params={"tenant": "all", "limit": 1})).json()
    assert [one["tenant_id"] for one in all_tenants["tenants"]] == [str(DEFAULT_TENANT)]
    rest = (await client.get("/v1/audit", params={"tenant": "all", "cursor": all_tenants["next_cursor"]})).json()
    assert [one["tenant_id"] for one in rest["tenants"]] == [other["id"]]
    assert rest["next_cursor"] is None
    problem_of(await client.get("/v1/audit", params={"tenant": "unknown"}), 404)
