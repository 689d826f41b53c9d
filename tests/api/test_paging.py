"""Cursors are stable under writes: changes between two pages neither repeat nor lose other items."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from everbeat.api.app import openapi_document
from tests.api.conftest import ON_BOTH_STORES, claim, definition, fail, fields_of, submit

NAMES = [f"s{number:02}" for number in range(10)]
PAGED = sorted(
    path
    for path, methods in openapi_document()["paths"].items()
    if any(one["name"] == "cursor" for one in methods.get("get", {}).get("parameters", ()))
)

Between = Callable[[], Awaitable[None]]


async def walk(client: httpx.AsyncClient, path: str, between: Between, name: str, limit: int = 3) -> list[str]:
    """Return the whole list, page by page, and run `between` after each page."""
    seen: list[str] = []
    cursor: str | None = None
    while True:
        query: dict[str, str | int] = {"limit": limit, **({} if cursor is None else {"cursor": cursor})}
        response = await client.get(path, params=query)
        assert response.status_code == 200, response.text
        seen += [item[name] for item in response.json()["items"]]
        cursor = response.json()["next_cursor"]
        if cursor is None:
            return seen
        await between()


def once(work: Between) -> Between:
    has_run = False

    async def between() -> None:
        nonlocal has_run
        if not has_run:
            has_run = True
            await work()

    return between


@ON_BOTH_STORES
@pytest.mark.parametrize("resource", ["schedules", "calendars"])
async def test_lists_by_name_lose_and_repeat_no_item(client: httpx.AsyncClient, resource: str) -> None:
    body: dict[str, Any] = definition(name=...) if resource == "schedules" else {"dates": ["2026-12-24"]}
    for name in NAMES:
        assert (await client.put(f"/v1/{resource}/{name}", json=body)).status_code == 201

    async def between() -> None:
        for name in ("s00a", "s99"):  # before and after the end of the first page
            await client.put(f"/v1/{resource}/{name}", json=body)
        for name in ("s02", "s05"):  # the last item of the first page, and one of a later page
            await client.delete(f"/v1/{resource}/{name}")

    seen = await walk(client, f"/v1/{resource}", once(between), "name")
    assert seen == [*NAMES[:5], *NAMES[6:], "s99"]


@ON_BOTH_STORES
async def test_lists_of_tasks_lose_and_repeat_no_item(client: httpx.AsyncClient) -> None:
    ids = [(await submit(client, "work", queue=f"q{number}"))["id"] for number in range(10)]

    async def between() -> None:
        await submit(client, "new")
        for number in (0, 3, 7, 9):  # they move from the live to the finished tasks, on both sides of the end of the page
            await client.post(f"/v1/tasks/{ids[number]}/cancel")

    assert await walk(client, "/v1/tasks", once(between), "id") == list(reversed(ids))


@ON_BOTH_STORES
async def test_lists_of_dead_letters_lose_and_repeat_no_item(client: httpx.AsyncClient) -> None:
    async def make_dead_letter(count: int) -> list[str]:
        for _ in range(count):
            await submit(client, max_attempts=1)
        claimed = await claim(client)
        for task in claimed:
            await fail(client, task)
        return [task["id"] for task in claimed]

    dead = await make_dead_letter(8)
    listed = [letter["task_id"] for letter in (await client.get("/v1/dead-letters")).json()["items"]]
    assert sorted(listed) == sorted(dead)

    async def between() -> None:
        await make_dead_letter(2)
        body = {"filter": {"task_ids": [listed[0], listed[2], listed[5]]}}
        assert (await client.post("/v1/dead-letters/purge", json=body)).json() == {"count": 3}

    seen = await walk(client, "/v1/dead-letters", once(between), "task_id")
    assert seen == [*listed[:5], *listed[6:]]


@pytest.mark.parametrize("path", PAGED)
async def test_every_list_limits_its_pages_and_refuses_invalid_cursors(client: httpx.AsyncClient, path: str) -> None:
    await client.post("/v1/schedules", json=definition())
    task = await submit(client)
    assert (await client.put("/v1/checks/backup", json={"every_seconds": 60})).status_code == 201
    address = path.replace("{ref}", "nightly").replace("{id}", task["id"]).replace("{tenant}", "default")
    address = address.replace("{name}", "backup")
    for limit in ("0", "1001", "-1", "x", "1.5", ""):
        assert fields_of(await client.get(address, params={"limit": limit})) == ["limit"]
    for limit in ("1", "1000"):
        assert (await client.get(address, params={"limit": limit})).status_code == 200
    for cursor in ("", "x", "!", "e" * 600, "enp6eg", "\x00"):
        assert fields_of(await client.get(address, params={"cursor": cursor})) == ["cursor"]
    assert fields_of(await client.get(address, params={"offset": "1"})) == ["offset"]
