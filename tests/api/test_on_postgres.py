"""The API on PostgreSQL: requests that depend on its SQL and its types."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from tests.api.conftest import definition, fields_of, problem_of


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[Store]:
    store = PostgresStore(postgres_url, listen=False)
    await store.open()
    await store.migrate()
    yield store
    await store.close()


async def test_a_schedule_from_creation_to_deletion(client: httpx.AsyncClient) -> None:
    payload = {"nul": "a\x00b", "rtl": "\u202eabc", "emoji": "😀", "big": 10**30}
    created = await client.post("/v1/schedules", json=definition(payload=payload, description="übersichtlich"))
    assert created.status_code == 201, created.text
    assert created.json()["payload"] == payload
    assert (await client.get("/v1/schedules/nightly")).json() == created.json()
    assert (await client.put("/v1/schedules/nightly", json=definition(priority=1))).json()["revision"] == 2
    patch = await client.patch("/v1/schedules/nightly", json={"every_seconds": 60, "cron": None})
    assert patch.json()["every_seconds"] == 60
    paused = await client.post("/v1/schedules/nightly/pause", json={"note": "später"})
    assert paused.json()["note"] == "später"
    assert (await client.post("/v1/schedules/nightly/resume")).json()["status"] == "active"
    assert (await client.get("/v1/schedules/nightly/ticks?limit=5")).json()["next_cursor"] is not None
    assert (await client.get("/v1/audit")).json()["missing"] == 0
    cluster = (await client.get("/v1/cluster")).json()
    assert cluster["schedules"]["active"] == 1
    assert len(cluster["capacity"]["tables"]) == 10
    assert cluster["capacity"]["oldest_transaction_seconds"] is not None
    assert (await client.delete("/v1/schedules/nightly")).status_code == 204
    problem_of(await client.get("/v1/schedules/nightly"), 404)


async def test_a_batch_is_atomic(client: httpx.AsyncClient) -> None:
    good = [definition(name=f"s{number:04}") for number in range(1000)]
    bad = [*good[:-1], definition(name="s0999", cron="0 0 30 2 *")]

    assert fields_of(await client.post("/v1/schedules/batch", json={"schedules": bad})) == ["schedules[999].cron"]
    assert (await client.get("/v1/schedules")).json()["items"] == []
    response = await client.post("/v1/schedules/batch", json={"schedules": good})
    assert {item["status"] for item in response.json()["items"]} == {"created"}
    assert len((await client.get("/v1/schedules?limit=1000&name_prefix=s00")).json()["items"]) == 100


async def test_the_same_key_returns_the_same_response(client: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "key-1"}
    first = await client.post("/v1/schedules", json=definition(), headers=headers)
    second = await client.post("/v1/schedules", json=definition(), headers=headers)

    assert (second.status_code, second.content) == (201, first.content)
    other = await client.post("/v1/schedules", json=definition(name="other"), headers=headers)
    assert fields_of(other) == ["Idempotency-Key"]


async def test_names_have_the_same_order_on_every_store(client: httpx.AsyncClient) -> None:
    names = ["B", "a", "A", "b", "a.b", "a-b", "a_b", "a:b", "1"]
    await client.post("/v1/schedules/batch", json={"schedules": [definition(name=name) for name in names]})
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await client.get("/v1/schedules", params={"limit": 2, **cursor})).json()
        seen += [one["name"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}

    assert seen == sorted(names)


async def test_extreme_times_are_not_server_errors(client: httpx.AsyncClient) -> None:
    first, last = "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"
    for index, window in enumerate([{"starts_at": first, "ends_at": last}, {"starts_at": last}, {"ends_at": first}]):
        response = await client.post("/v1/schedules", json=definition(name=f"e{index}", **window))
        assert response.status_code in (201, 422), response.text


async def test_calendars_are_stored(client: httpx.AsyncClient) -> None:
    created = await client.put("/v1/calendars/days-off", json={"dates": ["2026-12-24"], "weekdays": ["SUN"]})

    assert created.status_code == 201
    assert (await client.get("/v1/calendars/days-off")).json() == created.json()
    assert (await client.delete("/v1/calendars/days-off")).status_code == 204


@pytest.mark.parametrize("kind", ["alerts", "calendars", "checks", "endpoints", "schedules"])
async def test_a_name_with_a_nul_character_is_not_found(client: httpx.AsyncClient, kind: str) -> None:
    for method in ("GET", "DELETE"):
        problem_of(await client.request(method, f"/v1/{kind}/%00"), 404)
