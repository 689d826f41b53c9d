"""POST /v1/preview."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.api.conftest import fields_of, message_of


async def test_it_returns_a_description_and_the_next_ticks(client: httpx.AsyncClient) -> None:
    request = {"cron": "0 2 * * *", "timezone": "Europe/Paris", "count": 2, "after": "2026-03-27T12:00:00Z"}
    response = await client.post("/v1/preview", json=request)

    assert response.status_code == 200
    preview = response.json()
    assert "02:00" in preview["description"]
    assert preview["ticks"] == [
        {"at": "2026-03-28T01:00:00.000000Z", "local": "2026-03-28T02:00:00+01:00"},
        {"at": "2026-03-29T01:00:00.000000Z", "local": "2026-03-29T03:00:00+02:00"},
    ]
    assert any("2026-03-29" in warning for warning in preview["warnings"])


async def test_it_saves_nothing(client: httpx.AsyncClient) -> None:
    await client.post("/v1/preview", json={"cron": "0 2 * * *"})

    assert (await client.get("/v1/schedules")).json()["items"] == []


async def test_ten_ticks_from_now_by_default(client: httpx.AsyncClient) -> None:
    now = datetime.fromisoformat((await client.get("/v1/cluster")).json()["now"])
    ticks = (await client.post("/v1/preview", json={"cron": "* * * * *"})).json()["ticks"]

    assert len(ticks) == 10
    assert timedelta(0) < datetime.fromisoformat(ticks[0]["at"]) - now < timedelta(minutes=3)


@pytest.mark.parametrize(
    ("trigger", "first"),
    [
        ({"every_seconds": 90}, "2026-01-01T00:01:30.000000Z"),
        ({"every_seconds": 90, "anchor": "2026-01-01T00:01:00Z"}, "2026-01-01T00:01:00.000000Z"),
        ({"rrule": "FREQ=DAILY;BYHOUR=9;BYMINUTE=0;BYSECOND=0"}, "2026-01-01T09:00:00.000000Z"),
        ({"at": "2026-05-01T00:00:00+02:00"}, "2026-04-30T22:00:00.000000Z"),
    ],
)
async def test_a_trigger_without_an_anchor_counts_from_after(
    client: httpx.AsyncClient, trigger: dict[str, Any], first: str
) -> None:
    response = await client.post("/v1/preview", json={**trigger, "after": "2026-01-01T00:00:00Z", "count": 1})

    assert [tick["at"] for tick in response.json()["ticks"]] == [first]


async def test_it_applies_calendars(client: httpx.AsyncClient) -> None:
    await client.put("/v1/calendars/holidays", json={"dates": ["2026-01-02"]})
    request = {"cron": "0 9 * * *", "after": "2026-01-01T00:00:00Z", "count": 2, "calendars": {"exclude": ["holidays"]}}
    response = await client.post("/v1/preview", json=request)

    days = [tick["at"][:10] for tick in response.json()["ticks"]]
    assert days == ["2026-01-01", "2026-01-03"]
    unknown = {**request, "calendars": {"only": ["nowhere"]}}
    assert fields_of(await client.post("/v1/preview", json=unknown)) == ["calendars.only"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        *(({}, "cron"), ({"cron": "* * * * *", "at": "2026-01-01T00:00:00Z"}, "cron"), ([], "body")),
        *(({"cron": "61 * * * *"}, "cron"), ({"cron": "* * * * *", "timezone": "Mars/Olympus"}, "timezone")),
        *(({"cron": "* * * * *", "count": 0}, "count"), ({"cron": "* * * * *", "count": 101}, "count")),
        *(({"cron": "* * * * *", "count": "5"}, "count"), ({"cron": "* * * * *", "name": "x"}, "name")),
        *(({"cron": "* * * * *", "after": "2026-01-01T00:00:00"}, "after"), ({"every_seconds": 0}, "every_seconds")),
        *(({"cron": "* * * * *", "after": "0001-01-01T00:00:00Z"}, "after"), ({"rrule": "FREQ=NEVER"}, "rrule")),
        *(({"cron": "* * * * *", "after": "9999-12-31T23:59:59Z"}, "after"), ({"cron": "0 0 30 2 *"}, "cron")),
        *(({"cron": "* * * * *", "dst": {"gap": "x"}}, "dst.gap"), ({"cron": "* * * * *", "dst": 1}, "dst")),
    ],
)
async def test_it_rejects_bad_input(client: httpx.AsyncClient, body: Any, field: str) -> None:
    assert fields_of(await client.post("/v1/preview", json=body)) == [field]


async def test_it_suggests_a_zone(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/preview", json={"cron": "* * * * *", "timezone": "Amerika/New_York"})

    assert "America/New_York" in message_of(response, "timezone")


async def test_extreme_times_are_not_server_errors(client: httpx.AsyncClient) -> None:
    first, last = "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"
    edges: list[dict[str, Any]] = [
        {"at": first},
        {"at": last},
        {"at": last, "timezone": "Pacific/Kiritimati"},
        {"at": first, "timezone": "Pacific/Pago_Pago"},
        {"every_seconds": 3600, "anchor": first},
        {"every_seconds": 3600, "anchor": last},
        {"rrule": "FREQ=YEARLY", "anchor": first, "timezone": "Asia/Kolkata"},
        {"rrule": "FREQ=YEARLY", "anchor": last, "timezone": "Asia/Kolkata"},
        {"rrule": "FREQ=YEARLY;INTERVAL=9999"},
        {"cron": "0 0 29 2 *", "count": 100, "after": "2999-12-31T00:00:00Z"},
        {"cron": "0 0 29 2 1", "count": 100, "after": "1970-01-01T00:00:00Z", "timezone": "America/Santiago"},
    ]
    for request in edges:
        response = await client.post("/v1/preview", json=request)
        assert response.status_code in (200, 422), (request, response.text)
