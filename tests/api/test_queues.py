"""GET /v1/queues and GET /v1/workers."""

from __future__ import annotations

import httpx
import pytest

from everbeat.api.app import ApiContext
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.workers import WorkerSighting, WorkerState
from tests.api.conftest import ON_BOTH_STORES, claim, fields_of, submit
from tests.factories import OTHER_TENANT

pytestmark = ON_BOTH_STORES


async def record(context: ApiContext, *workers: str, **more: object) -> None:
    values: dict[str, object] = {"tenant_id": DEFAULT_TENANT, "age_seconds": 0.0, "queues": ("default",), **more}
    await context.store.worker_write("node-1", [WorkerSighting(worker=worker, **values) for worker in workers])  # type: ignore[arg-type]


async def items(client: httpx.AsyncClient, path: str) -> list[dict[str, object]]:
    response = await client.get(path)
    assert response.status_code == 200, response.text
    found: list[dict[str, object]] = response.json()["items"]
    return found


async def test_queues_are_listed_with_tasks_and_workers(client: httpx.AsyncClient, context: ApiContext) -> None:
    await submit(client, queue="reports")
    await submit(client, queue="default")
    await submit(client, queue="default", delay_seconds=60)
    await claim(client, "default", max=1)
    await record(context, "host:1")

    default, reports = await items(client, "/v1/queues")
    assert (default["queue"], default["ready"], default["scheduled"], default["held"], default["running"]) == (
        "default",
        0,
        1,
        0,
        1,
    )
    assert (default["workers"], default["last_worker"], default["oldest_ready_seconds"]) == (1, "host:1", None)
    assert (reports["queue"], reports["ready"], reports["workers"]) == ("reports", 1, 0)
    assert (reports["last_worker"], reports["last_worker_seen_at"], reports["paused"]) == (None, None, None)
    assert 0 <= float(str(reports["oldest_ready_seconds"])) < 60


async def test_a_worker_is_listed_with_what_it_asks_for(client: httpx.AsyncClient, context: ApiContext) -> None:
    await submit(client)
    await claim(client, types=["work"], concurrency=7, version="1.2.3")
    await context.leases._recorder.run_once()  # type: ignore[union-attr]
    (worker,) = await items(client, "/v1/workers")
    assert (worker["worker"], worker["queues"], worker["types"], worker["state"]) == ("w1", ["default"], ["work"], "live")
    assert (worker["running"], worker["concurrency"], worker["version"], worker["all_tenants"]) == (1, 7, "1.2.3", False)
    assert worker["started_at"] == worker["last_seen_at"]


async def test_the_state_of_a_worker_follows_from_what_it_said_and_when(client: httpx.AsyncClient, context: ApiContext) -> None:
    await record(context, "a", age_seconds=1)
    await record(context, "b", age_seconds=2, state=WorkerState.STOPPING)
    await record(context, "c", age_seconds=3, state=WorkerState.GONE)
    await record(context, "d", age_seconds=90)
    await record(context, "e", age_seconds=100, lease_seconds=600.0)
    assert [one["state"] for one in await items(client, "/v1/workers")] == ["live", "stopping", "gone", "gone", "live"]


async def test_workers_of_other_tenants_are_hidden_and_fleets_are_shown(client: httpx.AsyncClient, context: ApiContext) -> None:
    await record(context, "foreign", tenant_id=OTHER_TENANT)
    await record(context, "fleet", tenant_id=None)
    assert [(one["worker"], one["all_tenants"]) for one in await items(client, "/v1/workers")] == [("fleet", True)]
    assert [one["last_worker"] for one in await items(client, "/v1/queues")] == ["fleet"]


@pytest.mark.parametrize("path", ["/v1/workers?queue=default", "/v1/queues?"])
async def test_lists_have_pages(client: httpx.AsyncClient, context: ApiContext, path: str) -> None:
    for number in range(5):
        await record(context, f"host:{number}", age_seconds=float(number), queues=("default", f"q{number}"))
    whole = await items(client, path)
    paged: list[dict[str, object]] = []
    cursor = ""
    while True:
        page = (await client.get(f"{path}&limit=2{cursor}")).json()
        paged += page["items"]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert len(whole) in (5, 6)
    names = [one.get("worker") or one["queue"] for one in whole]
    assert [one.get("worker") or one["queue"] for one in paged] == names


async def test_bad_parameters_are_refused(client: httpx.AsyncClient) -> None:
    assert fields_of(await client.get("/v1/workers?queue=not a name")) == ["queue"]
    assert fields_of(await client.get("/v1/workers?cursor=x")) == ["cursor"]
    assert fields_of(await client.get("/v1/queues?state=live")) == ["state"]
