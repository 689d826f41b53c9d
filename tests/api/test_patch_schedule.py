"""PATCH /v1/schedules/{ref}."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.conftest import definition, fields_of, problem_of


@pytest.fixture
async def created(client: httpx.AsyncClient) -> dict[str, Any]:
    schedule: dict[str, Any] = (await client.post("/v1/schedules", json=definition(labels={"team": "data"}))).json()
    return schedule


async def patched(client: httpx.AsyncClient, **changed: Any) -> dict[str, Any]:
    response = await client.patch("/v1/schedules/nightly", json=changed)
    assert response.status_code == 200, response.text
    schedule: dict[str, Any] = response.json()
    return schedule


async def test_it_changes_only_the_given_fields(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    schedule = await patched(client, priority=3)

    changed = {"priority", "revision", "updated_at"}
    assert {field for field in schedule if schedule[field] != created[field]} == changed
    assert schedule["revision"] == 2


async def test_a_patch_without_a_difference_changes_nothing(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    assert await patched(client) == created
    assert await patched(client, cron="0 2 * * *") == created


async def test_a_new_trigger_replaces_the_old_one(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    schedule = await patched(client, every_seconds=60)

    assert schedule["every_seconds"] == 60
    assert "cron" not in schedule
    assert (await patched(client, cron="0 5 * * *"))["cron"] == "0 5 * * *"


async def test_nested_objects_are_merged(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    await patched(client, dst={"gap": "skip"})
    schedule = await patched(client, dst={"fold": "both"}, retry={"factor": 3})

    assert schedule["dst"] == {"gap": "skip", "fold": "both"}
    assert schedule["retry"] == {**created["retry"], "factor": 3}


async def test_it_renames(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    assert (await patched(client, name="renamed"))["id"] == created["id"]
    problem_of(await client.get("/v1/schedules/nightly"), 404)


async def test_a_taken_name_is_a_conflict(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    await client.post("/v1/schedules", json=definition(name="other"))

    problem_of(await client.patch("/v1/schedules/nightly", json={"name": "other"}), 409)


async def test_disabling_pauses_and_enabling_resumes(client: httpx.AsyncClient, created: dict[str, Any]) -> None:
    assert (await patched(client, enabled=False))["status"] == "paused"
    assert (await patched(client, enabled=True))["status"] == "active"


@pytest.mark.parametrize("if_match", ["1", '"1"', 'W/"1"', "*", " 1 "])
async def test_it_accepts_the_current_revision(client: httpx.AsyncClient, created: dict[str, Any], if_match: str) -> None:
    response = await client.patch("/v1/schedules/nightly", json={"priority": 1}, headers={"If-Match": if_match})

    assert response.status_code == 200
    assert response.headers["etag"] == '"2"'


@pytest.mark.parametrize("if_match", ["2", '"0"', "999999999999999999"])
async def test_another_revision_is_a_conflict(client: httpx.AsyncClient, created: dict[str, Any], if_match: str) -> None:
    response = await client.patch("/v1/schedules/nightly", json={"priority": 1}, headers={"If-Match": if_match})

    assert problem_of(response, 409)["type"] == "urn:everbeat:problem:revision-mismatch"
    assert (await client.get("/v1/schedules/nightly")).json() == created


@pytest.mark.parametrize("if_match", ["", "x", '"1", "2"', "-1", '"1', "1.0", "9" * 40])
async def test_it_rejects_an_invalid_revision(client: httpx.AsyncClient, created: dict[str, Any], if_match: str) -> None:
    response = await client.patch("/v1/schedules/nightly", json={"priority": 1}, headers={"If-Match": if_match})

    assert fields_of(response) == ["If-Match"]


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        *(({"priority": -1}, "priority"), ({"timezone": "Mars/Olympus"}, "timezone"), ({"id": "x"}, "id")),
        *(({"cron": "0 0 30 2 *"}, "cron"), ({"cron": None}, "cron"), ({"target": {}}, "target.kind")),
        *(({"dst": {"other": 1}}, "dst.other"), ({"dst": None}, "dst"), ({"ends_at": "2020-01-01T00:00:00Z"}, "ends_at")),
        *(({"cron": "0 1 * * *", "every_seconds": 5}, "cron"), ({"status": "paused"}, "status"), ([], "body")),
    ],
)
async def test_it_rejects_an_invalid_patch(client: httpx.AsyncClient, created: dict[str, Any], patch: Any, field: str) -> None:
    assert fields_of(await client.patch("/v1/schedules/nightly", json=patch)) == [field]
    assert (await client.get("/v1/schedules/nightly")).json() == created


async def test_an_unknown_schedule_is_not_found(client: httpx.AsyncClient) -> None:
    problem_of(await client.patch("/v1/schedules/nightly", json={"priority": 1}), 404)
