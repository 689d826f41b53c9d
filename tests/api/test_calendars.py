"""GET /v1/calendars and GET, PUT, DELETE /v1/calendars/{name}."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.conftest import definition, fields_of, problem_of

FULL = {
    "description": "Days off",
    "dates": ["2026-12-24", {"from": "2026-12-28", "to": "2026-12-31"}],
    "weekdays": ["SAT", "SUN"],
    "yearly": ["01-01", "02-29"],
    "intervals": [{"from": "2026-06-01T12:00:00", "to": "2026-06-01T18:00:00"}],
}


async def test_it_creates_and_returns_a_calendar(client: httpx.AsyncClient) -> None:
    response = await client.put("/v1/calendars/days-off", json=FULL)

    assert response.status_code == 201
    assert response.headers["location"] == "/v1/calendars/days-off"
    assert response.json() == {"name": "days-off", **FULL, "revision": 1}
    assert (await client.get("/v1/calendars/days-off")).json() == response.json()


async def test_an_identical_put_changes_nothing(client: httpx.AsyncClient) -> None:
    await client.put("/v1/calendars/days-off", json=FULL)
    response = await client.put("/v1/calendars/days-off", json=FULL)

    assert (response.status_code, response.headers["etag"]) == (200, '"1"')


async def test_it_replaces_a_calendar_and_moves_the_schedules_that_use_it(client: httpx.AsyncClient) -> None:
    await client.put("/v1/calendars/days-off", json={})
    created = await client.post("/v1/schedules", json=definition(calendars={"exclude": ["days-off"]}))
    next_day = created.json()["next_tick_at"][:10]
    response = await client.put("/v1/calendars/days-off", json={"dates": [next_day]})

    assert (response.status_code, response.json()["revision"]) == (200, 2)
    assert (await client.get("/v1/schedules/nightly")).json()["next_tick_at"] > created.json()["next_tick_at"]


async def test_a_calendar_in_use_cannot_be_removed(client: httpx.AsyncClient) -> None:
    await client.put("/v1/calendars/days-off", json={})
    await client.post("/v1/schedules", json=definition(calendars={"exclude": ["days-off"]}))
    assert "nightly" in problem_of(await client.delete("/v1/calendars/days-off"), 409)["detail"]

    await client.delete("/v1/schedules/nightly")
    assert (await client.delete("/v1/calendars/days-off")).status_code == 204
    problem_of(await client.get("/v1/calendars/days-off"), 404)


async def test_the_pages_contain_every_calendar_once(client: httpx.AsyncClient) -> None:
    for name in ("c", "a", "b"):
        await client.put(f"/v1/calendars/{name}", json={})
    first = (await client.get("/v1/calendars?limit=2")).json()
    second = (await client.get("/v1/calendars", params={"cursor": first["next_cursor"]})).json()

    assert [one["name"] for one in first["items"]] == ["a", "b"]
    assert [one["name"] for one in second["items"]] == ["c"]
    assert second["next_cursor"] is None


async def test_it_accepts_an_ics_file(client: httpx.AsyncClient) -> None:
    ics = (
        "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\nBEGIN:VEVENT\r\nUID:1\r\nDTSTAMP:20260101T000000Z\r\n"
        "DTSTART;VALUE=DATE:20261225\r\nSUMMARY:Christmas\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
    )
    response = await client.put("/v1/calendars/imported", json={"ics": ics})

    assert response.json()["dates"] == ["2026-12-25"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        *(({"dates": ["2026-02-30"]}, "dates[0]"), ({"dates": "2026-01-01"}, "dates"), ({"weekdays": ["XXX"]}, "weekdays[0]")),
        *(({"yearly": ["13-01"]}, "yearly[0]"), ({"intervals": [{"from": "x", "to": "y"}]}, "intervals[0]")),
        *(({"holidays": []}, "holidays"), ({"name": "x"}, "name"), ([], "body"), ({"ics": 5}, "ics"), ({"ics": "x"}, "ics")),
        *(
            ({"description": {}}, "description"),
            ({"description": "x" * 2001}, "description"),
            ({"description": "a\x00"}, "description"),
        ),
    ],
)
async def test_it_rejects_a_bad_calendar(client: httpx.AsyncClient, body: Any, field: str) -> None:
    assert fields_of(await client.put("/v1/calendars/days-off", json=body)) == [field]
    assert (await client.get("/v1/calendars")).json()["items"] == []


async def test_it_rejects_a_bad_name(client: httpx.AsyncClient) -> None:
    for name in ("a%20b", "%00", "x" * 201):
        assert fields_of(await client.put(f"/v1/calendars/{name}", json={})) == ["name"]


@pytest.mark.parametrize("name", ["unknown", "%00", "a%20b", "x" * 5000])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_an_unknown_calendar_is_not_found(client: httpx.AsyncClient, method: str, name: str) -> None:
    problem_of(await client.request(method, f"/v1/calendars/{name}"), 404)


async def test_it_rejects_unknown_parameters(client: httpx.AsyncClient) -> None:
    assert fields_of(await client.get("/v1/calendars?name=x")) == ["name"]
    assert fields_of(await client.get("/v1/calendars?cursor=x")) == ["cursor"]
