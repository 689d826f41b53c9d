"""Celery: tasks sent through Redis and RabbitMQ, run by a real Celery worker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from everbeat.core.broker_targets import CeleryTarget
from tests.delivery.celery_worker import CeleryWorker
from tests.delivery.messages import Load, Received, assert_nothing_lost, broker_of, make_task, retried, target_of
from tests.support.local_server import LocalServer
from tests.support.processes import wait_until_async
from tests.support.rabbitmq import RabbitMq


def task_of(name: str, **fields: Any) -> CeleryTarget:
    return CeleryTarget(task=f"tests.delivery.celery_app.{name}", broker="main", **fields)


# The worker starts after the broker has been killed: Celery workers do not always survive the crash of a broker.
@pytest.mark.parametrize("broker", ["redis_server", pytest.param("rabbitmq", marks=pytest.mark.chaos)])
async def test_every_task_runs_under_its_id_although_the_broker_is_killed_under_load(
    broker: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: LocalServer = request.getfixturevalue(broker)
    url = str(getattr(server, "url"))  # noqa: B009
    target = target_of(broker_of("celery", url=url))
    tasks = [
        make_task(task_of("add", priority=3, expires_seconds=600), n, payload=json.dumps({"number": n}).encode())
        for n in range(300)
    ]
    load = Load(target, tasks)
    running = asyncio.create_task(load.run())
    await load.some_are_confirmed()
    server.kill9()
    await asyncio.to_thread(server.start)
    await running
    await target.close()
    assert load.failures["connection"] > 0
    ids = {str(task.id) for task in tasks}
    with CeleryWorker(url, tmp_path) as worker:
        await wait_until_async(lambda: ids <= {line[1] for line in worker.effects()}, 60, lambda: worker.log()[-2000:])
        assert_nothing_lost(tasks, [Received(line[1], int(line[2]), {}) for line in worker.effects()])


async def test_an_exchange_without_a_queue_is_a_failure_on_rabbitmq(rabbitmq: RabbitMq) -> None:
    target = target_of(broker_of("celery", url=rabbitmq.url))
    outcome = retried(await target.deliver(make_task(task_of("add", exchange="amq.topic", routing_key="nobody"))))
    await target.close()
    assert (outcome.kind, outcome.blames_destination) == ("unroutable", False)
