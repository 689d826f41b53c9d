"""SQS: messages to moto, an emulator that keeps them in memory, received with boto3.

The emulator shows what the target sends and how it reacts to errors. It does not show how durable SQS is. As it loses its
messages when it is killed, these tests cut the connections to it instead.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import boto3
import pytest

from everbeat.core.broker_targets import SqsTarget
from everbeat.delivery.base import Refused, SettingMissing, Target
from everbeat.delivery.sqs import make_target
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
from tests.support.moto_server import MotoServer
from tests.support.proxy import FaultyProxy

KEYS = {"access_key_id": "test", "secret_access_key": "hunter2"}


def client_of(endpoint: str) -> Any:
    return boto3.client(
        "sqs", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )


def create_queue(server: MotoServer, name: str) -> str:
    """Create a queue and return its URL."""
    attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    url: str = client_of(server.endpoint).create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    return url


def receive(server: MotoServer, url: str) -> list[dict[str, Any]]:
    client, found = client_of(server.endpoint), []
    while messages := client.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["All"]
    ).get("Messages"):
        found += messages
        entries = [{"Id": str(number), "ReceiptHandle": one["ReceiptHandle"]} for number, one in enumerate(messages)]
        client.delete_message_batch(QueueUrl=url, Entries=entries)
    return found


def messages(server: MotoServer, url: str) -> list[Received]:
    found = []
    for one in receive(server, url):
        headers = {name: value["StringValue"] for name, value in one["MessageAttributes"].items()}
        found.append(Received(headers["everbeat-task"], json.loads(one["Body"])["number"], headers))
    return found


def queue(url: str, **fields: Any) -> SqsTarget:
    return SqsTarget(queue_url=url, broker="main", **fields)


@pytest.fixture
async def target(moto_server: MotoServer) -> AsyncIterator[Target]:
    made = target_of(broker_of("sqs", region="us-east-1", endpoint=moto_server.endpoint, **KEYS))
    yield made
    await made.close()


async def test_a_message_has_the_payload_and_the_headers_as_attributes(moto_server: MotoServer, target: Target) -> None:
    url = create_queue(moto_server, "arrives")
    task = make_task(queue(url), traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    outcome = delivered(await target.deliver(task))
    assert outcome.response is not None
    assert outcome.response.message_id
    assert_arrived(messages(moto_server, url), task)


async def test_a_fifo_queue_removes_a_task_that_is_sent_again(moto_server: MotoServer, target: Target) -> None:
    url = create_queue(moto_server, "ordered.fifo")
    tasks = [make_task(queue(url), 0), make_task(queue(url, group_id="mine"), 1), make_task(queue(url), 2, schedule=None)]
    for task in (*tasks, *tasks):
        delivered(await target.deliver(task))
    found = [one["Attributes"] for one in receive(moto_server, url)]
    assert [(one["MessageDeduplicationId"], one["MessageGroupId"]) for one in found] == [
        (tasks[0].message_id, "nightly"),
        (tasks[1].message_id, "mine"),
        (tasks[2].message_id, "report"),
    ]


async def test_a_queue_that_is_missing_fails_without_blame(moto_server: MotoServer, target: Target) -> None:
    outcome = retried(await target.deliver(make_task(queue(f"{moto_server.endpoint}/123456789012/missing"))))
    assert (outcome.kind, outcome.blames_destination) == ("queue", False)


async def test_a_payload_that_is_too_large_is_refused(moto_server: MotoServer, target: Target) -> None:
    url = create_queue(moto_server, "strict")
    outcome = await target.deliver(make_task(queue(url), payload=b'"' + b"x" * 2**20 + b'"'))
    assert isinstance(outcome, Refused)


async def test_requests_go_to_the_endpoint_of_the_connection_whatever_host_the_url_names(
    moto_server: MotoServer, target: Target
) -> None:
    url = create_queue(moto_server, "endpoint")
    task = make_task(queue(url.replace("127.0.0.1", "127.0.0.9").replace(str(moto_server.port), "1")))
    delivered(await target.deliver(task))
    assert_arrived(messages(moto_server, url), task)


@pytest.mark.parametrize("name", ["load", "load.fifo"])
async def test_every_message_arrives_although_the_connections_are_cut_under_load(moto_server: MotoServer, name: str) -> None:
    url = create_queue(moto_server, name)
    async with FaultyProxy("127.0.0.1", moto_server.port) as proxy:
        proxy.losable = lambda request: b"SendMessage" in request
        proxy.lose_reply_probability = 0.1
        target = target_of(broker_of("sqs", region="us-east-1", endpoint=f"http://127.0.0.1:{proxy.port}", **KEYS))
        tasks = [make_task(queue(url, **({"group_id": "one"} if "fifo" in name else {})), number) for number in range(60)]
        load = Load(target, tasks)
        running = asyncio.create_task(load.run())
        await load.some_are_confirmed()
        await proxy.cut()
        await proxy.heal()
        await running
        await target.close()
        assert proxy.lost_replies > 0
    duplicates = assert_nothing_lost(tasks, messages(moto_server, url))
    assert duplicates.total() == 0 if "fifo" in name else duplicates.total() > 0


async def test_secrets_are_not_in_errors_or_the_log(caplog: pytest.LogCaptureFixture) -> None:
    target = target_of(broker_of("sqs", region="us-east-1", endpoint="http://127.0.0.1:1", **KEYS))
    outcome = retried(await target.deliver(make_task(queue("http://127.0.0.1:1/1/q"))))
    await target.close()
    assert (outcome.kind, outcome.blames_destination) == ("connection", True)
    assert "hunter2" not in outcome.why + caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "region is required"),
        ({"region": "x", "endpoint": "sqs"}, "endpoint must start with http"),
        ({"region": "x", "access_key_id": "a"}, "require each other"),
    ],
)
def test_options_are_checked_when_the_node_starts(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingMissing, match=message):
        make_target(context_of(broker_of("sqs", **options)))
