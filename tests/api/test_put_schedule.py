"""PUT /v1/schedules/{name}."""

from __future__ import annotations

from typing import Any

import httpx

from tests.api.conftest import definition, fields_of, problem_of


def body(**changed: Any) -> dict[str, Any]:
    return definition(name=..., **changed)


async def test_it_creates_a_missing_schedule(client: httpx.AsyncClient) -> None:
    response = await client.put("/v1/schedules/nightly", json=body())

    assert response.status_code == 201
    assert response.json()["name"] == "nightly"
    assert response.headers["location"] == f"/v1/schedules/{response.json()['id']}"


async def test_an_identical_put_changes_nothing(client: httpx.AsyncClient) -> None:
    first = await client.put("/v1/schedules/nightly", json=body(cron=..., every_seconds=60))
    second = await client.put("/v1/schedules/nightly", json=body(cron=..., every_seconds=60))

    assert second.status_code == 200
    assert second.json() == first.json()
    assert second.headers["etag"] == '"1"'


async def test_it_replaces_an_existing_schedule(client: httpx.AsyncClient) -> None:
    created = (await client.put("/v1/schedules/nightly", json=body(priority=1))).json()
    response = await client.put("/v1/schedules/nightly", json=body(cron="0 3 * * *"))

    replaced = response.json()
    assert response.status_code == 200
    assert replaced["id"] == created["id"]
    assert (replaced["cron"], replaced["priority"], replaced["revision"]) == ("0 3 * * *", 100, 2)


async def test_the_name_may_be_repeated_in_the_body(client: httpx.AsyncClient) -> None:
    assert (await client.put("/v1/schedules/nightly", json=definition())).status_code == 201


async def test_it_rejects_another_name_in_the_body(client: httpx.AsyncClient) -> None:
    assert fields_of(await client.put("/v1/schedules/nightly", json=definition(name="other"))) == ["name"]


async def test_it_rejects_a_bad_name_in_the_path(client: httpx.AsyncClient) -> None:
    for name in ("a%20b", "%00", "%F0%9F%98%80", "x" * 201):
        assert fields_of(await client.put(f"/v1/schedules/{name}", json=body())) == ["name"]


async def test_a_refused_replacement_changes_nothing(client: httpx.AsyncClient) -> None:
    before = (await client.put("/v1/schedules/nightly", json=body())).json()
    assert fields_of(await client.put("/v1/schedules/nightly", json=body(timezone="Mars/Olympus"))) == ["timezone"]

    assert (await client.get("/v1/schedules/nightly")).json() == before


async def test_it_rejects_a_body_that_is_not_an_object(client: httpx.AsyncClient) -> None:
    assert fields_of(await client.put("/v1/schedules/nightly", json=[])) == ["body"]
    problem_of(await client.get("/v1/schedules/nightly"), 404)


async def test_an_identical_put_does_not_undo_a_pause(client: httpx.AsyncClient) -> None:
    await client.put("/v1/schedules/nightly", json=body())
    await client.post("/v1/schedules/nightly/pause")

    assert (await client.put("/v1/schedules/nightly", json=body())).json()["status"] == "paused"
