"""GET and DELETE /v1/schedules/{ref}."""

from __future__ import annotations

import httpx
import pytest

from tests.api.conftest import definition, fields_of, problem_of


async def test_it_finds_a_schedule_by_id_and_by_name(client: httpx.AsyncClient) -> None:
    created = (await client.post("/v1/schedules", json=definition())).json()

    by_name = await client.get("/v1/schedules/nightly")
    assert by_name.json() == created
    assert by_name.headers["etag"] == '"1"'
    assert (await client.get(f"/v1/schedules/{created['id']}")).json() == created


@pytest.mark.parametrize(
    "ref", ["unknown", "a%20b", "%00", "%F0%9F%98%80", "x" * 5000, "%FF", "0192d1b2-0000-7000-8000-000000000001"]
)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_an_unknown_schedule_is_not_found(client: httpx.AsyncClient, method: str, ref: str) -> None:
    problem = problem_of(await client.request(method, f"/v1/schedules/{ref}"), 404)

    assert problem["type"] == "urn:everbeat:problem:not-found"


async def test_it_rejects_an_unknown_parameter(client: httpx.AsyncClient) -> None:
    await client.post("/v1/schedules", json=definition())

    assert fields_of(await client.get("/v1/schedules/nightly?expand=1")) == ["expand"]
    assert fields_of(await client.delete("/v1/schedules/nightly?force=1")) == ["force"]


async def test_a_deleted_schedule_is_not_found(client: httpx.AsyncClient) -> None:
    created = (await client.post("/v1/schedules", json=definition())).json()
    response = await client.delete("/v1/schedules/nightly")

    assert (response.status_code, response.content) == (204, b"")
    problem_of(await client.get(f"/v1/schedules/{created['id']}"), 404)
    problem_of(await client.delete("/v1/schedules/nightly"), 404)


async def test_the_name_of_a_deleted_schedule_is_free_again(client: httpx.AsyncClient) -> None:
    first = (await client.post("/v1/schedules", json=definition())).json()
    await client.delete(f"/v1/schedules/{first['id']}")

    assert (await client.post("/v1/schedules", json=definition())).json()["id"] != first["id"]
