"""POST /v1/schedules."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import httpx

from tests.api.conftest import definition, fields_of, message_of, problem_of

FULL = {
    "name": "nightly-report",
    "description": "Every night, übersichtlich ☃",
    "cron": "0 2 * * *",
    "timezone": "America/New_York",
    "target": {"kind": "worker", "queue": "reports", "type": "nightly-report"},
    "payload": {"a": [1, 2.5, None, True, "x"]},
    "overlap": "allow",
    "max_concurrent": 4,
    "catch_up": "all",
    "misfire_grace_seconds": 60,
    "jitter_seconds": 2.5,
    "dst": {"gap": "skip", "fold": "both"},
    "calendars": {"exclude": [], "only": []},
    "starts_at": "2026-01-01T00:00:00.000000Z",
    "ends_at": "2999-01-01T00:00:00.000000Z",
    "priority": 7,
    "max_attempts": 5,
    "retry": {"kind": "linear", "base_seconds": 2, "factor": 3, "max_seconds": 60, "jitter": False},
    "timeout_seconds": 90,
    "labels": {"team": "data"},
    "enabled": True,
}


async def test_it_returns_the_schedule_with_computed_fields(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/schedules", json=FULL)

    assert response.status_code == 201
    schedule = response.json()
    assert {field: schedule[field] for field in FULL} == FULL
    assert UUID(schedule["id"]).version == 7
    assert schedule["status"] == "active"
    assert schedule["revision"] == 1
    assert schedule["last_tick_at"] is None
    assert schedule["next_tick_at"] > schedule["created_at"]
    assert "02:00" in schedule["trigger_text"]
    assert response.headers["etag"] == '"1"'
    assert response.headers["location"] == f"/v1/schedules/{schedule['id']}"


async def test_the_location_is_the_url_of_the_schedule(client: httpx.AsyncClient) -> None:
    created = await client.post("/v1/schedules", json=definition())

    assert (await client.get(created.headers["location"])).json() == created.json()


async def test_only_name_trigger_and_target_are_required(client: httpx.AsyncClient) -> None:
    schedule = (await client.post("/v1/schedules", json=definition())).json()

    assert schedule["timezone"] == "UTC"
    assert schedule["overlap"] == "skip"
    assert schedule["max_concurrent"] == 1
    assert schedule["catch_up"] == "latest"
    assert schedule["dst"] == {"gap": "after", "fold": "first"}
    assert schedule["target"] == {"kind": "worker", "queue": "default", "type": "report"}


async def test_it_accepts_every_kind_of_trigger(client: httpx.AsyncClient) -> None:
    triggers: list[dict[str, Any]] = [
        {"every_seconds": 90},
        {"every_seconds": 1.5, "anchor": "2026-01-01T00:00:00+02:00"},
        {"rrule": "FREQ=WEEKLY;BYDAY=MO"},
        {"at": "2999-01-01T00:00:00+01:00"},
    ]
    for index, trigger in enumerate(triggers):
        response = await client.post("/v1/schedules", json=definition(name=f"t{index}", cron=..., **trigger))
        assert response.status_code == 201, response.text
    assert (await client.get("/v1/schedules/t1")).json()["anchor"] == "2025-12-31T22:00:00.000000Z"
    assert (await client.get("/v1/schedules/t3")).json()["at"] == "2998-12-31T23:00:00.000000Z"


async def test_times_are_returned_in_utc_with_microseconds(client: httpx.AsyncClient) -> None:
    schedule = (await client.post("/v1/schedules", json=definition(starts_at="2026-01-01T00:00:00+05:30"))).json()

    assert schedule["starts_at"] == "2025-12-31T18:30:00.000000Z"
    for field in ("created_at", "updated_at", "next_tick_at"):
        assert len(schedule[field]) == len("2026-01-01T00:00:00.000000Z")
        assert datetime.fromisoformat(schedule[field]).utcoffset() == timedelta(0)


async def test_a_taken_name_is_a_conflict(client: httpx.AsyncClient) -> None:
    await client.post("/v1/schedules", json=definition())

    problem = problem_of(await client.post("/v1/schedules", json=definition(cron="0 3 * * *")), 409)

    assert "nightly" in problem["detail"]
    assert (await client.get("/v1/schedules/nightly")).json()["cron"] == "0 2 * * *"


async def test_a_disabled_schedule_is_created_paused(client: httpx.AsyncClient) -> None:
    schedule = (await client.post("/v1/schedules", json=definition(enabled=False))).json()

    assert (schedule["status"], schedule["next_tick_at"]) == ("paused", None)


async def test_the_same_key_returns_the_same_response(client: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "key-1"}
    first = await client.post("/v1/schedules", json=definition(), headers=headers)
    second = await client.post("/v1/schedules", json=definition(), headers=headers)

    assert (first.status_code, second.status_code) == (201, 201)
    assert second.content == first.content
    assert second.headers["location"] == first.headers["location"]


async def test_the_same_key_with_another_body_is_refused(client: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "key-1"}
    await client.post("/v1/schedules", json=definition(), headers=headers)
    response = await client.post("/v1/schedules", json=definition(name="other"), headers=headers)

    assert fields_of(response) == ["Idempotency-Key"]
    problem_of(await client.get("/v1/schedules/other"), 404)


async def test_a_refused_request_does_not_use_up_its_key(client: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "key-1"}
    assert fields_of(await client.post("/v1/schedules", json=definition(priority=-1), headers=headers)) == ["priority"]

    assert (await client.post("/v1/schedules", json=definition(), headers=headers)).status_code == 201


async def test_concurrent_requests_with_one_key_create_one_schedule(client: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "key-1"}
    responses = await asyncio.gather(*(client.post("/v1/schedules", json=definition(), headers=headers) for _ in range(8)))

    assert {response.status_code for response in responses} == {201}
    assert len({response.content for response in responses}) == 1


async def test_it_rejects_a_key_that_is_not_visible_ascii(client: httpx.AsyncClient) -> None:
    for key in ("", "a b", "x" * 256, "ä"):
        headers = {"Idempotency-Key": key.encode("latin-1").decode("latin-1")}
        response = await client.post("/v1/schedules", json=definition(), headers=httpx.Headers(headers, "latin-1"))
        assert "visible ASCII" in message_of(response, "Idempotency-Key")


async def test_a_payload_is_returned_unchanged(client: httpx.AsyncClient) -> None:
    payloads = [{"nul": "a\x00b", "rtl": "\u202eabc", "emoji": "😀"}, [], "text", 0, False, None, 1e300, 2**63, 10**30]
    for index, payload in enumerate(payloads):
        created = await client.post("/v1/schedules", json=definition(name=f"p{index}", payload=payload))
        assert created.status_code == 201, created.text
        assert (await client.get(f"/v1/schedules/p{index}")).json()["payload"] == payload


async def test_it_rejects_an_unknown_query_parameter(client: httpx.AsyncClient) -> None:
    assert fields_of(await client.post("/v1/schedules?dry_run=1", json=definition())) == ["dry_run"]
