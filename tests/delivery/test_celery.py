"""Celery: tasks sent through Redis and RabbitMQ, run by a real Celery worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from everbeat.core.broker_targets import CeleryTarget
from everbeat.delivery.base import Target
from tests.delivery.celery_worker import CeleryWorker
from tests.delivery.messages import Load, Received, assert_nothing_lost, broker_of, delivered, make_task, retried, target_of
from tests.support.local_server import LocalServer
from tests.support.processes import wait_until_async


@pytest.fixture(scope="module", params=["redis_server", "rabbitmq"])
def server(request: pytest.FixtureRequest) -> LocalServer:
    found: LocalServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def url(server: LocalServer) -> str:
    return str(getattr(server, "url"))  # noqa: B009


# The worker starts after the broker has been killed: Celery workers do not always survive the crash of a broker.
async def test_every_task_runs_although_the_broker_is_killed_under_load(
    server: LocalServer, url: str, request: pytest.FixtureRequest
) -> None:
    target = target_of(broker_of("celery", url=url))
    tasks = [make_task(task_of("add"), n, payload=json.dumps({"number": n}).encode()) for n in range(1000, 1400)]
    load = Load(target, tasks)
    running = asyncio.create_task(load.run())
    await load.some_are_confirmed()
    server.kill9()
    await asyncio.to_thread(server.start)
    await running
    await target.close()
    assert load.failures["connection"] > 0
    ids = {str(task.id) for task in tasks}
    worker: CeleryWorker = request.getfixturevalue("worker")
    await wait_until_async(lambda: ids <= {line[1] for line in worker.effects()}, 60, lambda: worker.log()[-2000:])
    received = [Received(line[1], int(line[2]), {}) for line in worker.effects() if line[1] in ids]
    assert_nothing_lost(tasks, received)


@pytest.fixture(scope="module")
def worker(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CeleryWorker]:
    with CeleryWorker(url, Path(tmp_path_factory.mktemp("celery"))) as running:
        yield running


@pytest.fixture
async def target(url: str) -> AsyncIterator[Target]:
    made = target_of(broker_of("celery", url=url))
    yield made
    await made.close()


def task_of(name: str, **fields: Any) -> CeleryTarget:
    return CeleryTarget(task=f"tests.delivery.celery_app.{name}", broker="main", **fields)


async def test_a_worker_runs_the_task_under_the_id_of_the_everbeat_task(worker: CeleryWorker, target: Target) -> None:
    task = make_task(task_of("add", priority=3, expires_seconds=60), payload=b'{"args": [5], "kwargs": {"other": 1}}')
    outcome = delivered(await target.deliver(task))
    assert outcome.response is not None
    assert outcome.response.message_id == str(task.id)
    await wait_until_async(lambda: ["add", str(task.id), "5"] in worker.effects(), 20)


async def test_an_exchange_without_a_queue_is_a_failure_on_rabbitmq(server: LocalServer, target: Target) -> None:
    if server.name != "rabbitmq":
        pytest.skip("Redis has no exchanges")
    outcome = retried(await target.deliver(make_task(task_of("add", exchange="amq.topic", routing_key="nobody"))))
    assert (outcome.kind, outcome.blames_destination) == ("unroutable", False)
