"""GET /v1/tasks/{id}, …/attempts and …/log."""

from __future__ import annotations

from uuid import uuid4

import httpx
import pytest

from everbeat.api.app import ApiContext
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
    lease,
    problem_of,
    read,
    report,
    submit,
)
from tests.factories import OTHER_TENANT, make_task

VIEWS = ["", "/attempts", "/log"]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("id_", ["x", "5", "01a1e231", "01a1e231932d71cb8dabe37075a3e37c", "{}", "%FF", "x" * 2000])
async def test_a_malformed_id_is_not_found(client: httpx.AsyncClient, view: str, id_: str) -> None:
    assert "there is no task" in problem_of(await client.get(f"/v1/tasks/{id_}{view}"), 404)["detail"]


@ON_BOTH_STORES
@pytest.mark.parametrize("view", VIEWS)
async def test_a_task_of_another_tenant_looks_like_an_unknown_one(client: httpx.AsyncClient, store: Store, view: str) -> None:
    other = make_task(tenant_id=OTHER_TENANT)
    await store.task_submit([other])
    unknown = uuid4()

    hidden = problem_of(await client.get(f"/v1/tasks/{other.id}{view}"), 404)
    missing = problem_of(await client.get(f"/v1/tasks/{unknown}{view}"), 404)
    malformed = problem_of(await client.get(f"/v1/tasks/x{view}"), 404)
    for problem, id_ in ((hidden, str(other.id)), (missing, str(unknown)), (malformed, "x")):
        del problem["request_id"]
        assert problem.pop("detail") == f"there is no task {id_}"
    assert hidden == missing == malformed


@ON_BOTH_STORES
async def test_ids_are_case_insensitive(client: httpx.AsyncClient) -> None:
    task = await submit(client)

    assert (await client.get(f"/v1/tasks/{task['id'].upper()}")).json() == task


@ON_BOTH_STORES
async def test_a_running_task_shows_its_worker_lease_and_progress(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    (claimed,) = await claim(client)
    await report(client, "heartbeat", "leases", lease(claimed, progress={"fraction": 0.4, "message": "fetching"}))

    now = await read(client, task)
    assert (now["state"], now["worker"], now["attempt"]) == ("running", "w1", 1)
    assert now["progress"] == {"fraction": 0.4, "message": "fetching"}
    assert now["started_at"] < now["lease_until"]
    assert (now["finished_at"], now["duration_ms"]) == (None, None)


@ON_BOTH_STORES
async def test_a_completed_task_shows_its_result_and_how_long_it_took(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    (claimed,) = await claim(client)
    await complete(client, claimed, result={"rows": 12})

    now = await read(client, task)
    assert (now["state"], now["result"], now["error"], now["worker"]) == ("completed", {"rows": 12}, None, "w1")
    assert now["duration_ms"] >= 0
    assert now["created_at"] <= now["started_at"] <= now["finished_at"]


@ON_BOTH_STORES
async def test_attempts_are_listed_oldest_first(client: httpx.AsyncClient) -> None:
    task = await submit(client, max_attempts=3, retry={"kind": "fixed", "base_seconds": 0})
    (first,) = await claim(client)
    await fail(client, first, "first", retry_in_seconds=0)
    (second,) = await claim(client)
    await report(client, "release", "leases", lease(second))
    (third,) = await claim(client)

    attempts = (await client.get(f"/v1/tasks/{task['id']}/attempts")).json()["items"]
    assert [(one["attempt"], one["outcome"]) for one in attempts] == [(1, "failed"), (2, "released"), (2, None)]
    assert attempts[0]["error"]["message"] == "first"
    assert attempts[0]["duration_ms"] >= 0
    await complete(client, third)
    attempts = (await client.get(f"/v1/tasks/{task['id']}/attempts")).json()["items"]
    assert [one["outcome"] for one in attempts] == ["failed", "released", "completed"]


@ON_BOTH_STORES
async def test_attempts_are_paged(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    for _ in range(5):
        (claimed,) = await claim(client)
        await report(client, "release", "leases", lease(claimed))
    path = f"/v1/tasks/{task['id']}/attempts"

    first = (await client.get(path, params={"limit": 3})).json()
    second = (await client.get(path, params={"limit": 3, "cursor": first["next_cursor"]})).json()
    assert [len(first["items"]), len(second["items"]), second["next_cursor"]] == [3, 2, None]
    assert len({one["fence"] for one in first["items"] + second["items"]}) == 5
    assert fields_of(await client.get(path, params={"cursor": "x"})) == ["cursor"]


@ON_BOTH_STORES
async def test_a_task_that_never_ran_has_no_attempts_and_no_log(client: httpx.AsyncClient) -> None:
    task = await submit(client)

    for view in ("attempts", "log"):
        assert (await client.get(f"/v1/tasks/{task['id']}/{view}")).json() == {"items": [], "next_cursor": None}


@ON_BOTH_STORES
async def test_the_log_contains_every_line_with_its_attempt(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    (claimed,) = await claim(client)
    for text in ("one", "two\nthree", "fünf\x00"):
        await report(client, "heartbeat", "leases", lease(claimed, log=text))
    path = f"/v1/tasks/{task['id']}/log"

    lines = (await client.get(path)).json()["items"]
    assert [(line["text"], line["attempt"], line["worker"]) for line in lines] == [
        *(("one", 1, "w1"), ("two\nthree", 1, "w1"), ("fünf\N{REPLACEMENT CHARACTER}", 1, "w1"))
    ]
    first = (await client.get(path, params={"limit": 2})).json()
    rest = (await client.get(path, params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert first["items"] + rest["items"] == lines
    await complete(client, claimed)
    assert (await client.get(path)).json()["items"] == lines


@ON_BOTH_STORES
async def test_a_lost_attempt_has_an_error(client: httpx.AsyncClient, context: ApiContext, store: Store) -> None:
    task = await submit(client)
    await claim_expired(context)
    await Reaper(store, ChangePublisher(store)).run_once()

    (attempt,) = (await client.get(f"/v1/tasks/{task['id']}/attempts")).json()["items"]
    assert (attempt["outcome"], attempt["worker"]) == ("lost", "late")
    assert "the lease expired" in attempt["error"]["message"]
    assert (await read(client, task))["state"] == "ready"
