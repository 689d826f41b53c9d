"""Callers with invented keys, callers that probe other tenants, and a tenant that submits very many tasks."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from typing import Any
from uuid import uuid4

import httpx

from everbeat.core.keys import make_key
from tests.attack.registry import attack
from tests.attack.target import Target, bearer

_JSON = {"Content-Type": "application/json"}


@attack
async def invented_keys(target: Target) -> None:
    """Keys with a valid checksum, each of which the server has to look up."""
    async with target.client() as client:

        async def send(number: int) -> None:
            headers = bearer(make_key(secrets.token_bytes(32)))
            response = await client.request(("GET", "POST")[number % 2], "/v1/tasks", headers=headers)
            assert response.status_code in (401, 429), response.status_code
            assert response.json()["type"].endswith(("unauthenticated", "rate-limited"))

        for _ in range(4 if target.is_long else 1):
            await asyncio.gather(*(send(number) for number in range(100)))


@attack
async def keys_in_other_places(target: Target) -> None:
    """A key counts only in its header, and is not repeated in an error."""
    key = target.keys["read"]
    forms: list[tuple[str, dict[str, str]]] = [
        (f"/v1/schedules?key={key}", {}),
        ("/v1/schedules", {"X-Api-Key": key}),
        ("/v1/schedules", {"Authorization": f"Basic {key}"}),
        ("/v1/schedules", {"Authorization": f"Bearer {key} {key}"}),
        ("/v1/schedules", {"Authorization": f"Bearer {key[:-1]}"}),
        ("/v1/schedules", {"Cookie": f"key={key}"}),
    ]
    async with target.client() as client:
        for path, headers in forms:
            response = await client.get(path, headers=headers)
            assert response.status_code in (400, 401, 429), (path[:20], headers.keys(), response.status_code)
            assert key not in response.text
    assert key not in target.process.logs()


async def _page(client: httpx.AsyncClient, what: str) -> list[Any]:
    """Return the first items. After invented keys from the same address, a key that is not cached gets 429 for a second."""
    for _ in range(40):
        response = await client.get(f"/v1/{what}", params={"limit": 20})
        if response.status_code != 429:
            break
        await asyncio.sleep(0.1)
    assert response.status_code == 200, response.text
    items: list[Any] = response.json()["items"]
    return items


@attack
async def probes_of_another_tenant(target: Target) -> None:
    """Every route with names and ids of the neighbor: the response is that for what does not exist."""
    headers = bearer(target.neighbor_keys["read"])
    async with httpx.AsyncClient(base_url=target.base, headers=headers, trust_env=False, timeout=30) as neighbor:
        schedules, tasks = [await _page(neighbor, what) for what in ("schedules", "tasks")]
    if not target.is_long:
        schedules, tasks = schedules[:4], tasks[:4]
    refs = [schedule[field] for schedule in schedules for field in ("id", "name")]
    probes = [("read", "GET", f"/v1/schedules/{ref}{rest}") for ref in refs for rest in ("", "/ticks", "/why")]
    probes += [
        ("manage", "POST", f"/v1/schedules/{ref}/{verb}") for ref in refs[:10] for verb in ("pause", "resume", "trigger")
    ]
    probes += [("manage", "DELETE", f"/v1/schedules/{ref}") for ref in refs[:10]]
    probes += [("read", "GET", f"/v1/tasks/{task['id']}{rest}") for task in tasks for rest in ("", "/attempts", "/log")]
    probes += [("manage", "POST", f"/v1/tasks/{task['id']}/{verb}") for task in tasks for verb in ("cancel", "retry")]
    async with target.client("read") as reader, target.client("manage") as manager, target.client("work") as worker:
        clients = {"read": reader, "manage": manager}

        async def probe(scope: str, method: str, path: str) -> None:
            response = await clients[scope].request(method, path)
            assert response.status_code in (404, 429), (method, path, response.status_code)

        for start in range(0, len(probes), 50):
            await asyncio.gather(*(probe(*one) for one in probes[start : start + 50]))
        results = [{"id": id_, "fence": 1} for id_ in [*(task["id"] for task in tasks), str(uuid4())]]
        response = await worker.post("/v1/worker/complete", json={"worker": "w", "results": results})
        assert {one["status"] for one in response.json()["results"]} <= {"stale"}


@attack
async def very_many_tasks(target: Target) -> None:
    """One tenant submits batches of 10,000 as fast as it can."""
    batches = 4 if target.is_long else 1
    body = b'{"tasks":[' + b",".join([b'{"type":"t","queue":"flood"}'] * 10_000) + b"]}"
    async with target.client("submit") as client:

        async def send() -> None:
            response = await client.post("/v1/tasks/batch", content=body, headers=_JSON)
            assert response.status_code in (200, 201, 429, 503), (response.status_code, response.text[:300])
            assert response.status_code < 400 or int(response.headers["Retry-After"]) >= 1

        await asyncio.gather(*(send() for _ in range(batches)))


@attack
async def event_streams_that_are_not_read(target: Target) -> None:
    """Readers with small buffers that stop to read, while events arrive."""
    request = target.head("GET", "/v1/events", "read", {"Accept": "text/event-stream"})
    tasks = {"tasks": [{"type": "t", "queue": "streamed", "labels": {"filler": "x" * 200}}] * 200}
    async with contextlib.AsyncExitStack() as stack, target.client("submit") as client:
        for _ in range(16):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
            connection.setblocking(False)
            stack.callback(connection.close)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(connection, ("127.0.0.1", target.port))
            await loop.sock_sendall(connection, request)
        for _ in range(10 if target.is_long else 3):
            response = await client.post("/v1/tasks/batch", json=tasks)
            assert response.status_code in (200, 201, 429), response.text[:300]
