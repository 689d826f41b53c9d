"""Redis streams: XADD to a real Redis, read back with redis-py."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from everbeat.core.broker_targets import RedisTarget
from everbeat.delivery.base import SettingMissing, Target
from everbeat.delivery.redis import make_target
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
from tests.support.redis_server import RedisServer


def stream(name: str, **fields: Any) -> RedisTarget:
    return RedisTarget(stream=name, broker="main", **fields)


def entries(server: RedisServer, name: str) -> list[Received]:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        return [Received(fields["id"], json.loads(fields["payload"])["number"], fields) for _, fields in client.xrange(name)]


@pytest.fixture
async def target(redis_server: RedisServer) -> AsyncIterator[Target]:
    made = target_of(broker_of("redis", url=redis_server.url))
    yield made
    await made.close()


async def test_an_entry_has_the_payload_the_message_id_and_the_headers(redis_server: RedisServer, target: Target) -> None:
    task = make_task(stream("arrives"))
    outcome = delivered(await target.deliver(task))
    assert_arrived(entries(redis_server, "arrives"), task)
    assert outcome.response is not None
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        assert client.xrange("arrives", outcome.response.message_id, outcome.response.message_id) != []


async def test_maxlen_removes_old_entries(redis_server: RedisServer, target: Target) -> None:
    for number in range(5):
        delivered(await target.deliver(make_task(stream("short", maxlen=3, approximate=False), number)))
    assert [entry.number for entry in entries(redis_server, "short")] == [2, 3, 4]


async def test_a_key_that_is_no_stream_fails_without_blame(redis_server: RedisServer, target: Target) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        client.set("text", "x")
    outcome = retried(await target.deliver(make_task(stream("text"))))
    assert (outcome.kind, outcome.blames_destination) == ("stream", False)
    delivered(await target.deliver(make_task(stream("other"))))


async def test_every_entry_arrives_although_redis_is_killed_under_load() -> None:
    with RedisServer() as server:
        target = target_of(broker_of("redis", url=server.url))
        tasks = [make_task(stream("load"), number) for number in range(2000)]
        load = Load(target, tasks)
        running = asyncio.create_task(load.run())
        await load.some_are_confirmed()
        server.kill9()
        await asyncio.to_thread(server.start)
        await running
        await target.close()
        assert load.failures["connection"] > 0
        duplicates = assert_nothing_lost(tasks, entries(server, "load"))
        assert duplicates.total() <= load.failures.total()


async def test_a_wrong_password_is_not_in_the_error_or_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer() as server:
        with redis.Redis.from_url(server.url) as client:
            client.config_set("requirepass", "correct")
        target = target_of(broker_of("redis", url=server.url.replace("//", "//:hunter2@")))
        outcome = retried(await target.deliver(make_task(stream("s"))))
        await target.close()
        assert outcome.blames_destination
        assert "hunter2" not in outcome.why + caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "url is required"),
        ({"url": "http://x"}, "must start with redis://"),
        ({"url": "redis://x", "max_connections": "9"}, "max_connections"),
    ],
)
def test_options_are_checked_when_the_node_starts(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingMissing, match=message):
        make_target(context_of(broker_of("redis", **options)))
