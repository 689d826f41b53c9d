"""NATS JetStream: publishes to a real NATS server, read back with nats-py from the stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext

from everbeat.core.broker_targets import NatsTarget
from everbeat.delivery.base import Refused, SettingMissing, Target
from everbeat.delivery.nats import make_target
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
from tests.support.nats_server import NatsServer
from tests.support.proxy import FaultyProxy


def subject(name: str, **fields: Any) -> NatsTarget:
    return NatsTarget(subject=name, broker="main", **fields)


@asynccontextmanager
async def jetstream(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(server.url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def add_stream(server: NatsServer, name: str, **options: Any) -> None:
    async with jetstream(server) as stream:
        await stream.add_stream(name=name, subjects=[f"{name}.>"], **options)


async def messages(server: NatsServer, name: str) -> list[Received]:
    async with jetstream(server) as stream:
        count = (await stream.stream_info(name)).state.messages
        consumer = await stream.pull_subscribe(f"{name}.>", stream=name)
        found: list[Received] = []
        while len(found) < count:
            for message in await consumer.fetch(min(500, count - len(found))):
                await message.ack()
                headers = message.headers or {}
                found.append(Received(headers["Nats-Msg-Id"], json.loads(message.data)["number"], headers))
        return found


@pytest.fixture
async def target(nats_server: NatsServer) -> AsyncIterator[Target]:
    made = target_of(broker_of("nats", url=nats_server.url))
    yield made
    await made.close()


async def test_a_message_has_the_payload_the_message_id_and_the_headers(nats_server: NatsServer, target: Target) -> None:
    await add_stream(nats_server, "arrives")
    task = make_task(subject("arrives.one", stream="arrives", headers={"x-team": "blue"}))
    outcome = delivered(await target.deliver(task))
    received = await messages(nats_server, "arrives")
    assert_arrived(received, task)
    assert received[0].headers["x-team"] == "blue"
    assert outcome.response is not None
    assert (outcome.response.message_id, outcome.response.detail) == ("1", {"stream": "arrives"})


async def test_the_stream_removes_a_task_that_is_sent_again(nats_server: NatsServer, target: Target) -> None:
    await add_stream(nats_server, "twice")
    task = make_task(subject("twice.one"))
    delivered(await target.deliver(task))
    outcome = delivered(await target.deliver(task))
    assert outcome.response is not None
    assert outcome.response.detail == {"stream": "twice", "duplicate": True}
    assert_arrived(await messages(nats_server, "twice"), task)


async def test_a_subject_without_a_stream_fails_without_blame(target: Target) -> None:
    outcome = retried(await target.deliver(make_task(subject("nowhere.one"))))
    assert (outcome.kind, outcome.blames_destination) == ("no_stream", False)


async def test_another_stream_than_expected_fails(nats_server: NatsServer, target: Target) -> None:
    await add_stream(nats_server, "actual")
    outcome = retried(await target.deliver(make_task(subject("actual.one", stream="expected"))))
    assert (outcome.kind, outcome.blames_destination) == ("wrong_stream", False)
    assert await messages(nats_server, "actual") == []


async def test_a_payload_that_is_too_large_is_refused(nats_server: NatsServer, target: Target) -> None:
    await add_stream(nats_server, "small", max_msg_size=100)
    outcome = await target.deliver(make_task(subject("small.one"), payload=b'"' + b"x" * 1000 + b'"'))
    assert isinstance(outcome, Refused)
    assert outcome.kind == "too_large"
    outcome = await target.deliver(make_task(subject("small.one"), payload=b'"' + b"x" * 2**21 + b'"'))
    assert isinstance(outcome, Refused)
    assert outcome.kind == "too_large"


async def test_every_message_is_stored_once_although_nats_is_killed_under_load() -> None:
    with NatsServer() as server:
        await add_stream(server, "load")
        target = target_of(broker_of("nats", url=server.url))
        tasks = [make_task(subject("load.one"), number) for number in range(2000)]
        load = Load(target, tasks)
        running = asyncio.create_task(load.run())
        await load.some_are_confirmed()
        server.kill9()
        await asyncio.to_thread(server.start)
        await running
        await target.close()
        assert load.failures["connection"] > 0
        assert assert_nothing_lost(tasks, await messages(server, "load")).total() == 0


async def test_a_lost_confirmation_is_sent_again_and_stored_once(nats_server: NatsServer) -> None:
    await add_stream(nats_server, "lost")
    async with FaultyProxy("127.0.0.1", nats_server.port) as proxy:
        target = target_of(broker_of("nats", url=f"nats://127.0.0.1:{proxy.port}"))
        task = make_task(subject("lost.one"))
        proxy.drop_replies_after(lambda request: b"lost.one" in request)
        assert retried(await target.deliver(task)).blames_destination
        outcome = delivered(await target.deliver(task))
        await target.close()
    assert outcome.response is not None
    assert outcome.response.detail["duplicate"]
    assert_arrived(await messages(nats_server, "lost"), task)


async def test_secrets_are_not_in_errors_or_the_log(caplog: pytest.LogCaptureFixture) -> None:
    target = target_of(broker_of("nats", url="nats://user:hunter2@127.0.0.1:1", token="hunter3"))
    outcome = retried(await target.deliver(make_task(subject("s"))))
    await target.close()
    assert (outcome.kind, outcome.blames_destination) == ("connection", True)
    assert "hunter" not in outcome.why + caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "url is required"),
        ({"url": "http://x"}, "must be one or more URLs"),
        ({"url": "nats://x", "credentials": "/nowhere"}, "credentials must be the path of a file"),
    ],
)
def test_options_are_checked_when_the_node_starts(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingMissing, match=message):
        make_target(context_of(broker_of("nats", **options)))
