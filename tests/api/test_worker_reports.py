"""POST /v1/worker/complete, …/fail and …/release."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from everbeat.api.app import ApiContext
from everbeat.api.bodies import MAX_BODY_BYTES
from everbeat.services.publisher import ChangePublisher
from everbeat.services.reaper import Reaper
from everbeat.store.base import Store
from tests.api.conftest import (
    ON_BOTH_STORES,
    claim,
    claim_expired,
    complete,
    fail,
    fields_of,
    foreign_lease,
    lease,
    problem_of,
    read,
    report,
    submit,
)
from tests.factories import OTHER_TENANT, count_rows

VERBS: dict[str, tuple[str, dict[str, Any]]] = {
    "complete": ("results", {}),
    "fail": ("failures", {"error": {"message": "no"}}),
    "release": ("leases", {}),
}


async def reap(store: Store) -> None:
    """End the attempts whose leases have expired."""
    await Reaper(store, ChangePublisher(store)).run_once()


# Rules for all three reports


@ON_BOTH_STORES
@pytest.mark.parametrize("verb", VERBS)
async def test_reports_without_a_valid_lease_are_stale(
    client: httpx.AsyncClient, context: ApiContext, store: Store, verb: str
) -> None:
    field, more = VERBS[verb]
    late = await submit(client)
    (expired,) = await claim_expired(context)
    task = await submit(client)
    (claimed,) = await claim(client)
    foreign = await foreign_lease(store)
    stale = [
        {"id": str(uuid4()), "fence": 1},
        lease(claimed, fence=0),
        lease(claimed, fence=claimed["fence"] + 1),
        foreign,
        expired,
    ]

    responses = await report(client, verb, field, *({**one, **more} for one in stale))
    assert responses == [{"id": one["id"], "status": "stale"} for one in stale]
    assert (await read(client, task))["state"] == (await read(client, late))["state"] == "running"
    assert [one.state for one in await store.task_find(OTHER_TENANT, [UUID(foreign["id"])])] == ["running"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"id": "x"}, "id"),
        ({"id": None}, "id"),
        ({"id": ...}, "id"),
        ({"fence": "1"}, "fence"),
        ({"fence": -1}, "fence"),
        ({"fence": 2**64}, "fence"),
        ({"fence": True}, "fence"),
        ({"fence": ...}, "fence"),
        ({"color": "red"}, "color"),
    ],
)
async def test_a_malformed_item_is_named_and_nothing_is_recorded(
    client: httpx.AsyncClient, verb: str, wrong: dict[str, Any], name: str
) -> None:
    field, more = VERBS[verb]
    task = await submit(client)
    (claimed,) = await claim(client)
    bad = {key: value for key, value in lease(claimed, **more, **wrong).items() if value is not ...}
    body = {"worker": "w1", field: [lease(claimed, **more), lease(claimed, **more), lease(claimed, **more), bad]}

    assert fields_of(await client.post(f"/v1/worker/{verb}", json=body)) == [f"{field}[3].{name}"]
    assert (await read(client, task))["state"] == "running"


@ON_BOTH_STORES
@pytest.mark.parametrize("verb", VERBS)
async def test_a_report_may_have_up_to_a_thousand_items(client: httpx.AsyncClient, verb: str) -> None:
    field, more = VERBS[verb]
    items = [{"id": str(uuid4()), "fence": 1, **more} for _ in range(1001)]

    assert await report(client, verb, field) == []
    assert {one["status"] for one in await report(client, verb, field, *items[:1000])} == {"stale"}
    assert fields_of(await client.post(f"/v1/worker/{verb}", json={"worker": "w1", field: items})) == [field]


@pytest.mark.parametrize("verb", VERBS)
async def test_a_worker_must_have_a_name(client: httpx.AsyncClient, verb: str) -> None:
    field, _ = VERBS[verb]
    for worker in ("", "x" * 201, "a\x07", None):
        assert fields_of(await client.post(f"/v1/worker/{verb}", json={"worker": worker, field: []})) == ["worker"]


@ON_BOTH_STORES
@pytest.mark.parametrize("verb", VERBS)
async def test_a_repeated_report_has_the_same_response(client: httpx.AsyncClient, store: Store, verb: str) -> None:
    field, more = VERBS[verb]
    await submit(client, max_attempts=1)
    (claimed,) = await claim(client)

    responses = [await report(client, verb, field, lease(claimed, **more)) for _ in range(6)]
    assert responses[0][0]["status"] == "ok"
    assert responses == [responses[0]] * 6
    assert await count_rows(store, "task_history") == (0 if verb == "release" else 1)


# Complete


@ON_BOTH_STORES
@pytest.mark.parametrize("result", [None, 0, False, "", [], {"a": [1, {"b": None}]}, 10**30, 1.5, "a\x00b", "😀"])
async def test_a_result_is_stored_unchanged(client: httpx.AsyncClient, result: Any) -> None:
    task = await submit(client)
    (claimed,) = await claim(client)
    assert await complete(client, claimed, result=result) == "ok"

    assert (await read(client, task))["result"] == result


@ON_BOTH_STORES
async def test_many_tasks_are_completed_in_one_request(client: httpx.AsyncClient) -> None:
    for number in range(30):
        await submit(client, payload=number)
    claimed = await claim(client)
    responses = await report(client, "complete", "results", *(lease(one, result=one["payload"]) for one in claimed))

    assert [one["status"] for one in responses] == ["ok"] * 30
    listed = (await client.get("/v1/tasks?state=completed")).json()["items"]
    assert {one["id"]: one["result"] for one in listed} == {one["id"]: one["payload"] for one in claimed}


@ON_BOTH_STORES
async def test_concurrent_completions_each_get_their_own_status(client: httpx.AsyncClient) -> None:
    for _ in range(20):
        await submit(client)
    claimed = await claim(client)
    wrong = [lease(one, fence=9) if index % 3 == 0 else lease(one) for index, one in enumerate(claimed)]

    statuses = await asyncio.gather(*(complete(client, one) for one in wrong))
    assert statuses == ["stale" if index % 3 == 0 else "ok" for index in range(20)]


@ON_BOTH_STORES
async def test_a_large_result_is_truncated_with_a_note(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    (claimed,) = await claim(client)
    assert await complete(client, claimed, result="x" * 10_000_000) == "ok"

    result = (await read(client, task))["result"]
    assert (result["cut"], result["bytes"]) == (True, 10_000_002)
    assert "65536" in result["note"]


async def test_a_body_that_is_too_large_is_refused_and_the_lease_remains(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    (claimed,) = await claim(client)
    body = {"worker": "w1", "results": [lease(claimed, result="x" * MAX_BODY_BYTES)]}

    problem_of(await client.post("/v1/worker/complete", json=body), 413)
    assert (await read(client, task))["state"] == "running"
    assert await complete(client, claimed, result="small") == "ok"


@ON_BOTH_STORES
async def test_a_late_completion_does_not_change_the_next_attempt(
    client: httpx.AsyncClient, context: ApiContext, store: Store
) -> None:
    task = await submit(client)
    (late,) = await claim_expired(context)
    await reap(store)
    (claimed,) = await claim(client)

    assert await complete(client, late, result="late") == "stale"
    assert await complete(client, claimed, result="right") == "ok"
    assert await complete(client, late, result="late") == "stale"
    assert (await read(client, task))["result"] == "right"


# Fail


@ON_BOTH_STORES
async def test_a_failed_task_is_retried_and_finally_dead(client: httpx.AsyncClient) -> None:
    task = await submit(client, max_attempts=2)
    (first,) = await claim(client)
    assert await fail(client, first, "one", retry_in_seconds=0) == {"status": "ok", "next": "retry"}
    (second,) = await claim(client)
    assert (second["attempt"], second["fence"]) == (2, 2)
    assert await fail(client, second, "two") == {"status": "ok", "next": "dead"}

    now = await read(client, task)
    assert (now["state"], now["error"]["message"]) == ("dead", "two")
    assert (await client.get(f"/v1/dead-letters/{task['id']}")).json()["attempts"] == 2


@ON_BOTH_STORES
async def test_the_delay_follows_the_retry_policy(client: httpx.AsyncClient) -> None:
    retry = {"kind": "fixed", "base_seconds": 3000, "jitter": False}
    task = await submit(client, retry=retry)
    (claimed,) = await claim(client)
    await fail(client, claimed)

    now = await read(client, task)
    assert now["state"] == "scheduled"
    assert now["run_at"] > now["started_at"]
    assert await claim(client) == []


@ON_BOTH_STORES
async def test_a_worker_may_choose_the_delay(client: httpx.AsyncClient) -> None:
    task = await submit(client, retry={"kind": "fixed", "base_seconds": 0})
    (claimed,) = await claim(client)
    await fail(client, claimed, retry_in_seconds=3000)

    assert (await read(client, task))["state"] == "scheduled"


@ON_BOTH_STORES
async def test_a_failure_that_is_not_retryable_is_dead_immediately(client: httpx.AsyncClient) -> None:
    task = await submit(client, max_attempts=10)
    (claimed,) = await claim(client)

    assert await fail(client, claimed, retryable=False) == {"status": "ok", "next": "dead"}
    assert (await read(client, task))["attempt"] == 1


@ON_BOTH_STORES
async def test_the_error_is_stored_with_its_kind_and_trace(client: httpx.AsyncClient) -> None:
    task = await submit(client, max_attempts=1)
    (claimed,) = await claim(client)
    error = {"message": "boom \x00 ä", "kind": "ValueError", "trace": "Traceback …\n  File"}
    await report(client, "fail", "failures", lease(claimed, error=error))

    assert (await read(client, task))["error"] == error


@ON_BOTH_STORES
async def test_a_large_error_is_truncated_with_a_note(client: httpx.AsyncClient) -> None:
    task = await submit(client, max_attempts=1)
    (claimed,) = await claim(client)
    error = {"message": "m" * 1_000_000, "kind": "k" * 1000, "trace": "t" * 5_000_000}
    await report(client, "fail", "failures", lease(claimed, error=error))

    kept = (await read(client, task))["error"]
    assert "996000 characters truncated" in kept["message"]
    assert "characters truncated" in kept["trace"]
    assert len(kept["kind"]) == 200


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"error": ...}, "error"),
        ({"error": "no"}, "error"),
        ({"error": {}}, "error.message"),
        ({"error": {"message": 5}}, "error.message"),
        ({"error": {"message": "a", "stack": "b"}}, "error.stack"),
        ({"retryable": "yes"}, "retryable"),
        ({"retry_in_seconds": -1}, "retry_in_seconds"),
        ({"retry_in_seconds": 1e30}, "retry_in_seconds"),
    ],
)
async def test_an_invalid_failure_is_named(client: httpx.AsyncClient, wrong: dict[str, Any], name: str) -> None:
    item = {"id": str(uuid4()), "fence": 1, "error": {"message": "no"}, **wrong}
    body = {"worker": "w1", "failures": [{key: value for key, value in item.items() if value is not ...}]}

    assert fields_of(await client.post("/v1/worker/fail", json=body)) == [f"failures[0].{name}"]


# Release


@ON_BOTH_STORES
async def test_a_released_task_is_claimable_immediately_and_the_attempt_does_not_count(client: httpx.AsyncClient) -> None:
    task = await submit(client, max_attempts=1)
    waiting = None
    for _ in range(3):
        (claimed,) = await claim(client)
        waiting = asyncio.create_task(claim(client, wait_seconds=10, worker="w2"))
        await asyncio.sleep(0.05)
        assert await report(client, "release", "leases", lease(claimed)) == [{"id": task["id"], "status": "ok"}]
        (taken,) = await waiting
        assert (taken["id"], taken["attempt"]) == (task["id"], 1)
        await report(client, "release", "leases", lease(taken))

    assert (await read(client, task))["state"] == "ready"
