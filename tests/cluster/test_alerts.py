"""Notifications of alerts survive kill -9 between the decision and the delivery, and each incident is reported once."""

from __future__ import annotations

import asyncio
import functools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cluster.harness import Node, running_cluster
from tests.delivery.receiver import Receiver
from tests.support.processes import wait_until

PATHS = ("/first", "/second")
WITHOUT_DISPATCHER = ("--alert-interval-seconds", "0.1")
WITH_DISPATCHER = (*WITHOUT_DISPATCHER, "--roles", "api,scheduler,dispatcher")
ENV = {"EVERBEAT_WEBHOOK_ALLOW": "127.0.0.0/8"}


def put_rule(node: Node, receiver: Receiver) -> None:
    notify = [{"kind": "http", "url": f"http://127.0.0.1:{receiver.port}{path}"} for path in PATHS]
    rule = {"when": {"kind": "dead"}, "notify": notify, "group_seconds": 0}
    assert node.client.put("/v1/alerts/failures", json=rule).status_code in (200, 201)


def run_task(node: Node, type_: str, *, fails: bool) -> None:
    assert node.client.post("/v1/tasks", json={"type": type_}).status_code == 201
    claim = {"worker": "w", "queues": ["default"], "types": [type_], "wait_seconds": 5}
    (task,) = node.client.post("/v1/worker/claim", json=claim).json()["tasks"]
    lease = {"id": task["id"], "fence": task["fence"]}
    if fails:
        body = {"worker": "w", "failures": [{**lease, "error": {"message": "no"}, "retryable": False}]}
        assert node.client.post("/v1/worker/fail", json=body).json()["results"][0]["status"] == "ok"
    else:
        body = {"worker": "w", "results": [lease]}
        assert node.client.post("/v1/worker/complete", json=body).json()["results"][0]["status"] == "ok"


def incidents(node: Node, state: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.get("/v1/incidents", state=state, limit=1000)["items"]
    return found


def reported(receiver: Receiver) -> Counter[tuple[str, str, str]]:
    """Return how many different messages reported each incident to each path, by event."""
    messages = {one.headers["webhook-id"]: (one.path, msgspec.json.decode(one.body)) for one in receiver.received}
    return Counter(
        (path, payload["event"].removeprefix("incident."), incident["id"])
        for path, payload in messages.values()
        for incident in payload["incidents"]
    )


def once(ids: set[str], *events: str) -> Counter[tuple[str, str, str]]:
    return Counter((path, event, id_) for path in PATHS for event in events for id_ in ids)


def unsent(node: Node) -> int:
    states = ("ready", "scheduled", "running")
    return sum(len(node.get("/v1/tasks", queue="everbeat:http", state=state)["items"]) for state in states)


def has_received(receiver: Receiver, count: int) -> bool:
    return len(receiver.received) >= count


async def test_a_notification_survives_a_kill_between_decision_and_delivery(tmp_path: Path) -> None:
    async with Receiver() as receiver:
        await asyncio.to_thread(kill_between_decision_and_delivery, receiver, f"sqlite:///{tmp_path}/everbeat.db", tmp_path)


def kill_between_decision_and_delivery(receiver: Receiver, url: str, folder: Path) -> None:
    with running_cluster(url, folder) as cluster:
        decider = cluster.add(env=ENV, flags=WITHOUT_DISPATCHER)
        put_rule(decider, receiver)
        for number in range(3):
            run_task(decider, f"type{number}", fails=True)
        wait_until(lambda: sum(one["notified_at"] is not None for one in incidents(decider, "open")) == 3, 20)
        ids = {one["id"] for one in incidents(decider, "open")}
        decider.process.kill9()
        assert receiver.received == []

        deliverer = cluster.add(env=ENV, flags=WITH_DISPATCHER)
        wait_until(lambda: len(reported(receiver)) == 6, 30, deliverer.process.logs)
        for number in range(3):
            run_task(deliverer, f"type{number}", fails=False)
        wait_until(lambda: len(incidents(deliverer, "resolved")) == 3, 20)
        deliverer.process.kill9()

        last = cluster.add(env=ENV, flags=WITH_DISPATCHER)
        wait_until(lambda: len(reported(receiver)) == 12, 60, last.process.logs)
        assert reported(receiver) == once(ids, "opened", "resolved")
        assert {one["state"] for one in last.get("/v1/incidents")["items"]} == {"resolved"}


@pytest.mark.chaos
async def test_every_incident_is_reported_once_although_nodes_are_killed_at_random(tmp_path: Path) -> None:
    async with Receiver() as receiver:
        await asyncio.to_thread(kill_at_random, receiver, f"sqlite:///{tmp_path}/everbeat.db", tmp_path)


def kill_at_random(receiver: Receiver, url: str, folder: Path) -> None:
    chance = random.Random(13)
    with running_cluster(url, folder) as cluster:
        node = cluster.add(env=ENV, flags=WITH_DISPATCHER)
        put_rule(node, receiver)
        failed = 0
        for _ in range(4):
            for _ in range(chance.randint(1, 4)):
                run_task(node, f"type{failed}", fails=True)
                failed += 1
            # The kill hits the judging, the transaction, a delivery, or what follows.
            wanted = len(receiver.received) + chance.randint(0, 2)
            wait_until(functools.partial(has_received, receiver, wanted), 20)
            node.process.kill9()
            node = cluster.add(env=ENV, flags=WITH_DISPATCHER)
        wait_until(lambda: len(incidents(node, "open")) == failed, 20, node.process.logs)
        wait_until(lambda: len(reported(receiver)) == 2 * failed, 60, node.process.logs)
        wait_until(lambda: unsent(node) == 0, 60, node.process.logs)
        assert reported(receiver) == once({one["id"] for one in incidents(node, "open")}, "opened")
