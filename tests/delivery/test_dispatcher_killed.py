"""A dispatcher that is killed between sending and recording: every task is delivered, and duplicates have one message id."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.delivery.fleet import BrokerFleet, Brokers, get
from tests.support.kafka_cluster import KafkaCluster
from tests.support.moto_server import MotoServer
from tests.support.nats_server import NatsServer
from tests.support.processes import wait_until
from tests.support.rabbitmq import RabbitMq
from tests.support.redis_server import RedisServer

COUNT = 10


@pytest.fixture
def brokers(
    redis_server: RedisServer, rabbitmq: RabbitMq, nats_server: NatsServer, kafka_cluster: KafkaCluster, moto_server: MotoServer
) -> Brokers:
    return Brokers(redis_server, rabbitmq, nats_server, kafka_cluster, moto_server)


@pytest.fixture
def fleet(brokers: Brokers, tmp_path: Path) -> Iterator[BrokerFleet]:
    made = BrokerFleet(brokers, tmp_path, f"sqlite:///{tmp_path}/everbeat.db")
    try:
        made.start()
        yield made
    finally:
        made.stop()


def end_leases(path: Path) -> int:
    """Let the leases of the killed node expire now, instead of 30 seconds later."""
    with sqlite3.connect(path) as database:
        return database.execute("UPDATE tasks SET lease_until = 0 WHERE state = 'running'").rowcount


def all_completed(fleet: BrokerFleet, ids: list[str]) -> bool:
    return all(get(fleet.url, f"/v1/tasks/{one}")["state"] == "completed" for one in ids)


def test_every_task_is_delivered_although_the_dispatcher_is_killed_between_send_and_record(
    fleet: BrokerFleet, tmp_path: Path
) -> None:
    fleet.delay(0.5)
    ids = fleet.submit(COUNT)
    # The broker has the entry, and its reply is on the way for half a second.
    with redis.Redis.from_url(fleet.brokers.redis.url) as client:
        wait_until(lambda: client.xlen(fleet.name), 20, fleet.servers[0].logs)
    server = fleet.servers[0]
    server.kill9()
    fleet.delay(0)
    assert end_leases(tmp_path / "everbeat.db") > 0
    server.start()
    fleet.wait_ready()
    wait_until(lambda: all_completed(fleet, [one for some in ids.values() for one in some]), 40, server.logs)
    duplicates: Counter[str] = Counter()
    for kind, expected in ids.items():
        received = fleet.received(kind)
        assert {message.message_id for message in received} == set(expected), kind
        assert {message.message_id: message.number for message in received} == dict(zip(expected, range(COUNT), strict=True))
        duplicates[kind] = len(received) - COUNT
    assert duplicates["redis"] > 0
    assert duplicates["nats"] == 0  # the stream removes them
