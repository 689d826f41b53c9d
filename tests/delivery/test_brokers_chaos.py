"""Brokers and dispatchers are killed at random under load: nothing is lost, and duplicates have one message id.

`CHAOS_DELIVERIES` is the number of tasks for each broker (400). Everbeat runs on PostgreSQL with two dispatchers, and the
leases of killed ones expire by themselves.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.delivery.fleet import BrokerFleet, Brokers, get
from tests.support.kafka_cluster import KafkaCluster
from tests.support.moto_server import MotoServer
from tests.support.nats_server import NatsServer
from tests.support.processes import wait_until
from tests.support.rabbitmq import RabbitMq
from tests.support.redis_server import RedisServer

COUNT = int(os.environ.get("CHAOS_DELIVERIES", "400"))
BATCH = 50


@pytest.fixture
def fleet(
    redis_server: RedisServer,
    rabbitmq: RabbitMq,
    nats_server: NatsServer,
    kafka_cluster: KafkaCluster,
    moto_server: MotoServer,
    postgres_url: str,
    tmp_path: Path,
) -> Iterator[BrokerFleet]:
    brokers = Brokers(redis_server, rabbitmq, nats_server, kafka_cluster, moto_server)
    made = BrokerFleet(brokers, tmp_path, postgres_url, dispatchers=2)
    try:
        made.start()
        yield made
    finally:
        made.stop()


KINDS = ("redis", "rabbitmq", "nats", "kafka", "sqs", "dispatcher")


def break_one(fleet: BrokerFleet, name: str, source: random.Random) -> None:
    """Kill one broker or one dispatcher and start it again. SQS is cut off: the emulator would lose its messages."""
    brokers = fleet.brokers
    restarted = {"redis": brokers.redis, "rabbitmq": brokers.rabbitmq, "nats": brokers.nats}
    if name in restarted:
        restarted[name].kill9()
        time.sleep(source.random())
        restarted[name].start()
    elif name == "kafka":
        brokers.kafka.set_down()
        time.sleep(source.random())
        brokers.kafka.set_up()
    elif name == "sqs":
        fleet.proxies[3].cut()
        time.sleep(source.random())
        fleet.proxies[3].heal()
    else:
        fleet.restart(fleet.servers[1])


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_nothing_is_lost_when_brokers_and_dispatchers_are_killed_at_random(fleet: BrokerFleet) -> None:
    seed = int(os.environ.get("CHAOS_SEED", str(random.randrange(10**6))))
    source = random.Random(seed)
    ids: dict[str, list[str]] = {kind: [] for kind in fleet.targets()}
    order = source.sample(KINDS, len(KINDS))
    broken: Counter[str] = Counter()
    for number, first in enumerate(range(0, COUNT, BATCH)):
        fleet.delay(source.choice([0.0, 0.02, 0.2]))
        for kind, some in fleet.submit(BATCH, first).items():
            ids[kind] += some
        name = order[number % len(order)]
        break_one(fleet, name, source)
        broken[name] += 1
    fleet.delay(0)
    fleet.restart(fleet.servers[1])
    started = time.monotonic()
    waiting = {one for some in ids.values() for one in some}

    def all_completed() -> bool:
        waiting.difference_update([one for one in waiting if get(fleet.url, f"/v1/tasks/{one}")["state"] == "completed"])
        return not waiting

    wait_until(all_completed, 400, lambda: f"seed {seed}: {len(waiting)} tasks are not completed")
    print(f"\nseed {seed}: broke {dict(broken)}; the rest was delivered after {time.monotonic() - started:.0f} s")
    for kind, expected in ids.items():
        received = fleet.received(kind)
        by_id = {message.message_id: message.number for message in received}
        assert by_id == {one: number for number, one in enumerate(expected)}, f"seed {seed}: {kind}"
        print(f"{kind}: {len(expected)} tasks, {len(received) - len(by_id)} duplicates, all with the message id of their task")
