"""Payloads above 64 KiB: submitted, claimed, retried and read like any other payload; and failures of the blob store."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from everbeat.api.app import ApiContext
from everbeat.services.blobs import BlobStore
from everbeat.store.base import Store
from tests.api.conftest import (
    ON_BOTH_STORES,
    claim,
    complete,
    definition,
    fail,
    fields_of,
    make_client,
    make_context,
    message_of,
    problem_of,
    read,
    submit,
)

pytestmark = ON_BOTH_STORES

MIB = 1024 * 1024
LARGE = {"text": "ä" * (MIB // 2), "list": [1, 2, 3]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def context(store: Store, folder: Path) -> ApiContext:
    return make_context(store, BlobStore(folder.as_uri()))


@pytest.fixture
async def no_blob_client(store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server without a blob store."""
    async with make_client(make_context(store)) as client:
        yield client


def files(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*/*/*") if path.is_file()]


async def dead_letter(client: httpx.AsyncClient, task: dict[str, Any]) -> dict[str, Any]:
    letter: dict[str, Any] = (await client.get(f"/v1/dead-letters/{task['id']}")).json()
    return letter


async def test_a_worker_gets_a_large_payload_unchanged(client: httpx.AsyncClient, folder: Path) -> None:
    task = await submit(client, payload=LARGE)
    assert (task["payload"], task["payload_omitted"]) == (None, True)
    assert len(files(folder)) == 1
    (claimed,) = await claim(client)
    assert claimed["payload"] == LARGE
    assert "payload_ref" not in claimed
    assert await complete(client, claimed) == "ok"


async def test_a_waiting_worker_gets_a_large_payload_immediately(client: httpx.AsyncClient, context: ApiContext) -> None:
    waiting = asyncio.create_task(claim(client, wait_seconds=10))
    while not any(
        wait_queue.waiting and not wait_queue.is_signalled for wait_queue in context.leases._long_polls._wait_queues.values()
    ):
        await asyncio.sleep(0.01)
    await submit(client, payload=LARGE)
    (claimed,) = await waiting
    assert claimed["payload"] == LARGE


async def test_a_large_payload_is_returned_by_id_and_omitted_from_lists(client: httpx.AsyncClient) -> None:
    task = await submit(client, payload=LARGE)
    small = await submit(client, payload={"a": 1})
    found = await read(client, task)
    assert (found["payload"], found["payload_omitted"]) == (LARGE, False)
    without_payload = (await client.get(f"/v1/tasks/{task['id']}?payload=omit")).json()
    assert (without_payload["payload"], without_payload["payload_omitted"]) == (None, True)
    items = (await client.get("/v1/tasks")).json()["items"]
    shown = {item["id"]: (item["payload"], item["payload_omitted"]) for item in items}
    assert shown == {task["id"]: (None, True), small["id"]: ({"a": 1}, False)}
    assert fields_of(await client.get(f"/v1/tasks/{task['id']}?payload=no")) == ["payload"]


async def test_retries_and_replays_share_the_payload(client: httpx.AsyncClient, folder: Path) -> None:
    task = await submit(client, payload=LARGE, max_attempts=1)
    (claimed,) = await claim(client)
    await fail(client, claimed)
    letter = await dead_letter(client, task)
    assert (letter["payload"], letter["payload_omitted"]) == (LARGE, False)
    (item,) = (await client.get("/v1/dead-letters")).json()["items"]
    assert (item["payload"], item["payload_omitted"]) == (None, True)
    for path in (f"/v1/dead-letters/{task['id']}/replay", f"/v1/tasks/{task['id']}/retry"):
        assert (await client.post(path)).status_code == 201
        (again,) = await claim(client)
        assert again["payload"] == LARGE
        await complete(client, again)
    assert len(files(folder)) == 1


async def test_a_payload_may_have_ten_mebibytes(client: httpx.AsyncClient) -> None:
    task = await submit(client, payload="x" * (10 * MIB - 2))
    (claimed,) = await claim(client)
    assert (claimed["id"], len(claimed["payload"])) == (task["id"], 10 * MIB - 2)
    response = await client.post("/v1/tasks", json={"type": "a", "payload": "x" * (10 * MIB - 1)})
    assert fields_of(response, 413) == ["payload"]


async def test_a_batch_may_have_many_large_payloads(client: httpx.AsyncClient, folder: Path) -> None:
    payloads = ["x" * 70_000, "small", *(f"{number}" * 100_000 for number in range(10))]
    response = await client.post("/v1/tasks/batch", json={"tasks": [{"type": "a", "payload": one} for one in payloads]})
    assert len(response.json()["ids"]) == 12
    assert len(files(folder)) == 11
    claimed = await claim(client)
    assert sorted(task["payload"] for task in claimed) == sorted(payloads)


async def test_a_repeated_key_leaves_no_unused_payload(client: httpx.AsyncClient, folder: Path) -> None:
    body, headers = {"type": "a", "payload": LARGE}, {"Idempotency-Key": "k"}
    first = await client.post("/v1/tasks", json=body, headers=headers)
    again = await client.post("/v1/tasks", json=body, headers=headers)
    assert (first.status_code, again.status_code, again.json()["id"]) == (201, 200, first.json()["id"])
    other = await client.post("/v1/tasks", json={**body, "payload": "y" * MIB}, headers=headers)
    assert fields_of(other) == ["Idempotency-Key"]
    assert len(files(folder)) == 1


@pytest.mark.parametrize("own_keys", [True, False])
async def test_a_repeated_batch_leaves_no_unused_payload(client: httpx.AsyncClient, folder: Path, own_keys: bool) -> None:
    keys = ["one", "two"] if own_keys else [None, None]
    tasks = [{"type": "a", "payload": LARGE, **({"idempotency_key": key} if key else {})} for key in keys]
    headers = {} if own_keys else {"Idempotency-Key": "k"}
    responses = [(await client.post("/v1/tasks/batch", json={"tasks": tasks}, headers=headers)).json() for _ in range(2)]
    assert responses[0] == responses[1]
    assert len(files(folder)) == 2


async def test_a_trigger_may_have_a_large_payload_and_a_schedule_may_not(client: httpx.AsyncClient) -> None:
    assert (await client.post("/v1/schedules", json=definition())).status_code == 201
    assert (await client.post("/v1/schedules/nightly/trigger", json={"payload": LARGE})).status_code == 201
    (claimed,) = await claim(client)
    assert claimed["payload"] == LARGE
    response = await client.post("/v1/schedules", json=definition(name="other", payload=LARGE))
    assert "schedule" in message_of(response, "payload", 413)


async def test_a_claim_returns_payloads_up_to_its_budget(client: httpx.AsyncClient, context: ApiContext) -> None:
    context.leases._payloads._max_claimed_bytes = 3 * MIB
    for number in range(5):
        await submit(client, payload=f"{number}" * MIB)
    small = await submit(client, payload="small")
    first = await claim(client)
    assert [task["payload"][0] for task in first] == ["0", "1", "s"]
    assert first[-1]["id"] == small["id"]
    second = await claim(client)
    assert [(task["payload"][0], task["attempt"]) for task in second] == [("2", 1), ("3", 1)]
    assert len(await claim(client)) == 1


async def test_while_the_blob_store_is_unavailable_other_tasks_are_claimed(client: httpx.AsyncClient, folder: Path) -> None:
    task = await submit(client, payload=LARGE)
    small = await submit(client, payload="small")
    folder.rename(folder.with_name("moved"))
    assert [claimed["id"] for claimed in await claim(client)] == [small["id"]]
    found = (await client.get(f"/v1/tasks/{task['id']}?payload=omit")).json()
    assert (found["state"], found["attempt"]) == ("scheduled", 0)
    for response in (await client.get(f"/v1/tasks/{task['id']}"),):
        assert problem_of(response, 503)["type"].endswith(":blob-store-unavailable")
        assert int(response.headers["retry-after"]) >= 1
    folder.with_name("moved").rename(folder)
    soon = {"run_at": "2020-01-01T00:00:00Z"}
    assert (await client.post(f"/v1/tasks/{task['id']}/reschedule", json=soon)).status_code == 200
    (claimed,) = await claim(client)
    assert (claimed["payload"], claimed["attempt"]) == (LARGE, 1)


async def test_a_submit_while_the_blob_store_is_unavailable_gets_503(client: httpx.AsyncClient, folder: Path) -> None:
    folder.touch()  # a file in place of the folder
    response = await client.post("/v1/tasks", json={"type": "a", "payload": LARGE})
    assert problem_of(response, 503)["type"].endswith(":blob-store-unavailable")
    assert "retry-after" in response.headers
    assert (await client.get("/v1/tasks")).json()["items"] == []
    await submit(client, payload="small")


async def test_a_task_whose_payload_is_missing_is_a_dead_letter(client: httpx.AsyncClient, folder: Path) -> None:
    task = await submit(client, payload=LARGE)
    small = await submit(client, payload="small")
    for path in files(folder):
        path.unlink()
    assert [claimed["id"] for claimed in await claim(client)] == [small["id"]]
    found = await read(client, task)
    assert (found["state"], found["error"]["kind"]) == ("dead", "payload-missing")
    assert (found["payload"], found["payload_omitted"]) == (None, True)
    letter = await dead_letter(client, task)
    assert letter["reason"] == "the payload is missing"


async def test_a_missing_blob_store_makes_no_task_dead(client: httpx.AsyncClient, folder: Path) -> None:
    """A folder that is not mounted exists and is empty."""
    task = await submit(client, payload=LARGE)
    shutil.rmtree(folder)
    folder.mkdir()
    assert await claim(client) == []
    assert (await client.get(f"/v1/tasks/{task['id']}?payload=omit")).json()["state"] == "scheduled"


async def test_a_server_without_a_blob_store_refuses_large_payloads(no_blob_client: httpx.AsyncClient) -> None:
    response = await no_blob_client.post("/v1/tasks", json={"type": "a", "payload": LARGE})
    assert "65536" in message_of(response, "payload", 413)
    batch = {"tasks": [{"type": "a"}, {"type": "a", "payload": LARGE}]}
    assert fields_of(await no_blob_client.post("/v1/tasks/batch", json=batch), 413) == ["tasks[1].payload"]
    await submit(no_blob_client, payload="x" * 65_534)
