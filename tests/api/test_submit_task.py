"""POST /v1/tasks."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest

from everbeat.api.app import ApiContext
from everbeat.core.protocol import LeaseClaimRequest
from everbeat.core.schedules import DEFAULT_TENANT
from tests.api.conftest import (
    ON_BOTH_STORES,
    claim,
    fields_of,
    message_of,
    problem_of,
    read,
    submit,
)

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


@ON_BOTH_STORES
async def test_it_returns_the_task_and_its_location(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/tasks", json={"type": "report", "queue": "reports", "payload": {"account": 7}})

    assert response.status_code == 201
    task = response.json()
    assert UUID(task["id"]).version == 7
    assert (task["type"], task["queue"], task["payload"]) == ("report", "reports", {"account": 7})
    assert (task["state"], task["origin"], task["attempt"], task["max_attempts"]) == ("ready", "submit", 0, 3)
    assert task["target"] == {"kind": "worker", "type": "report", "queue": "reports"}
    assert response.headers["location"] == f"/v1/tasks/{task['id']}"
    assert (await client.get(response.headers["location"])).json() == task


@ON_BOTH_STORES
async def test_only_the_type_is_required(client: httpx.AsyncClient) -> None:
    task = await submit(client, "a")

    assert (task["queue"], task["payload"], task["priority"], task["timeout_seconds"]) == ("default", {}, 100, 3600)
    assert task["retry"] == {"kind": "exponential", "base_seconds": 1, "factor": 2, "max_seconds": 3600, "jitter": True}
    assert message_of(await client.post("/v1/tasks", json={}), "type") == "is required"


@ON_BOTH_STORES
async def test_every_field_is_kept(client: httpx.AsyncClient) -> None:
    given = {
        "priority": 0,
        "max_attempts": 100,
        "retry": {"kind": "fixed", "base_seconds": 5.5, "factor": 1, "max_seconds": 60, "jitter": False},
        "timeout_seconds": 0.5,
        "labels": {"team": "billing", "note": "ä ö"},
        "payload": ["x", None, 10**30, {"rtl": "\u202eabc", "nul": "a\x00b", "emoji": "😀"}],
    }
    task = await submit(client, "a", **given)

    assert {field: task[field] for field in given} == given
    assert await read(client, task) == task


@ON_BOTH_STORES
async def test_a_delay_counts_from_now(client: httpx.AsyncClient) -> None:
    task = await submit(client, "a", delay_seconds=600)

    assert task["state"] == "scheduled"
    delay = datetime.fromisoformat(task["run_at"]) - datetime.fromisoformat(task["created_at"])
    assert delay == timedelta(seconds=600)
    assert await claim(client) == []


@ON_BOTH_STORES
async def test_a_time_with_any_offset_is_returned_in_utc(client: httpx.AsyncClient) -> None:
    task = await submit(client, "a", run_at="2090-01-31T12:00:00+02:00")

    assert (task["run_at"], task["state"]) == ("2090-01-31T10:00:00.000000Z", "scheduled")
    assert await read(client, task) == task


@ON_BOTH_STORES
@pytest.mark.parametrize("run_at", ["2020-01-01T00:00:00Z", "0002-01-01T00:00:00Z"])
async def test_a_run_at_in_the_past_makes_the_task_ready(client: httpx.AsyncClient, run_at: str) -> None:
    task = await submit(client, "a", run_at=run_at)

    assert task["state"] == "ready"
    assert [one["id"] for one in await claim(client)] == [task["id"]]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"type": ""}, "type"),
        ({"type": "a b"}, "type"),
        ({"type": "x" * 201}, "type"),
        ({"type": None}, "type"),
        ({"type": 5}, "type"),
        ({"queue": "a/b"}, "queue"),
        ({"queue": ""}, "queue"),
        ({"priority": -1}, "priority"),
        ({"priority": 1001}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": 10**30}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 101}, "max_attempts"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": 8 * 86_400}, "timeout_seconds"),
        ({"delay_seconds": -1}, "delay_seconds"),
        ({"delay_seconds": 1e300}, "delay_seconds"),
        ({"delay_seconds": 1, "run_at": "2030-01-01T00:00:00Z"}, "delay_seconds"),
        ({"run_at": "2030-01-01T00:00:00"}, "run_at"),
        ({"run_at": "9999-12-31T23:59:59Z"}, "run_at"),
        ({"run_at": "0001-01-01T00:00:00Z"}, "run_at"),
        ({"run_at": "tomorrow"}, "run_at"),
        ({"run_at": 1_900_000_000}, "run_at"),
        ({"retry": {"kind": "never"}}, "retry.kind"),
        ({"retry": {"factor": 0}}, "retry.factor"),
        ({"retry": {"color": "red"}}, "retry.color"),
        ({"labels": {"a b": "c"}}, "labels.'a b'"),
        ({"labels": {"a": 5}}, "labels"),
        ({"labels": {"a": "x" * 257}}, "labels.'a'"),
        ({"labels": {f"l{number}": "" for number in range(33)}}, "labels"),
        ({"payload": deep(64)}, "payload"),
        ({"target": {"kind": "unknown"}}, "target.kind"),
        ({"target": {"kind": "worker", "type": "other"}}, "target.type"),
        ({"target": {"kind": "kafka", "topic": "t", "broker": "b"}}, "target.broker"),
        ({"target": {"kind": "http", "url": "ftp://x"}}, "target.url"),
        ({"color": "red"}, "color"),
        ({"id": "01a1e231-932d-71cb-8dab-e37075a3e37c"}, "id"),
        ({"state": "completed"}, "state"),
        ({"tenant_id": "00000000-0000-0000-0000-000000000007"}, "tenant_id"),
    ],
)
async def test_an_invalid_field_is_named(client: httpx.AsyncClient, wrong: dict[str, Any], field: str) -> None:
    assert fields_of(await client.post("/v1/tasks", json={"type": "a", **wrong})) == [field]
    assert (await client.get("/v1/tasks")).json()["items"] == []


async def test_it_names_all_invalid_fields(client: httpx.AsyncClient) -> None:
    wrong = {"type": "a b", "queue": "c d", "retry": {"factor": 0}, "labels": {"e f": ""}}

    assert set(fields_of(await client.post("/v1/tasks", json=wrong))) == {"type", "queue", "retry.factor", "labels.'e f'"}


async def test_a_payload_that_is_too_large_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/tasks", json={"type": "a", "payload": "x" * 65_536})

    assert fields_of(response, 413) == ["payload"]
    assert (await client.post("/v1/tasks", json={"type": "a", "payload": "x" * 65_534})).status_code == 201


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b'{"type":"a","payload":NaN}', b'{"type":"a","payload":1e999}', b'{"type":"a","type":"b"}'),
        *(b'{"type":"a","payload":{"a":1,"a":2}}', b'{"type":"a","payload":{"a":1,"\\u0061":2}}'),
        *(b'{"type":"a","payload":"\\ud800"}', b'{"type":"a","payload":"\xff"}', b"[" * 100_000),
    ],
)
async def test_a_body_that_is_not_strict_json_is_malformed(client: httpx.AsyncClient, body: bytes) -> None:
    problem_of(await client.post("/v1/tasks", content=body, headers={"Content-Type": "application/json"}), 400)
    assert (await client.get("/v1/tasks")).json()["items"] == []


async def test_a_body_that_is_not_an_object_is_refused(client: httpx.AsyncClient) -> None:
    for body in ([], "a", 5, None, [{"type": "a"}]):
        assert fields_of(await client.post("/v1/tasks", content=json.dumps(body), headers={"Content-Type": "application/json"}))


async def test_a_query_parameter_is_refused(client: httpx.AsyncClient) -> None:
    assert fields_of(await client.post("/v1/tasks?dry_run=true", json={"type": "a"})) == ["dry_run"]


@ON_BOTH_STORES
async def test_the_same_key_and_task_create_one_task(client: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "report-7"}
    first = await client.post("/v1/tasks", json={"type": "a", "payload": {"x": 1, "y": 2}}, headers=headers)
    second = await client.post("/v1/tasks", json={"payload": {"y": 2, "x": 1}, "type": "a"}, headers=headers)

    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json() == first.json()
    assert second.headers["location"] == first.headers["location"]
    assert len((await client.get("/v1/tasks")).json()["items"]) == 1


@ON_BOTH_STORES
async def test_a_repeated_key_returns_the_current_state_of_the_task(client: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "report-7"}
    task = (await client.post("/v1/tasks", json={"type": "a"}, headers=headers)).json()
    await client.post(f"/v1/tasks/{task['id']}/cancel")

    assert (await client.post("/v1/tasks", json={"type": "a"}, headers=headers)).json()["state"] == "cancelled"


@ON_BOTH_STORES
async def test_the_same_key_with_another_task_is_refused(client: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "report-7"}
    await client.post("/v1/tasks", json={"type": "a"}, headers=headers)

    assert fields_of(await client.post("/v1/tasks", json={"type": "a", "priority": 1}, headers=headers)) == ["Idempotency-Key"]
    assert len((await client.get("/v1/tasks")).json()["items"]) == 1


@ON_BOTH_STORES
async def test_a_refused_task_does_not_use_up_the_key(client: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "report-7"}
    fields_of(await client.post("/v1/tasks", json={"type": "a b"}, headers=headers))

    assert (await client.post("/v1/tasks", json={"type": "a"}, headers=headers)).status_code == 201


@ON_BOTH_STORES
async def test_concurrent_submits_with_one_key_create_one_task(client: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "report-7"}
    responses = await asyncio.gather(*(client.post("/v1/tasks", json={"type": "a"}, headers=headers) for _ in range(20)))

    assert sorted(response.status_code for response in responses) == [200] * 19 + [201]
    assert len({response.json()["id"] for response in responses}) == 1
    assert len((await client.get("/v1/tasks")).json()["items"]) == 1


@ON_BOTH_STORES
async def test_a_refused_key_does_not_affect_concurrent_submits(client: httpx.AsyncClient) -> None:
    await client.post("/v1/tasks", json={"type": "a"}, headers={"Idempotency-Key": "taken"})
    keys = ["k1", "taken", "k2", "k3"]
    responses = await asyncio.gather(
        *(client.post("/v1/tasks", json={"type": "b"}, headers={"Idempotency-Key": key}) for key in keys)
    )

    assert [response.status_code for response in responses] == [201, 422, 201, 201]


@pytest.mark.parametrize("key", ["", "a b", "ä", "x" * 256])
async def test_an_invalid_key_is_refused(client: httpx.AsyncClient, key: str) -> None:
    headers = httpx.Headers({"Idempotency-Key": key}, "latin-1")
    assert fields_of(await client.post("/v1/tasks", json={"type": "a"}, headers=headers)) == ["Idempotency-Key"]


async def test_a_key_in_the_body_is_refused_with_a_hint(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/tasks", json={"type": "a", "idempotency_key": "k"})

    assert "Idempotency-Key" in message_of(response, "idempotency_key")


@ON_BOTH_STORES
async def test_concurrent_submits_are_all_stored(client: httpx.AsyncClient) -> None:
    tasks = await asyncio.gather(*(submit(client, "a", payload=number) for number in range(100)))

    listed = (await client.get("/v1/tasks?limit=1000")).json()["items"]
    assert {one["id"]: one["payload"] for one in listed} == {one["id"]: one["payload"] for one in tasks}


@ON_BOTH_STORES
async def test_the_trace_context_is_passed_to_the_worker(client: httpx.AsyncClient) -> None:
    await client.post("/v1/tasks", json={"type": "a", "queue": "traced"}, headers={"traceparent": TRACE})
    await client.post("/v1/tasks", json={"type": "a", "queue": "untraced"}, headers={"traceparent": "nonsense"})

    assert [one["traceparent"] for one in await claim(client, "traced")] == [TRACE]
    assert [one["traceparent"] for one in await claim(client, "untraced")] == [None]


@ON_BOTH_STORES
async def test_tasks_for_other_targets_are_not_claimed_by_workers(client: httpx.AsyncClient) -> None:
    task = await submit(client, "call", target={"kind": "http", "url": "https://example.com/hook"})

    assert (task["queue"], task["target"]["kind"]) == ("everbeat:http", "http")
    assert await claim(client) == []


@ON_BOTH_STORES
async def test_a_waiting_worker_gets_the_task(client: httpx.AsyncClient, context: ApiContext) -> None:
    wanted = LeaseClaimRequest(worker="w", queues=["default"], wait_seconds=30)
    waiting = asyncio.create_task(context.leases.claim(DEFAULT_TENANT, wanted))
    await asyncio.sleep(0.1)
    started = datetime.now(UTC)
    task = await submit(client, "a")

    (claimed,) = await waiting
    assert str(claimed.id) == task["id"]
    assert datetime.now(UTC) - started < timedelta(seconds=0.5)
