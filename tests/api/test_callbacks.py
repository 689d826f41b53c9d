"""POST /v1/callbacks/{id}/complete, /fail and /heartbeat."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from everbeat.api.app import ApiContext
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.access import Authenticator
from everbeat.services.callbacks import CallbackKey
from everbeat.services.sessions import KeySessions
from everbeat.store.base import Store
from tests.api.conftest import ON_BOTH_STORES, claim, make_client, problem_of, read, submit


@pytest.fixture
async def task(client: httpx.AsyncClient) -> dict[str, Any]:
    await submit(client)
    (task,) = await claim(client)
    return task


async def headers_for(store: Store, task: dict[str, Any], fence: int | None = None) -> dict[str, str]:
    from uuid import UUID

    token = await CallbackKey(store).token(DEFAULT_TENANT, UUID(task["id"]), fence or task["fence"])
    return {"Authorization": f"Bearer {token}"}


@ON_BOTH_STORES
async def test_it_completes_the_task_without_an_api_key(
    client: httpx.AsyncClient, context: ApiContext, store: Store, task: dict[str, Any]
) -> None:
    async with make_client(context._replace(access=Authenticator(store, KeySessions(), is_required=True))) as outside:
        headers, url = await headers_for(store, task), f"/v1/callbacks/{task['id']}"
        beat = await outside.post(f"{url}/heartbeat", headers=headers, json={"progress": {"fraction": 0.5}, "log": "half"})
        assert (beat.status_code, beat.json()["status"]) == (200, "ok")
        done = await outside.post(f"{url}/complete", headers=headers, json={"result": {"rows": 12}})
        assert (done.status_code, done.json()) == (200, {"status": "ok", "next": None})
    found = await read(client, task)
    assert (found["state"], found["result"], found["progress"]["fraction"]) == ("completed", {"rows": 12}, 0.5)


async def test_the_body_is_optional_and_a_repeated_completion_is_answered_alike(
    client: httpx.AsyncClient, store: Store, task: dict[str, Any]
) -> None:
    headers = await headers_for(store, task)
    for _ in range(2):
        response = await client.post(f"/v1/callbacks/{task['id']}/complete", headers=headers)
        assert response.json()["status"] == "ok"


async def test_it_fails_the_attempt(client: httpx.AsyncClient, store: Store, task: dict[str, Any]) -> None:
    body = {"error": {"message": "out of paper", "kind": "paper"}, "retryable": False}
    response = await client.post(f"/v1/callbacks/{task['id']}/fail", headers=await headers_for(store, task), json=body)
    assert response.json() == {"status": "ok", "next": "dead"}
    assert (await read(client, task))["error"]["message"] == "out of paper"


async def test_a_token_of_an_earlier_attempt_is_stale(client: httpx.AsyncClient, store: Store, task: dict[str, Any]) -> None:
    headers = await headers_for(store, task)
    await client.post("/v1/worker/release", json={"worker": "w1", "leases": [{"id": task["id"], "fence": task["fence"]}]})
    await claim(client)
    bodies = {"complete": {}, "fail": {"error": {"message": "x"}}, "heartbeat": {}}
    for verb, body in bodies.items():
        response = await client.post(f"/v1/callbacks/{task['id']}/{verb}", headers=headers, json=body)
        assert (response.status_code, response.json()["status"]) == (200, "stale"), verb
    assert (await read(client, task))["state"] == "running"


async def test_a_cancelled_task_is_reported_by_the_heartbeat(
    client: httpx.AsyncClient, store: Store, task: dict[str, Any]
) -> None:
    await client.post(f"/v1/tasks/{task['id']}/cancel")
    response = await client.post(f"/v1/callbacks/{task['id']}/heartbeat", headers=await headers_for(store, task))
    assert response.json()["status"] == "cancel"


@pytest.mark.parametrize("verb", ["complete", "fail", "heartbeat"])
async def test_without_the_token_of_the_task_it_is_refused(
    client: httpx.AsyncClient, context: ApiContext, store: Store, task: dict[str, Any], verb: str
) -> None:
    other = await submit(client)
    valid = await headers_for(store, task)
    refused: list[tuple[str, dict[str, str]]] = [
        (task["id"], {}),
        (task["id"], {"Authorization": "Bearer ebcb_x"}),
        (task["id"], {"Authorization": valid["Authorization"].replace("Bearer", "Basic")}),
        (task["id"], {"Authorization": valid["Authorization"][:-2]}),
        (other["id"], valid),
        ("no-id", valid),
    ]
    for id_, headers in refused:
        problem = problem_of(await client.post(f"/v1/callbacks/{id_}/{verb}", headers=headers, content=b"{"), 401)
        assert "token" in problem["detail"]
    assert (await read(client, task))["state"] == "running"


async def test_a_callback_token_is_not_an_api_key(
    client: httpx.AsyncClient, context: ApiContext, store: Store, task: dict[str, Any]
) -> None:
    async with make_client(context._replace(access=Authenticator(store, KeySessions(), is_required=True))) as outside:
        headers = await headers_for(store, task)
        problem_of(await outside.get(f"/v1/tasks/{task['id']}", headers=headers), 401)
        problem_of(await outside.get("/v1/callbacks/../tasks", headers=headers), 401)
