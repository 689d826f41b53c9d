"""/v1/dead-letters: list, read, replay and purge."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from everbeat.api.app import ApiContext
from everbeat.core.protocol import ErrorInput, LeaseClaimRequest, LeaseFailRequest, LeaseFailure
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.base import Store
from tests.api.conftest import (
    ON_BOTH_STORES,
    claim,
    complete,
    definition,
    fail,
    fields_of,
    problem_of,
    read,
    submit,
)
from tests.factories import OTHER_TENANT, make_task


async def make_dead_letter(client: httpx.AsyncClient, type_: str = "work", **more: Any) -> dict[str, Any]:
    """Submit a task, let it fail, and return it."""
    task = await submit(client, type_, max_attempts=1, **more)
    (claimed,) = await claim(client, task["queue"])
    await fail(client, claimed, f"{type_} failed")
    return task


async def make_foreign_dead_letter(context: ApiContext, store: Store) -> UUID:
    """Create a dead letter of another tenant."""
    task = make_task(tenant_id=OTHER_TENANT, max_attempts=1)
    await store.task_submit([task])
    (claimed,) = await context.leases.claim(OTHER_TENANT, LeaseClaimRequest(worker="w", queues=["default"]))
    failure = LeaseFailure(id=claimed.id, fence=claimed.fence, error=ErrorInput(message="no"))
    await context.leases.fail(OTHER_TENANT, LeaseFailRequest(worker="w", failures=[failure]))
    assert len(await store.dead_find(OTHER_TENANT, [task.id])) == 1
    return task.id


async def listed(client: httpx.AsyncClient, **query: Any) -> list[str]:
    response = await client.get("/v1/dead-letters", params=query)
    assert response.status_code == 200, response.text
    return [letter["type"] for letter in response.json()["items"]]


async def replay(client: httpx.AsyncClient, filter_: dict[str, Any], **more: Any) -> dict[str, Any]:
    response = await client.post("/v1/dead-letters/replay", json={"filter": filter_, **more})
    assert response.status_code == 200, response.text
    done: dict[str, Any] = response.json()
    return done


# Reading


@ON_BOTH_STORES
async def test_a_dead_letter_has_all_fields(client: httpx.AsyncClient) -> None:
    task = await make_dead_letter(client, "report", payload={"a": 1}, labels={"team": "b"}, priority=3)
    letter = (await client.get(f"/v1/dead-letters/{task['id']}")).json()

    assert (letter["task_id"], letter["type"], letter["payload"]) == (task["id"], "report", {"a": 1})
    assert (letter["labels"], letter["priority"], letter["attempts"], letter["max_attempts"]) == ({"team": "b"}, 3, 1, 1)
    assert (letter["error"]["message"], letter["worker"], letter["replays"]) == ("report failed", "w1", 0)
    assert "only attempt" in letter["reason"]
    assert (letter["replayed_at"], letter["replayed_as"]) == (None, None)
    assert (await client.get("/v1/dead-letters")).json() == {"items": [letter], "next_cursor": None}


@ON_BOTH_STORES
async def test_only_dead_tasks_have_a_dead_letter(client: httpx.AsyncClient) -> None:
    task = await submit(client)
    (claimed,) = await claim(client)
    await complete(client, claimed)

    problem_of(await client.get(f"/v1/dead-letters/{task['id']}"), 404)
    assert await listed(client) == []


@ON_BOTH_STORES
async def test_dead_letters_are_listed_newest_first_in_pages(client: httpx.AsyncClient) -> None:
    types = [(await make_dead_letter(client, f"t{number}"))["type"] for number in range(5)]
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = (await client.get("/v1/dead-letters", params=query)).json()
        seen += [letter["type"] for letter in page["items"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]

    assert seen == types[::-1]


@ON_BOTH_STORES
async def test_dead_letters_are_filtered(client: httpx.AsyncClient) -> None:
    schedule = (await client.post("/v1/schedules", json=definition(max_attempts=1))).json()
    await client.post("/v1/schedules/nightly/trigger")
    (claimed,) = await claim(client)
    await fail(client, claimed)
    await make_dead_letter(client, "a", queue="q1")
    between = datetime.now(UTC)
    await make_dead_letter(client, "b", queue="q2")

    assert await listed(client, queue="q1") == ["a"]
    assert await listed(client, type="b") == ["b"]
    for ref in ("nightly", schedule["id"]):
        assert await listed(client, schedule=ref) == ["report"]
    assert await listed(client, schedule="unknown") == []
    assert await listed(client, **{"from": between.isoformat()}) == ["b"]
    assert await listed(client, to=between.isoformat()) == ["a", "report"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"queue": "a b"}, "queue"),
        ({"type": ""}, "type"),
        ({"schedule": "a b"}, "schedule"),
        ({"from": "yesterday"}, "from"),
        ({"to": "2026-01-01T00:00:00"}, "to"),
        ({"cursor": "x"}, "cursor"),
        ({"cursor": "aTAxYTFlMjMxLTkzMmQtNzFjYi04ZGFiLWUzNzA3NWEzZTM3Yw"}, "cursor"),
        ({"state": "dead"}, "state"),
    ],
)
async def test_an_invalid_parameter_is_named(client: httpx.AsyncClient, query: dict[str, str], field: str) -> None:
    assert fields_of(await client.get("/v1/dead-letters", params=query)) == [field]


@ON_BOTH_STORES
@pytest.mark.parametrize("verb", ["GET", "POST"])
async def test_unknown_malformed_and_foreign_ids_give_the_same_problem(
    client: httpx.AsyncClient, context: ApiContext, store: Store, verb: str
) -> None:
    foreign = await make_foreign_dead_letter(context, store)
    for id_ in ("x", str(uuid4()), str(foreign)):
        path = f"/v1/dead-letters/{id_}"
        problem = problem_of(await client.request(verb, path if verb == "GET" else f"{path}/replay"), 404)
        assert problem["detail"] == f"there is no dead letter of task {id_}"
    assert [letter.replays for letter in await store.dead_find(OTHER_TENANT, [foreign])] == [0]


# Replaying


@ON_BOTH_STORES
async def test_a_dead_letter_is_replayed_as_a_new_task_each_time(client: httpx.AsyncClient) -> None:
    task = await make_dead_letter(client, "report", payload={"a": 1})
    for count in (1, 2):
        response = await client.post(f"/v1/dead-letters/{task['id']}/replay")
        assert response.status_code == 201
        again = response.json()
        assert response.headers["location"] == f"/v1/tasks/{again['id']}"
        assert (again["origin"], again["state"], again["payload"], again["attempt"]) == ("replay", "ready", {"a": 1}, 0)
        letter = (await client.get(f"/v1/dead-letters/{task['id']}")).json()
        assert (letter["replays"], letter["replayed_as"]) == (count, again["id"])
        assert await read(client, again) == again
        assert [one["id"] for one in await claim(client)] == [again["id"]]
    assert (await read(client, task))["state"] == "dead"


@ON_BOTH_STORES
async def test_a_replayed_task_can_succeed(client: httpx.AsyncClient) -> None:
    task = await submit(client, max_attempts=2)
    for attempt in (1, 2):
        (claimed,) = await claim(client)
        assert claimed["attempt"] == attempt
        await fail(client, claimed, retry_in_seconds=0)
    again = (await client.post(f"/v1/dead-letters/{task['id']}/replay")).json()
    (claimed,) = await claim(client)
    assert await complete(client, claimed, result="done") == "ok"

    assert (await read(client, again))["result"] == "done"


@ON_BOTH_STORES
async def test_matching_dead_letters_are_replayed_once(client: httpx.AsyncClient) -> None:
    tasks = [await make_dead_letter(client, f"t{number}", queue="q1") for number in range(3)]
    await make_dead_letter(client, "other", queue="q2")
    done = await replay(client, {"queue": "q1"})

    assert (done["count"], len(done["ids"]), done["has_more"]) == (3, 3, False)
    assert sorted(one["id"] for one in await claim(client, "q1", "q2")) == sorted(done["ids"])
    assert (await replay(client, {"queue": "q1"}))["count"] == 0
    replayed = [(await client.get(f"/v1/dead-letters/{task['id']}")).json()["replayed_as"] for task in tasks]
    assert sorted(replayed) == sorted(done["ids"])
    assert (await replay(client, {}))["count"] == 1


@ON_BOTH_STORES
async def test_a_filter_by_task_ids_selects_dead_letters(client: httpx.AsyncClient, context: ApiContext, store: Store) -> None:
    first, _, third = [await make_dead_letter(client, f"t{number}") for number in range(3)]
    foreign = await make_foreign_dead_letter(context, store)
    done = await replay(client, {"task_ids": [first["id"], third["id"], str(foreign), str(uuid4())]})

    assert done["count"] == 2
    assert {one["type"] for one in await claim(client)} == {"t0", "t2"}


@ON_BOTH_STORES
async def test_a_rate_spreads_replays_over_time(client: httpx.AsyncClient) -> None:
    for number in range(4):
        await make_dead_letter(client, f"t{number}")
    done = await replay(client, {}, rate_per_second=0.01)

    run_ats = sorted([datetime.fromisoformat((await read(client, {"id": id_}))["run_at"]) for id_ in done["ids"]])
    assert [later - run_ats[0] for later in run_ats] == [timedelta(seconds=100 * number) for number in range(4)]
    assert len(await claim(client)) == 1


@ON_BOTH_STORES
async def test_an_unknown_schedule_matches_nothing(client: httpx.AsyncClient) -> None:
    await make_dead_letter(client)

    assert (await replay(client, {"schedule": "unknown"}))["count"] == 0
    assert (await client.post("/v1/dead-letters/purge", json={"filter": {"schedule": "unknown"}})).json() == {"count": 0}
    assert len(await listed(client)) == 1


@pytest.mark.parametrize("verb", ["replay", "purge"])
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "filter"),
        ({"filter": None}, "filter"),
        ({"filter": []}, "filter"),
        ({"filter": {"queue": "a b"}}, "filter.queue"),
        ({"filter": {"type": 5}}, "filter.type"),
        ({"filter": {"color": "red"}}, "filter.color"),
        ({"filter": {"from": "2026-01-01T00:00:00"}}, "filter.from"),
        ({"filter": {"to": "9999-12-31T00:00:00Z"}}, "filter.to"),
        ({"filter": {"task_ids": ["x"]}}, "filter.task_ids"),
        ({"filter": {"task_ids": []}}, "filter.task_ids"),
        ({"filter": {}, "dry_run": True}, "dry_run"),
    ],
)
async def test_an_invalid_filter_is_named_and_nothing_changes(
    client: httpx.AsyncClient, verb: str, body: dict[str, Any], field: str
) -> None:
    await make_dead_letter(client)

    (named,) = fields_of(await client.post(f"/v1/dead-letters/{verb}", json=body))
    assert named.partition("[")[0] == field
    assert len(await listed(client)) == 1


@pytest.mark.parametrize("rate", [0, -1, 1e-300, 1e300, "1"])
async def test_an_invalid_rate_is_refused(client: httpx.AsyncClient, rate: Any) -> None:
    body = {"filter": {}, "rate_per_second": rate}
    assert fields_of(await client.post("/v1/dead-letters/replay", json=body)) == ["rate_per_second"]


# Purging


@ON_BOTH_STORES
async def test_purged_dead_letters_are_not_listed_and_their_tasks_remain(
    client: httpx.AsyncClient, context: ApiContext, store: Store
) -> None:
    task = await make_dead_letter(client, "a", queue="q1")
    await make_dead_letter(client, "b", queue="q2")
    foreign = await make_foreign_dead_letter(context, store)

    assert (await client.post("/v1/dead-letters/purge", json={"filter": {"queue": "q1"}})).json() == {"count": 1}
    assert await listed(client) == ["b"]
    problem_of(await client.get(f"/v1/dead-letters/{task['id']}"), 404)
    problem_of(await client.post(f"/v1/dead-letters/{task['id']}/replay"), 404)
    assert (await read(client, task))["state"] == "dead"
    assert (await client.post("/v1/dead-letters/purge", json={"filter": {}})).json() == {"count": 1}
    assert len(await store.dead_find(OTHER_TENANT, [foreign])) == 1
    assert await store.dead_find(DEFAULT_TENANT, [foreign]) == []
