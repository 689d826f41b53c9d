"""GET /v1/schedules."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from tests.api.conftest import definition, fields_of, problem_of


async def register(client: httpx.AsyncClient, *schedules: dict[str, Any]) -> None:
    response = await client.post("/v1/schedules/batch", json={"schedules": schedules})
    assert response.status_code == 200, response.text


async def names(client: httpx.AsyncClient, query: str) -> list[str]:
    response = await client.get(f"/v1/schedules?{query}")
    assert response.status_code == 200, response.text
    return [item["name"] for item in response.json()["items"]]


async def test_an_empty_list_has_no_next_page(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/schedules")).json() == {"items": [], "next_cursor": None}


async def test_the_pages_contain_every_schedule_once(client: httpx.AsyncClient) -> None:
    all_names = [f"s{number:02}" for number in range(7)]
    await register(client, *(definition(name=name) for name in reversed(all_names)))
    seen: list[str] = []
    cursor: str | None = ""
    pages = 0
    while cursor is not None:
        page = (await client.get("/v1/schedules", params={"limit": 3, **({"cursor": cursor} if cursor else {})})).json()
        seen += [item["name"] for item in page["items"]]
        cursor = page["next_cursor"]
        pages += 1

    assert (seen, pages) == (all_names, 3)


async def test_a_full_last_page_has_no_next_one(client: httpx.AsyncClient) -> None:
    await register(client, definition(name="a"), definition(name="b"))

    assert (await client.get("/v1/schedules?limit=2")).json()["next_cursor"] is None


async def test_the_default_limit_is_fifty(client: httpx.AsyncClient) -> None:
    await register(client, *(definition(name=f"s{number}") for number in range(60)))

    assert len(await names(client, "")) == 50
    assert len(await names(client, "limit=1000")) == 60


async def test_an_item_is_the_schedule_itself(client: httpx.AsyncClient) -> None:
    created = (await client.post("/v1/schedules", json=definition())).json()

    assert (await client.get("/v1/schedules")).json()["items"] == [created]


async def test_it_filters(client: httpx.AsyncClient) -> None:
    await register(
        client,
        definition(name="report-a", target={"kind": "worker", "type": "x", "queue": "one"}),
        definition(name="report_b", target={"kind": "worker", "type": "y", "queue": "two"}),
        definition(name="hook", target={"kind": "http", "url": "https://example.org"}),
        definition(name="r-paused", enabled=False),
    )

    assert await names(client, "name_prefix=report") == ["report-a", "report_b"]
    assert await names(client, "name_prefix=report_") == ["report_b"]
    assert await names(client, "queue=one") == ["report-a"]
    assert await names(client, "type=y") == ["report_b"]
    assert await names(client, "target=http") == ["hook"]
    assert await names(client, "status=paused") == ["r-paused"]
    assert await names(client, "status=active&target=worker&name_prefix=r") == ["report-a", "report_b"]
    assert await names(client, "status=finished") == []


async def test_of_a_repeated_parameter_the_last_one_is_used(client: httpx.AsyncClient) -> None:
    await register(client, definition(name="a"), definition(name="b"))

    assert await names(client, "name_prefix=a&name_prefix=b") == ["b"]


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "ten", "", "5.0", "1e1", "%2B5", "9" * 30, "٥", "null"])
async def test_it_rejects_a_bad_limit(client: httpx.AsyncClient, limit: str) -> None:
    assert fields_of(await client.get(f"/v1/schedules?limit={limit}")) == ["limit"]


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "cursor", ["", "x", "!!", "%00", "ä", encoded("xnightly"), encoded("na b"), encoded("t2026-01-01T00:00:00Z"), "A" * 9000]
)
async def test_it_rejects_a_bad_cursor(client: httpx.AsyncClient, cursor: str) -> None:
    assert fields_of(await client.get(f"/v1/schedules?cursor={cursor}")) == ["cursor"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        *(("status=unknown", "status"), ("status=", "status"), ("target=unknown", "target"), ("sort=name", "sort")),
        *(("name_prefix=a%20b", "name_prefix"), ("queue=%00", "queue"), ("type=", "type"), ("Status=active", "Status")),
        *(("name_prefix=a%0A", "name_prefix"), ("cursor[]=x", "cursor[]"), ("%E2%98%83=1", "☃")),
    ],
)
async def test_it_rejects_an_unknown_filter_or_value(client: httpx.AsyncClient, query: str, field: str) -> None:
    assert fields_of(await client.get(f"/v1/schedules?{query}")) == [field]


async def test_it_rejects_a_query_string_that_is_malformed(client: httpx.AsyncClient) -> None:
    problem_of(await client.get("/v1/schedules?name_prefix=%FF"), 400)
    problem_of(await client.get("/v1/schedules?" + "limit=1&" * 200), 400)
