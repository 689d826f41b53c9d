"""examples/fastapi_app: Everbeat in a web app, in one process and in two processes on one database."""

from __future__ import annotations

import signal
from typing import Any
from uuid import uuid4

import httpx

from tests.examples.conftest import ExampleRun
from tests.support.processes import ServerProcess, free_port, wait_until, wait_until_async


async def test_the_app_runs_submitted_tasks(example: ExampleRun) -> None:
    example.env["EVERBEAT_URL"] = example.database
    shop = example.load("fastapi_app", "shop")
    transport = httpx.ASGITransport(shop.app)
    async with shop.lifespan(shop.app), httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        response = await client.post("/orders/7/receipt")
        assert response.status_code == 202
        task = response.json()["task"]
        assert (await client.post("/orders/7/receipt")).json()["task"] == task

        async def ended() -> Any:
            found = (await client.get(f"/tasks/{task}")).json()
            return found if found["state"] == "completed" else None

        assert (await wait_until_async(ended, 10))["result"] == "receipt of order 7 sent"
        assert (await client.get(f"/tasks/{uuid4()}")).status_code == 404

        async def has_swept() -> bool:
            return any(tick["outcome"] == "fired" for tick in (await client.get("/ticks")).json())

        await wait_until_async(has_swept, 10)


def test_two_processes_on_one_file_fire_each_tick_once(example: ExampleRun) -> None:
    example.env["EVERBEAT_URL"] = example.database
    ports = [free_port(), free_port()]
    shops = [web(example, port) for port in ports]
    for shop, port in zip(shops, ports, strict=True):
        shop.wait_ready(f"http://127.0.0.1:{port}/docs")
    with httpx.Client(trust_env=False) as client:
        wait_until(lambda: len(fired(client, ports[0])) >= 3, 15, shops[0].logs)
        tasks = [client.post(f"http://127.0.0.1:{port}/orders/7/receipt").json()["task"] for port in ports]
        assert tasks[0] == tasks[1]
        example.run("", "serve", "--roles", "api", *example.where(), name="api").wait_ready(f"{example.url}/readyz")
        audit = client.get(f"{example.url}/v1/audit").json()
        executions = client.get(f"{example.url}/v1/schedules/clean_up/executions?limit=1000").json()["items"]
    assert audit["fired"] >= 3
    assert (audit["missing"], audit["doubled"]) == (0, 0)
    ticks = [execution["scheduled_for"] for execution in executions]
    assert len(ticks) == len(set(ticks))
    # Uvicorn shuts down cleanly, and then ends itself with the signal that it received.
    assert [shop.terminate() for shop in shops] == [-signal.SIGTERM] * 2


def web(example: ExampleRun, port: int) -> ServerProcess:
    return example.run("fastapi_app", "--port", str(port), "shop:app", name=f"web-{port}", module="uvicorn")


def fired(client: httpx.Client, port: int) -> list[Any]:
    return [tick for tick in client.get(f"http://127.0.0.1:{port}/ticks").json() if tick["outcome"] == "fired"]
