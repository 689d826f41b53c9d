"""Which kinds of targets a node delivers, and how they are made."""

from __future__ import annotations

import sys

import pytest

from everbeat.core.brokers import Broker
from everbeat.delivery.base import ExtraMissing, SettingMissing, Target, TargetContext, option
from everbeat.delivery.registry import TargetRegistry

BROKERS = {"one": Broker(name="one", kind="echo", options={"url": "x", "wait": 1}), "two": Broker(name="two", kind="other")}


class Echo(Target):
    kind = "echo"

    def __init__(self, context: TargetContext) -> None:
        self.context = context
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


async def test_a_target_is_made_once_with_the_connections_of_its_kind_and_closed() -> None:
    registry = TargetRegistry(BROKERS, node_name="n1", extra={"echo": Echo})
    target = registry.target("echo")
    assert isinstance(target, Echo)
    assert registry.target("echo") is target
    assert (list(target.context.brokers), target.context.node_name) == (["one"], "n1")
    await registry.close()
    assert target.is_closed


def test_a_node_delivers_http_the_kinds_of_its_connections_and_those_of_packages() -> None:
    registry = TargetRegistry(BROKERS, extra={"echo": Echo})
    assert registry.kinds() == ["echo", "http", "other", "slack"]
    assert registry.custom_kinds() == {"echo"}
    with pytest.raises(SettingMissing, match="cannot deliver to targets of the kind other"):
        registry.target("other")


@pytest.mark.parametrize(
    ("kind", "package"),
    [
        ("kafka", "confluent_kafka"),
        ("sqs", "aiobotocore"),
        ("amqp", "aio_pika"),
        ("redis", "redis"),
        ("nats", "nats"),
        ("celery", "celery"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    kind: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    registry = TargetRegistry({"one": Broker(name="one", kind=kind)})
    with pytest.raises(ExtraMissing, match=rf"the kind {kind} need packages .* pip install \"everbeat\[{kind}\]\""):
        registry.target(kind)


def test_options_have_types_and_defaults() -> None:
    broker = BROKERS["one"]
    assert (option(broker, "url", str), option(broker, "wait", float), option(broker, "more", int, 3)) == ("x", 1.0, 3)
    with pytest.raises(SettingMissing, match=r"\[brokers.one\]: missing is required"):
        option(broker, "missing", str)
    with pytest.raises(SettingMissing, match="url must be of type int"):
        option(broker, "url", int)
