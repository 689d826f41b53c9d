"""POST /v1/tasks/batch."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.api.conftest import ON_BOTH_STORES, claim, fields_of, message_of, problem_of


def batch(count: int, **more: Any) -> dict[str, Any]:
    return {"tasks": [{"type": "a", "payload": {"n": number}, **more} for number in range(count)]}


async def post(client: httpx.AsyncClient, tasks: list[Any], **headers: str) -> httpx.Response:
    return await client.post("/v1/tasks/batch", json={"tasks": tasks}, headers=headers)


async def listed(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await client.get("/v1/tasks?limit=1000")).json()["items"]
    return items


@ON_BOTH_STORES
async def test_it_returns_the_ids_in_the_given_order(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/tasks/batch", json=batch(20))

    assert response.status_code == 200
    ids = response.json()["ids"]
    numbers = {one["id"]: one["payload"]["n"] for one in await listed(client)}
    assert [numbers[id_] for id_ in ids] == list(range(20))


@ON_BOTH_STORES
async def test_it_accepts_ten_thousand_tasks(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/tasks/batch", json=batch(10_000))

    assert response.status_code == 200, response.text
    assert len(set(response.json()["ids"])) == 10_000
    assert len(await claim(client, max=1000)) == 1000


@ON_BOTH_STORES
async def test_it_rejects_more_than_ten_thousand_tasks_and_none(client: httpx.AsyncClient) -> None:
    for count in (0, 10_001):
        assert fields_of(await client.post("/v1/tasks/batch", json=batch(count))) == ["tasks"]
    assert await listed(client) == []


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"type": "a b"}, "tasks[17].type"),
        ({"priority": 1001}, "tasks[17].priority"),
        ({"max_attempts": 0}, "tasks[17].max_attempts"),
        ({"run_at": "9999-12-31T00:00:00Z"}, "tasks[17].run_at"),
        ({"run_at": "2030-01-01T00:00:00"}, "tasks[17].run_at"),
        ({"retry": {"kind": "x"}}, "tasks[17].retry.kind"),
        ({"labels": {"a": None}}, "tasks[17].labels"),
        ({"target": {"kind": "worker"}}, "tasks[17].target.type"),
        ({"color": "red"}, "tasks[17].color"),
        ({"idempotency_key": "a b"}, "tasks[17].idempotency_key"),
    ],
)
async def test_one_bad_item_is_named_and_none_is_written(client: httpx.AsyncClient, wrong: dict[str, Any], field: str) -> None:
    tasks = batch(50)["tasks"]
    tasks[17] = {"type": "a", **wrong}

    assert fields_of(await post(client, tasks)) == [field]
    assert await listed(client) == []


async def test_a_payload_that_is_too_large_is_named(client: httpx.AsyncClient) -> None:
    tasks = [{"type": "a"}, {"type": "a", "payload": "x" * 70_000}]

    assert fields_of(await post(client, tasks), 413) == ["tasks[1].payload"]
    assert await listed(client) == []


async def test_items_that_are_not_objects_are_named(client: httpx.AsyncClient) -> None:
    assert fields_of(await post(client, [{"type": "a"}, None, 5, [], {}])) == [
        *("tasks[1]", "tasks[2]", "tasks[3]", "tasks[4].type")
    ]


async def test_every_bad_item_is_named(client: httpx.AsyncClient) -> None:
    tasks = [{"type": "a", "priority": -1} if number % 2 else {"type": "a"} for number in range(10)]
    assert fields_of(await post(client, tasks)) == [f"tasks[{number}].priority" for number in range(1, 10, 2)]

    names = [{"type": "a b"} if number % 2 else {"type": "a"} for number in range(10)]
    assert fields_of(await post(client, names)) == [f"tasks[{number}].type" for number in range(1, 10, 2)]


async def test_at_most_a_hundred_errors_are_returned(client: httpx.AsyncClient) -> None:
    assert len(fields_of(await client.post("/v1/tasks/batch", json=batch(1000, priority=-1)))) == 100
    assert len(fields_of(await client.post("/v1/tasks/batch", json=batch(1000, queue="a b")))) == 100


async def test_it_rejects_an_unknown_field_next_to_the_tasks(client: httpx.AsyncClient) -> None:
    assert fields_of(await client.post("/v1/tasks/batch", json={**batch(1), "dry_run": True})) == ["dry_run"]
    assert message_of(await client.post("/v1/tasks/batch", json={}), "tasks") == "is required"


@pytest.mark.parametrize("body", [[], {"tasks": {}}, {"tasks": None}, {"tasks": "a"}])
async def test_it_rejects_an_invalid_body(client: httpx.AsyncClient, body: Any) -> None:
    assert len(fields_of(await client.post("/v1/tasks/batch", json=body))) == 1


async def test_a_key_twice_in_an_object_is_malformed_in_a_large_body_too(client: httpx.AsyncClient) -> None:
    tasks = b",".join(b'{"type":"a","payload":"' + b"x" * 1000 + b'"}' for _ in range(100))
    body = b'{"tasks":[' + tasks + b',{"type":"a","queue":"b","queue":"c"}]}'

    problem_of(await client.post("/v1/tasks/batch", content=body, headers={"Content-Type": "application/json"}), 400)
    assert await listed(client) == []


@ON_BOTH_STORES
async def test_escapes_and_spaces_in_a_large_body_are_accepted(client: httpx.AsyncClient) -> None:
    task = b'{ "type" : "\\u0061", "payload" : "\\u00e4\\ud83d\\ude00' + b"x" * 1000 + b'", "delay_seconds": 1.50e1 }'
    body = b'{"tasks":[' + b" , ".join([task] * 100) + b"]}"
    response = await client.post("/v1/tasks/batch", content=body, headers={"Content-Type": "application/json"})

    assert response.status_code == 200, response.text
    assert (await listed(client))[0]["payload"].startswith("ä😀x")


# Idempotency


@ON_BOTH_STORES
async def test_each_item_may_have_a_key(client: httpx.AsyncClient) -> None:
    first = (await post(client, [{"type": "a", "idempotency_key": "k1"}, {"type": "a"}])).json()["ids"]
    second = (await post(client, [{"type": "b"}, {"type": "a", "idempotency_key": "k1"}])).json()["ids"]

    assert second[1] == first[0]
    assert len(await listed(client)) == 3


@ON_BOTH_STORES
async def test_the_same_key_twice_in_a_batch_creates_one_task(client: httpx.AsyncClient) -> None:
    ids = (await post(client, [{"type": "a", "idempotency_key": "k"}] * 3)).json()["ids"]

    assert len(set(ids)) == 1
    assert [one["id"] for one in await listed(client)] == ids[:1]


@ON_BOTH_STORES
async def test_a_batch_with_the_key_of_another_task_is_refused(client: httpx.AsyncClient) -> None:
    await post(client, [{"type": "a", "idempotency_key": "k"}])
    tasks = [{"type": "b"}, {"type": "b", "idempotency_key": "k"}]

    assert fields_of(await post(client, tasks)) == ["tasks[1].idempotency_key"]
    assert len(await listed(client)) == 1


@ON_BOTH_STORES
async def test_single_submits_and_batches_share_their_keys(client: httpx.AsyncClient) -> None:
    alone = await client.post("/v1/tasks", json={"type": "a"}, headers={"Idempotency-Key": "k"})
    batched = await post(client, [{"type": "a", "idempotency_key": "k"}])

    assert batched.json()["ids"] == [alone.json()["id"]]


@ON_BOTH_STORES
async def test_the_same_batch_under_one_key_is_written_once(client: httpx.AsyncClient) -> None:
    responses = await asyncio.gather(
        *(client.post("/v1/tasks/batch", json=batch(300), headers={"Idempotency-Key": "b"}) for _ in range(3))
    )

    assert [response.json() for response in responses] == [responses[0].json()] * 3
    assert len(await listed(client)) == 300


@ON_BOTH_STORES
@pytest.mark.parametrize("count", [2, 4])
async def test_another_batch_under_the_same_key_is_refused(client: httpx.AsyncClient, count: int) -> None:
    await client.post("/v1/tasks/batch", json=batch(3), headers={"Idempotency-Key": "b"})
    other = await client.post("/v1/tasks/batch", json=batch(count), headers={"Idempotency-Key": "b"})

    assert fields_of(other) == ["Idempotency-Key"]
    assert len(await listed(client)) == 3
