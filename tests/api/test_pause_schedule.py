"""POST /v1/schedules/{ref}/pause and /resume."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.conftest import definition, fields_of, problem_of


@pytest.fixture
async def created(client: httpx.AsyncClient) -> dict[str, Any]:
    schedule: dict[str, Any] = (await client.post("/v1/schedules", json=definition())).json()
    return schedule


async def test_a_paused_schedule_has_no_next_tick(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    schedule = (await client.post("/v1/schedules/nightly/pause", json={"note": "until Monday\nor so"})).json()

    assert (schedule["status"], schedule["next_tick_at"]) == ("paused", None)
    assert schedule["note"] == "until Monday\nor so"
    assert (await client.get("/v1/schedules/nightly")).json() == schedule


async def test_the_body_is_optional(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    paused = await client.post(f"/v1/schedules/{created['id']}/pause")
    assert (paused.status_code, paused.headers["etag"]) == (200, '"2"')
    resumed = await client.post("/v1/schedules/nightly/resume")
    assert (resumed.status_code, resumed.headers["etag"]) == (200, '"3"')


async def test_the_body_may_be_an_empty_object(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    for verb in ("pause", "resume"):
        assert (await client.post(f"/v1/schedules/nightly/{verb}", json={})).status_code == 200


async def test_pausing_twice_changes_nothing(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    once = (await client.post("/v1/schedules/nightly/pause", json={"note": "x"})).json()

    assert (await client.post("/v1/schedules/nightly/pause")).json() == once


async def test_a_resumed_schedule_continues_with_its_next_tick(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    await client.post("/v1/schedules/nightly/pause", json={"note": "x"})
    schedule = (await client.post("/v1/schedules/nightly/resume")).json()

    assert (schedule["status"], schedule["note"]) == ("active", None)
    assert schedule["next_tick_at"] == created["next_tick_at"]


async def test_resuming_an_active_schedule_changes_nothing(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    assert (await client.post("/v1/schedules/nightly/resume")).json() == created


@pytest.mark.parametrize(
    ("body", "field"),
    [
        *(({"note": "x" * 2001}, "note"), ({"note": "a\x00b"}, "note"), ({"note": 5}, "note")),
        *(({"reason": "x"}, "reason"), ([], "body")),
    ],
)
async def test_it_rejects_a_bad_note(client: httpx.AsyncClient, created: dict[str, Any], body: Any, field: str) -> None:
    assert fields_of(await client.post("/v1/schedules/nightly/pause", json=body)) == [field]
    assert (await client.get("/v1/schedules/nightly")).json() == created


async def test_resuming_takes_no_note(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    assert fields_of(await client.post("/v1/schedules/nightly/resume", json={"note": "x"})) == ["note"]


async def test_a_malformed_body_is_refused_although_it_is_optional(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/json"}
    problem_of(await client.post("/v1/schedules/nightly/pause", content=b"{", headers=headers), 400)
    problem_of(await client.post("/v1/schedules/nightly/pause", content=b"{}"), 415)
    assert fields_of(await client.post("/v1/schedules/nightly/pause", content=b"null", headers=headers)) == ["body"]


@pytest.mark.parametrize("verb", ["pause", "resume"])
async def test_an_unknown_schedule_is_not_found(client: httpx.AsyncClient, verb: str) -> None:
    problem_of(await client.post(f"/v1/schedules/unknown/{verb}"), 404)
