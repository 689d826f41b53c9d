"""Deliveries of a real server that is killed: every task is delivered, and a duplicate has the same message id."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from everbeat.store.sqlite.store import SqliteStore
from tests.delivery.receiver import Received, Receiver, response
from tests.factories import execute_raw
from tests.support.processes import ServerProcess, free_port

TASKS = 60


class Server:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.path = folder / "everbeat.db"

    async def start(self) -> ServerProcess:
        process = ServerProcess(
            "serve",
            *("--database-url", f"sqlite:///{self.path}", "--port", str(self.port), "--webhook-allow", "127.0.0.0/8"),
            *("--lease-seconds", "2", "--log-format", "json"),
            folder=self.folder,
            name=f"everbeat-{self.port}",
        )
        process.start()
        await asyncio.to_thread(process.wait_ready, f"{self.url}/readyz", 30)
        return process


async def test_a_server_that_is_killed_between_sending_and_recording_sends_the_same_message_id(tmp_path: Path) -> None:
    server = Server(tmp_path)
    process = await server.start()
    answered = 0

    async def respond(received: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        if received.headers["everbeat-attempt"] == "1" and answered >= TASKS // 2:
            await asyncio.Event().wait()  # the request has arrived, and no response is recorded
        answered += 1
        await response()(received, writer)

    async with Receiver(respond) as receiver, httpx.AsyncClient(base_url=server.url) as client:
        target = {"kind": "http", "url": receiver.url}
        tasks = [{"type": "call", "target": target, "timeout_seconds": 60} for _ in range(TASKS)]
        ids = (await client.post("/v1/tasks/batch", json={"tasks": tasks})).json()["ids"]
        async with asyncio.timeout(20):
            while len(receiver.received) < TASKS // 2 + 5:
                await asyncio.sleep(0.02)
        await asyncio.to_thread(process.kill9)
        unrecorded = {one.headers["webhook-id"] for one in receiver.received[answered:]}
        assert unrecorded
        store = SqliteStore(server.path)
        await execute_raw(store, "UPDATE tasks SET lease_until = lease_until - 60000000 WHERE state = 'running'")
        process = await server.start()
        try:
            async with asyncio.timeout(40):
                while not await all_completed(client, ids):
                    await asyncio.sleep(0.1)
        finally:
            await asyncio.to_thread(process.terminate)
        seen = Counter(one.headers["webhook-id"] for one in receiver.received)
        assert set(seen) == set(ids)
        repeated = {id_ for id_, count in seen.items() if count > 1}
        assert unrecorded <= repeated
        assert max(seen.values()) <= 2
        attempts = {one.headers["webhook-id"]: one.headers["everbeat-attempt"] for one in receiver.received}
        assert {attempts[id_] for id_ in unrecorded} == {"2"}


async def all_completed(client: httpx.AsyncClient, ids: list[str]) -> bool:
    found: dict[str, Any] = (await client.get("/v1/tasks", params={"state": "completed", "limit": 1000})).json()
    return len(found["items"]) == len(ids)
