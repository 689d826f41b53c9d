"""The worker protocol from end to end, as a worker written from the reference would use it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.api.conftest import ON_BOTH_STORES, claim, complete, fail, lease, read, report, submit

pytestmark = ON_BOTH_STORES


async def test_from_submit_to_result(client: httpx.AsyncClient) -> None:
    waiting = asyncio.create_task(claim(client, "reports", wait_seconds=20))
    await asyncio.sleep(0.05)
    task = await submit(client, "report", queue="reports", payload={"account": 7})
    (claimed,) = await waiting
    heartbeat = lease(claimed, progress={"fraction": 0.4, "message": "fetching"}, log="page 4 of 10")
    assert [one["status"] for one in await report(client, "heartbeat", "leases", heartbeat)] == ["ok"]
    assert (await read(client, task))["progress"] == {"fraction": 0.4, "message": "fetching"}
    assert await complete(client, claimed, result={"rows": 12}) == "ok"

    done = await read(client, task)
    assert (done["state"], done["result"], done["attempt"], done["worker"]) == ("completed", {"rows": 12}, 1, "w1")
    (entry,) = (await client.get(f"/v1/tasks/{task['id']}/log")).json()["items"]
    assert entry["text"] == "page 4 of 10"
    (attempt,) = (await client.get(f"/v1/tasks/{task['id']}/attempts")).json()["items"]
    assert (attempt["outcome"], attempt["fence"]) == ("completed", claimed["fence"])


async def test_concurrent_workers_complete_every_task_once(client: httpx.AsyncClient) -> None:
    ids = (await client.post("/v1/tasks/batch", json={"tasks": [{"type": "a", "payload": n} for n in range(200)]})).json()[
        "ids"
    ]
    statuses: list[str] = []

    async def work(name: str) -> None:
        while tasks := await claim(client, worker=name, max=7):
            responses = await report(client, "complete", "results", *(lease(one, result=one["payload"]) for one in tasks))
            statuses.extend(response["status"] for response in responses)

    await asyncio.gather(*(work(f"w{number}") for number in range(8)))
    assert statuses == ["ok"] * 200
    listed: list[dict[str, Any]] = (await client.get("/v1/tasks?limit=1000&state=completed")).json()["items"]
    assert {one["id"]: one["result"] for one in listed} == dict(zip(ids, range(200), strict=True))


async def test_a_task_can_fail_twice_and_then_succeed(client: httpx.AsyncClient) -> None:
    task = await submit(client, max_attempts=3)
    for _ in range(2):
        (claimed,) = await claim(client)
        assert await fail(client, claimed, "not yet", retry_in_seconds=0) == {"status": "ok", "next": "retry"}
        assert (await read(client, task))["error"]["message"] == "not yet"
    (claimed,) = await claim(client)
    assert await complete(client, claimed) == "ok"

    attempts = (await client.get(f"/v1/tasks/{task['id']}/attempts")).json()["items"]
    assert [(one["attempt"], one["outcome"]) for one in attempts] == [(1, "failed"), (2, "failed"), (3, "completed")]
