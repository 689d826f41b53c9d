"""POST /v1/schedules/{ref}/pause and /resume."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.conftest import definition, fields_of, problem_of


@pytest.fixture
async def created(client: httpx.AsyncClient) -> dict[str, Any]:
    answer: dict[str, Any] = (await client.post("/v1/schedules", json=definition())).json()
    return answer


async def test_a_paused_schedule_has_no_next_tick(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    answer = (await client.post("/v1/schedules/nightly/pause", json={"note": "until Monday\nor so"})).json()

    assert (answer["status"], answer["next_tick_at"]) == ("paused", None)
    assert answer["note"] == "until Monday\nor so"
    assert (await client.get("/v1/schedules/nightly")).json() == answer


async def test_the_body_may_be_left_out(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    paused = await client.post(f"/v1/schedules/{created['id']}/pause")
    assert (paused.status_code, paused.headers["etag"]) == (200, '"2"')
    resumed = await client.post("/v1/schedules/nightly/resume")
    assert (resumed.status_code, resumed.headers["etag"]) == (200, '"3"')


async def test_an_empty_object_will_do_too(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    for verb in ("pause", "resume"):
        assert (await client.post(f"/v1/schedules/nightly/{verb}", json={})).status_code == 200


async def test_pausing_twice_changes_nothing(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    once = (await client.post("/v1/schedules/nightly/pause", json={"note": "x"})).json()

    assert (await client.post("/v1/schedules/nightly/pause")).json() == once


async def test_a_resumed_schedule_goes_on_from_its_next_tick(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    await client.post("/v1/schedules/nightly/pause", json={"note": "x"})
    answer = (await client.post("/v1/schedules/nightly/resume")).json()

    assert (answer["status"], answer["note"]) == ("active", None)
    assert answer["next_tick_at"] == created["next_tick_at"]


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


async def test_a_malformed_body_is_refused_though_none_is_needed(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/json"}
    problem_of(await client.post("/v1/schedules/nightly/pause", content=b"{", headers=headers), 400)
    problem_of(await client.post("/v1/schedules/nightly/pause", content=b"{}"), 415)
    assert fields_of(await client.post("/v1/schedules/nightly/pause", content=b"null", headers=headers)) == ["body"]


@pytest.mark.parametrize("verb", ["pause", "resume"])
async def test_what_is_not_there_is_not_found(client: httpx.AsyncClient, verb: str) -> None:
    problem_of(await client.post(f"/v1/schedules/unknown/{verb}"), 404)
