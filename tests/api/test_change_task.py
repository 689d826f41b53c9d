"""POST /v1/tasks/{id}/cancel, …/retry and …/reschedule."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import httpx
import pytest

from everbeat.store.base import Store
from tests.api.conftest import (
    ON_BOTH_STORES,
    claim,
    complete,
    fail,
    fields_of,
    lease,
    problem_of,
    read,
    report,
    submit,
)
from tests.factories import OTHER_TENANT, make_task

VERBS: dict[str, Any] = {"cancel": None, "retry": None, "reschedule": {"run_at": "2090-01-01T00:00:00Z"}}


async def change(client: httpx.AsyncClient, task: dict[str, Any], verb: str, **more: Any) -> httpx.Response:
    return await client.post(f"/v1/tasks/{task['id']}/{verb}", **more)


@ON_BOTH_STORES
@pytest.mark.parametrize("verb", VERBS)
async def test_an_unknown_task_is_not_found(client: httpx.AsyncClient, store: Store, verb: str) -> None:
    other = make_task(tenant_id=OTHER_TENANT)
    await store.task_submit([other])

    for id_ in ("x", str(uuid4()), str(other.id)):
        problem_of(await client.post(f"/v1/tasks/{id_}/{verb}", json=VERBS[verb]), 404)
    assert [task.state for task in await store.task_find(OTHER_TENANT, [other.id])] == ["ready"]


@pytest.mark.parametrize("verb", VERBS)
async def test_unknown_fields_are_refused(client: httpx.AsyncClient, verb: str) -> None:
    task = await submit(client)

    assert fields_of(await change(client, task, verb, json={"force": True, **(VERBS[verb] or {})})) == ["force"]


# Cancel


@ON_BOTH_STORES
@pytest.mark.parametrize("when", [{}, {"delay_seconds": 600}])
async def test_a_waiting_task_is_cancelled_immediately(client: httpx.AsyncClient, when: dict[str, Any]) -> None:
    task = await submit(client, **when)
    cancelled = (await change(client, task, "cancel")).json()

    assert (cancelled["state"], cancelled["attempt"]) == ("cancelled", 0)
    assert cancelled["finished_at"] is not None
    assert await claim(client) == []
    assert (await change(client, task, "cancel")).json() == cancelled


@ON_BOTH_STORES
async def test_the_heartbeat_of_a_running_task_returns_the_cancel_request(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    (claimed,) = await claim(client)
    requested = (await change(client, task, "cancel")).json()
    assert (requested["state"], requested["cancel_requested"]) == ("running", True)

    (heartbeat,) = await report(client, "heartbeat", "leases", lease(claimed))
    assert heartbeat["status"] == "cancel"
    (result,) = await report(client, "fail", "failures", lease(claimed, error={"message": "stopped", "kind": "cancelled"}))
    assert result["status"] == "ok"
    assert (await read(client, task))["state"] == "cancelled"


@ON_BOTH_STORES
async def test_a_task_completed_before_its_worker_sees_the_cancel_is_completed(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    (claimed,) = await claim(client)
    await change(client, task, "cancel")

    assert await complete(client, claimed, result=1) == "ok"
    assert (await read(client, task))["state"] == "completed"


@ON_BOTH_STORES
async def test_a_finished_task_cannot_be_cancelled(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    (claimed,) = await claim(client)
    await complete(client, claimed)

    assert "completed" in problem_of(await change(client, task, "cancel"), 409)["detail"]


# Retry


@ON_BOTH_STORES
async def test_retrying_a_finished_task_creates_a_new_task(client: httpx.AsyncClient) -> None:
    task = await submit(client, "report", payload={"a": 1}, priority=7, labels={"b": "c"}, timeout_seconds=60)
    (claimed,) = await claim(client)
    await complete(client, claimed, result=1)
    response = await change(client, task, "retry")

    assert response.status_code == 201
    again = response.json()
    assert response.headers["location"] == f"/v1/tasks/{again['id']}"
    assert again["id"] != task["id"]
    for field in ("type", "payload", "priority", "labels", "timeout_seconds", "max_attempts", "retry", "target"):
        assert again[field] == task[field]
    assert (again["origin"], again["state"], again["attempt"], again["result"]) == ("replay", "ready", 0, None)
    assert [one["id"] for one in await claim(client)] == [again["id"]]
    assert (await read(client, task))["result"] == 1


@ON_BOTH_STORES
@pytest.mark.parametrize("end", ["dead", "cancelled"])
async def test_dead_and_cancelled_tasks_can_be_retried(client: httpx.AsyncClient, end: str) -> None:
    task = await submit(client, max_attempts=1)
    if end == "dead":
        (claimed,) = await claim(client)
        await fail(client, claimed)
    else:
        await change(client, task, "cancel")
    assert (await read(client, task))["state"] == end

    assert (await change(client, task, "retry")).status_code == 201


@ON_BOTH_STORES
async def test_a_live_task_cannot_be_retried(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    problem_of(await change(client, task, "retry"), 409)
    await claim(client)
    problem_of(await change(client, task, "retry"), 409)


@ON_BOTH_STORES
async def test_a_retry_with_an_idempotency_key_creates_one_task(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    await change(client, task, "cancel")
    headers = {"Idempotency-Key": "again"}
    responses = await asyncio.gather(*(change(client, task, "retry", headers=headers) for _ in range(3)))

    assert {response.status_code for response in responses} == {201}
    assert len({response.json()["id"] for response in responses}) == 1
    other = await submit(client)
    await change(client, other, "cancel")
    assert fields_of(await change(client, other, "retry", headers=headers)) == ["Idempotency-Key"]


# Reschedule


@ON_BOTH_STORES
async def test_a_task_is_rescheduled_later_and_earlier(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    later = (await change(client, task, "reschedule", json={"run_at": "2090-01-01T02:00:00+02:00"})).json()
    assert (later["state"], later["run_at"]) == ("scheduled", "2090-01-01T00:00:00.000000Z")
    assert await claim(client) == []

    now = (await change(client, task, "reschedule", json={"run_at": "2020-01-01T00:00:00Z"})).json()
    assert now["state"] == "ready"
    assert [one["id"] for one in await claim(client)] == [task["id"]]


@pytest.mark.parametrize(
    "run_at", ["2030-01-01T00:00:00", "9999-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "soon", 5, None, "2030-02-30T00:00:00Z"]
)
async def test_an_invalid_time_is_refused(client: httpx.AsyncClient, run_at: Any) -> None:
    task = await submit(client)

    assert fields_of(await change(client, task, "reschedule", json={"run_at": run_at})) == ["run_at"]
    assert await read(client, task) == task


async def test_run_at_is_required(client: httpx.AsyncClient) -> None:
    task = await submit(client)

    assert fields_of(await change(client, task, "reschedule", json={})) == ["run_at"]
    problem_of(await change(client, task, "reschedule"), 400)


@ON_BOTH_STORES
async def test_a_started_task_cannot_be_rescheduled(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    (claimed,) = await claim(client)
    body = {"run_at": "2090-01-01T00:00:00Z"}

    problem_of(await change(client, task, "reschedule", json=body), 409)
    await complete(client, claimed)
    problem_of(await change(client, task, "reschedule", json=body), 409)
