"""Quotas in the API: 403 if only a higher quota helps, 429 with Retry-After if waiting helps."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.conftest import claim, definition, fail, problem_of, submit


async def limit(client: httpx.AsyncClient, **quotas: Any) -> None:
    assert (await client.patch("/v1/tenants/default", json=quotas)).status_code == 200


def assert_exceeded(response: httpx.Response, status: int, quota: str) -> None:
    problem = problem_of(response, status)
    assert problem["type"] == "urn:everbeat:problem:quota-exceeded"
    assert problem["detail"].startswith(f"{quota}: ")
    assert ("retry-after" in response.headers) == (status == 429)
    if status == 429:
        assert int(response.headers["retry-after"]) >= 1


async def test_schedules_and_payloads_are_403(client: httpx.AsyncClient) -> None:
    await limit(client, max_schedules=1, max_payload_bytes=20)
    large = {"payload": {"a": "x" * 30}}
    assert_exceeded(await client.post("/v1/schedules", json=definition(**large)), 403, "max_payload_bytes")
    assert (await client.post("/v1/schedules", json=definition())).status_code == 201
    assert_exceeded(await client.put("/v1/schedules/other", json=definition(name="other")), 403, "max_schedules")
    assert_exceeded(
        await client.post("/v1/schedules/batch", json={"schedules": [definition(name="other")]}), 403, "max_schedules"
    )
    assert_exceeded(await client.post("/v1/schedules/nightly/trigger", json=large), 403, "max_payload_bytes")
    assert_exceeded(await client.post("/v1/tasks", json={"type": "a", **large}), 403, "max_payload_bytes")
    assert_exceeded(await client.post("/v1/tasks/batch", json={"tasks": [{"type": "a", **large}]}), 403, "max_payload_bytes")


@pytest.mark.parametrize("quota", ["max_ready", "submits_per_second"])
async def test_everything_that_creates_tasks_is_429(client: httpx.AsyncClient, quota: str) -> None:
    await client.post("/v1/schedules", json=definition(cron="0 * * * *", enabled=False))
    await submit(client, queue="failing", max_attempts=1)
    (dead,) = await claim(client, "failing")
    await fail(client, dead)
    await limit(client, **{quota: 1})
    await submit(client)
    assert_exceeded(await client.post("/v1/tasks", json={"type": "a"}), 429, quota)
    assert_exceeded(await client.post("/v1/tasks/batch", json={"tasks": [{"type": "a"}]}), 429, quota)
    assert_exceeded(await client.post("/v1/schedules/nightly/trigger"), 429, quota)
    assert_exceeded(await client.post(f"/v1/tasks/{dead['id']}/retry"), 429, quota)
    assert_exceeded(await client.post(f"/v1/dead-letters/{dead['id']}/replay"), 429, quota)
    assert_exceeded(await client.post("/v1/dead-letters/replay", json={"filter": {}}), 429, quota)
    if quota == "max_ready":
        window = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T01:00:00Z"}
        assert_exceeded(await client.post("/v1/schedules/nightly/backfill", json=window), 429, quota)
    assert (await client.get(f"/v1/dead-letters/{dead['id']}")).json()["replays"] == 0
    await limit(client, **{quota: None})
    await submit(client)
