"""Clients that request large responses and do not read them."""

from __future__ import annotations

import asyncio
import contextlib
import json

from tests.attack.registry import attack
from tests.attack.target import Target, bearer

_PAYLOAD_BYTES = 60_000
_CLIENTS = 12


async def _submit_large_tasks(target: Target, count: int) -> None:
    """Submit tasks with large payloads, unless an earlier run of the attack has done so."""
    headers = {"Content-Type": "application/json"}
    async with target.client("read") as reader:
        found = (await reader.get("/v1/tasks", params={"type": "large", "limit": 1})).json()["items"]
    if found:
        return
    task = {"type": "large", "delay_seconds": 86_400, "payload": "x" * _PAYLOAD_BYTES}
    body = json.dumps({"tasks": [task] * 100})
    async with target.client("submit") as client:
        for _ in range(count // 100):
            response = await client.post("/v1/tasks/batch", content=body, headers=headers)
            assert response.status_code == 200, response.text


@attack
async def large_pages_that_nobody_reads(target: Target) -> None:
    """12 clients request the largest page and do not read it. That needs little memory, and others are served."""
    await _submit_large_tasks(target, 1000 if target.is_long else 200)
    before = target.megabytes()
    head = target.head("GET", "/v1/tasks?limit=1000&type=large", "read")
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(_CLIENTS):
            _, writer = await stack.enter_async_context(target.connect(read_limit=1024))
            writer.write(head)
        await asyncio.sleep(2)
        assert target.megabytes() - before < 100
        await _read_pages(target)


async def _read_pages(target: Target) -> None:
    """A client that reads gets all pages, even with the key of the attacker, and so does the neighbor."""
    async with target.client("read") as client:
        page = await client.get("/v1/tasks", params={"type": "large", "limit": 100})
        assert page.status_code in (200, 429), page.text
        if page.status_code == 200:
            assert len(page.content) < 4_500_000
            assert page.json()["next_cursor"] is not None
        else:
            assert int(page.headers["retry-after"]) >= 1
    async with target.client() as client:
        page = await client.get("/v1/schedules", headers=bearer(target.neighbor_keys["read"]), params={"limit": 1000})
        assert page.status_code == 200, page.text


@attack
async def pipelined_requests_that_nobody_reads(target: Target) -> None:
    """Many requests in one connection, whose responses are not read."""
    before = target.megabytes()
    head = target.head("GET", "/v1/openapi.json", "read")
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(_CLIENTS):
            _, writer = await stack.enter_async_context(target.connect(read_limit=1024))
            writer.write(head * 100)
        await asyncio.sleep(1)
        assert target.megabytes() - before < 100
