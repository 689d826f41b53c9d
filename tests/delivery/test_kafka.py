"""Kafka: records to librdkafka's mock cluster of three brokers, consumed with aiokafka, which is another implementation.

The mock cluster speaks Kafka's protocol, removes the duplicates of idempotent producers, and keeps its records when its
brokers are down. It has no disk and no replication, so these tests do not show what a Kafka broker keeps after a crash.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import aiokafka
import pytest

from everbeat.core.broker_targets import KafkaTarget
from everbeat.delivery.base import Refused, SettingMissing, Target
from everbeat.delivery.kafka import configuration, make_target
from tests.delivery.messages import (
    Load,
    Received,
    assert_arrived,
    assert_nothing_lost,
    broker_of,
    context_of,
    delivered,
    make_task,
    retried,
    target_of,
)
from tests.support.kafka_cluster import KafkaCluster


def topic(name: str, **fields: Any) -> KafkaTarget:
    return KafkaTarget(topic=name, broker="main", **fields)


async def records(cluster: KafkaCluster, name: str) -> list[Any]:
    """Read a topic from its beginning to its end, as a member of a consumer group."""
    consumer = aiokafka.AIOKafkaConsumer(
        name, bootstrap_servers=cluster.bootstrap, group_id=f"readers-of-{name}", auto_offset_reset="earliest"
    )
    async with consumer:
        found: list[Any] = []
        while not consumer.assignment():
            await asyncio.sleep(0.01)
        ends = await consumer.end_offsets(consumer.assignment())
        while len(found) < sum(ends.values()):
            for batch in (await consumer.getmany(timeout_ms=1000)).values():
                found += batch
        return found


async def messages(cluster: KafkaCluster, name: str) -> list[Received]:
    found = []
    for record in await records(cluster, name):
        headers = {key: value.decode() for key, value in record.headers}
        found.append(Received(headers["everbeat-task"], json.loads(record.value)["number"], headers))
    return found


@pytest.fixture
async def target(kafka_cluster: KafkaCluster) -> AsyncIterator[Target]:
    made = target_of(broker_of("kafka", bootstrap_servers=kafka_cluster.bootstrap))
    yield made
    await made.close()


async def test_a_record_has_the_payload_the_key_and_the_headers(kafka_cluster: KafkaCluster, target: Target) -> None:
    kafka_cluster.create_topic("arrives", 1)
    task = make_task(topic("arrives", key="customer-7", headers={"x-team": "blue"}))
    outcome = delivered(await target.deliver(task))
    assert_arrived(await messages(kafka_cluster, "arrives"), task)
    (record,) = await records_again(kafka_cluster, "arrives")
    assert (record.key, dict(record.headers)["x-team"]) == (b"customer-7", b"blue")
    assert outcome.response is not None
    assert outcome.response.detail == {"topic": "arrives", "partition": record.partition, "offset": record.offset}


async def records_again(cluster: KafkaCluster, name: str) -> list[Any]:
    async with aiokafka.AIOKafkaConsumer(name, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        return [await consumer.getone()]


async def test_a_key_selects_one_partition_and_a_partition_overrides_it(kafka_cluster: KafkaCluster, target: Target) -> None:
    kafka_cluster.create_topic("keyed", 3)

    async def partition_of(**fields: Any) -> int:
        response = delivered(await target.deliver(make_task(topic("keyed", **fields)))).response
        assert response is not None
        return int(response.detail["partition"])

    assert len({await partition_of(key="a") for _ in range(5)}) == 1
    assert [await partition_of(key="a", partition=number) for number in range(3)] == [0, 1, 2]


async def test_a_partition_that_does_not_exist_fails_without_blame(kafka_cluster: KafkaCluster, target: Target) -> None:
    kafka_cluster.create_topic("two", 2)
    outcome = retried(await target.deliver(make_task(topic("two", partition=9))))
    assert (outcome.kind, outcome.blames_destination) == ("topic", False)


async def test_a_payload_that_is_too_large_is_refused(kafka_cluster: KafkaCluster, target: Target) -> None:
    kafka_cluster.create_topic("small", 1)
    outcome = await target.deliver(make_task(topic("small"), payload=b'"' + b"x" * 2**21 + b'"'))
    assert isinstance(outcome, Refused)
    assert outcome.kind == "too_large"


async def test_an_unacknowledged_record_is_sent_again_by_the_producer_and_stored_once(
    kafka_cluster: KafkaCluster, target: Target
) -> None:
    kafka_cluster.create_topic("again", 1)
    delivered(await target.deliver(make_task(topic("again"), 0)))
    # The record is stored, but the acknowledgement says otherwise.
    kafka_cluster.fail_produce_requests("NOT_ENOUGH_REPLICAS_AFTER_APPEND", 1)
    delivered(await target.deliver(make_task(topic("again"), 1)))
    assert [message.number for message in await messages(kafka_cluster, "again")] == [0, 1]


async def test_every_record_arrives_although_the_brokers_are_down_under_load(kafka_cluster: KafkaCluster) -> None:
    kafka_cluster.create_topic("load", 3)
    # Shorter than the time for which the brokers are down, so that deliveries fail and are repeated.
    broker = broker_of("kafka", bootstrap_servers=kafka_cluster.bootstrap, producer={"message.timeout.ms": 600})
    target = target_of(broker)
    tasks = [make_task(topic("load", key=str(number % 7)), number) for number in range(2000)]
    load = Load(target, tasks)
    running = asyncio.create_task(load.run())
    await load.some_are_confirmed()
    kafka_cluster.set_down()
    await asyncio.sleep(1.0)
    kafka_cluster.set_up()
    await running
    await target.close()
    assert load.failures["connection"] > 0
    duplicates = assert_nothing_lost(tasks, await messages(kafka_cluster, "load"))
    assert duplicates.total() <= load.failures.total()


async def test_the_event_loop_is_not_blocked_by_acknowledgements(kafka_cluster: KafkaCluster, target: Target) -> None:
    kafka_cluster.create_topic("threads", 1)
    delivered(await target.deliver(make_task(topic("threads"))))
    assert [thread.name for thread in threading.enumerate()].count("everbeat-kafka-poll") == 1
    await target.close()
    assert [thread.name for thread in threading.enumerate()].count("everbeat-kafka-poll") == 0


async def test_an_unreachable_cluster_is_to_blame_and_secrets_are_not_shown(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    options = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "u",
        "sasl_password": "hunter2",
    }
    target = target_of(broker_of("kafka", bootstrap_servers="127.0.0.1:1", producer={"message.timeout.ms": 300}, **options))
    outcome = retried(await target.deliver(make_task(topic("t"))))
    await target.close()
    assert (outcome.kind, outcome.blames_destination) == ("connection", True)
    assert "hunter2" not in outcome.why + caplog.text + "".join(capfd.readouterr())


def test_options_become_the_configuration_of_librdkafka() -> None:
    broker = broker_of("kafka", bootstrap_servers="k1,k2", ssl_ca_location="/ca.pem", producer={"linger.ms": 50})
    found = configuration(broker)
    expected = {"bootstrap.servers": "k1,k2", "ssl.ca.location": "/ca.pem", "linger.ms": 50, "acks": "all"}
    assert found.items() >= expected.items()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "bootstrap_servers is required"),
        ({"bootstrap_servers": "k", "producer": {"acks": "1"}}, "producer cannot set acks"),
        ({"bootstrap_servers": "k", "sasl_password": 5}, "sasl_password must be of type str"),
    ],
)
def test_options_are_checked_when_the_node_starts(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingMissing, match=message):
        make_target(context_of(broker_of("kafka", **options)))
