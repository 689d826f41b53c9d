"""How a payload becomes the arguments of a Celery task, and the options of a connection."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everbeat.core.broker_targets import CeleryTarget
from everbeat.delivery.base import SettingMissing
from everbeat.delivery.celery import celery_arguments, make_target
from tests.delivery.messages import broker_of, context_of, make_task, retried, target_of


@pytest.mark.parametrize(
    ("payload", "args", "kwargs"),
    [
        ({"args": [1, 2], "kwargs": {"x": 3}}, [1, 2], {"x": 3}),
        ({"args": [1]}, [1], {}),
        ({"kwargs": {"x": 1}}, [], {"x": 1}),
        ({"x": 1}, [], {"x": 1}),
        ({"args": "text"}, [], {"args": "text"}),
        ({"args": [1], "x": 2}, [], {"args": [1], "x": 2}),
        ({}, [], {}),
        ([1, [2]], [1, [2]], {}),
        (None, [], {}),
        ("text", ["text"], {}),
        (0, [0], {}),
    ],
)
def test_a_payload_becomes_arguments(payload: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    assert celery_arguments(json.dumps(payload).encode()) == (args, kwargs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "url is required"),
        ({"url": "localhost"}, "url must be a broker URL of Celery"),
        ({"url": "redis://x", "mode": "later"}, "mode must be sync or callback"),
        ({"url": "redis://x", "declare_queues": "no"}, "declare_queues must be of type bool"),
    ],
)
def test_options_are_checked_when_the_node_starts(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingMissing, match=message):
        make_target(context_of(broker_of("celery", **options)))


@pytest.mark.parametrize("url", ["redis://:hunter2@127.0.0.1:1/0", "amqp://guest:hunter2@127.0.0.1:1//"])
async def test_secrets_are_not_in_errors_or_the_log(url: str, caplog: pytest.LogCaptureFixture) -> None:
    target = target_of(broker_of("celery", url=url))
    outcome = retried(await target.deliver(make_task(CeleryTarget(task="t", broker="main"))))
    await target.close()
    assert (outcome.kind, outcome.blames_destination) == ("connection", True)
    assert "hunter2" not in outcome.why + caplog.text


async def test_the_mode_callback_needs_a_callback_address() -> None:
    target = target_of(broker_of("celery", url="redis://127.0.0.1:1/0", mode="callback"))
    outcome = retried(await target.deliver(make_task(CeleryTarget(task="t", broker="main"))))
    assert (outcome.kind, outcome.blames_destination) == ("callback", False)
