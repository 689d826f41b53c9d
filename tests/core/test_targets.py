"""Validation of targets, as far as it needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from everbeat.core.targets import (
    Target,
    TargetRules,
    delivery_kind,
    destination_of,
    is_reserved_queue,
    queue_of,
    target_errors,
    target_from_text,
    target_kind,
)

KINDS = ("celery", "sqs", "kafka", "redis", "amqp", "nats")


def check_pubsub(options: Mapping[str, Any]) -> list[str]:
    return [] if options.get("topic") else ["topic is required"]


RULES = TargetRules({kind: kind for kind in KINDS} | {"gcp": "pubsub"}, {"pubsub": check_pubsub})


def errors(**fields: Any) -> list[tuple[str, str]]:
    return [(error.field, error.message) for error in target_errors(msgspec.convert(fields, Target), RULES)]


def error_fields(**fields: Any) -> list[str]:
    return [field for field, _ in errors(**fields)]


@pytest.mark.parametrize(
    "target",
    [
        {"kind": "worker", "type": "mail.send"},
        {"kind": "worker", "type": "mail", "queue": "slow:1"},
        {"kind": "http", "url": "https://example.com/hook?x=1"},
        {"kind": "http", "url": "http://[::1]:8080/", "method": "DELETE", "headers": {"X-Key": "v"}, "success": "200,204,3xx"},
        {"kind": "celery", "task": "app.add", "broker": "celery"},
        {"kind": "sqs", "queue_url": "https://sqs.example/q", "broker": "sqs"},
        {"kind": "kafka", "topic": "t", "broker": "kafka", "key": "k"},
        {"kind": "redis", "stream": "s", "broker": "redis"},
        {"kind": "amqp", "exchange": "", "routing_key": "q", "broker": "amqp"},
        {"kind": "nats", "subject": "s.t", "broker": "nats"},
        {"kind": "custom", "name": "pubsub", "broker": "gcp", "options": {"topic": "t"}},
    ],
)
def test_valid_targets_are_accepted_and_unchanged(target: dict[str, Any]) -> None:
    assert errors(**target) == []
    parsed = msgspec.convert(target, Target)
    assert msgspec.to_builtins(parsed).items() >= target.items()
    assert target_from_text(msgspec.json.encode(parsed).decode()) == parsed


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com",
        "/relative",
        "https://",
        "https://user:secret@example.com",
        "https://user@example.com",
        "https://example.com/a b",
        "https://example.com/\r\nX: y",
        "https://example.com:port/",
        "https://[::1",
        "javascript:alert(1)",
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    assert error_fields(kind="http", url=url) == ["target.url"]


@pytest.mark.parametrize("name", ["Host", "content-length", "Webhook-Signature", "bad header", "", "x\n", "Transfer-Encoding"])
def test_headers_that_cannot_be_set(name: str) -> None:
    assert error_fields(kind="http", url="https://example.com", headers={name: "v"}) == ["target.headers"]


@pytest.mark.parametrize("value", ["a\r\nb", "x" * 5000, "nul\x00"])
def test_header_values_that_are_refused(value: str) -> None:
    assert error_fields(kind="http", url="https://example.com", headers={"X-Key": value}) == ["target.headers"]


def test_too_many_headers_are_refused() -> None:
    headers = {f"X-{number}": "v" for number in range(51)}
    assert error_fields(kind="http", url="https://example.com", headers=headers) == ["target.headers"]


@pytest.mark.parametrize("success", ["", "6xx", "2xx,", "200-299", "ok"])
def test_success_is_a_list_of_codes_or_classes(success: str) -> None:
    assert error_fields(kind="http", url="https://example.com", success=success) == ["target.success"]


def test_every_invalid_field_is_named() -> None:
    assert error_fields(kind="worker", type="bad type", queue="bad queue") == ["target.type", "target.queue"]


def test_a_broker_that_is_not_configured_is_refused() -> None:
    assert errors(kind="nats", subject="s", broker="other") == [
        ("target.broker", 'no broker named "other" is configured on this server for this tenant')
    ]


def test_a_broker_of_another_kind_is_refused() -> None:
    assert errors(kind="nats", subject="s", broker="kafka") == [
        ("target.broker", 'the broker "kafka" is for targets of the kind kafka')
    ]


def test_a_custom_kind_must_be_installed_and_checks_its_options() -> None:
    assert error_fields(kind="custom", name="unknown") == ["target.name"]
    assert errors(kind="custom", name="pubsub") == [("target.options", "topic is required")]
    assert error_fields(kind="custom", name="pubsub", broker="nats", options={"topic": "t"}) == ["target.broker"]


def test_a_worker_target_cannot_name_a_reserved_queue() -> None:
    assert error_fields(kind="worker", type="t", queue="everbeat:http") == ["target.queue"]
    assert error_fields(kind="worker", type="t", queue="everbeat-http") == []


@pytest.mark.parametrize(
    ("target", "queue", "destination"),
    [
        ({"kind": "worker", "type": "t", "queue": "q"}, "q", ""),
        ({"kind": "http", "url": "https://Example.com:8443/a"}, "everbeat:http", "example.com:8443"),
        ({"kind": "http", "url": "https://example.com/a?b"}, "everbeat:http", "example.com"),
        ({"kind": "kafka", "topic": "t", "broker": "main"}, "everbeat:kafka", "broker:main"),
        ({"kind": "custom", "name": "pubsub", "broker": "gcp"}, "everbeat:pubsub", "pubsub:gcp"),
        ({"kind": "custom", "name": "pubsub"}, "everbeat:pubsub", "pubsub:"),
    ],
)
def test_the_queue_names_the_kind_and_the_destination_the_host_or_connection(
    target: dict[str, Any], queue: str, destination: str
) -> None:
    parsed = msgspec.convert(target, Target)
    assert (queue_of(parsed), destination_of(parsed)) == (queue, destination)
    assert is_reserved_queue(queue) == (target_kind(parsed) != "worker")
    assert queue in (f"everbeat:{delivery_kind(parsed)}", "q")


@pytest.mark.parametrize("target", [{"kind": "unknown"}, {"kind": "worker"}, {"kind": "worker", "type": "t", "more": 1}, {}])
def test_invalid_targets_are_refused(target: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(target, Target)


@pytest.mark.parametrize(
    ("target", "field"),
    [
        ({"kind": "nats", "subject": "a.*", "broker": "nats"}, "target.subject"),
        ({"kind": "nats", "subject": "a b", "broker": "nats"}, "target.subject"),
        ({"kind": "nats", "subject": "a\r\nPUB x", "broker": "nats"}, "target.subject"),
        ({"kind": "nats", "subject": "a", "broker": "nats", "headers": {"Nats-Msg-Id": "1"}}, "target.headers"),
        ({"kind": "sqs", "queue_url": "file:///etc", "broker": "sqs"}, "target.queue_url"),
        ({"kind": "sqs", "queue_url": "https://u:p@sqs/q", "broker": "sqs"}, "target.queue_url"),
        ({"kind": "sqs", "queue_url": "https://sqs/1/q", "broker": "sqs", "group_id": "g"}, "target.group_id"),
        ({"kind": "sqs", "queue_url": "https://sqs/1/q.fifo", "broker": "sqs", "delay_seconds": 1}, "target.delay_seconds"),
        ({"kind": "amqp", "exchange": "é" * 200, "routing_key": "k", "broker": "amqp"}, "target.exchange"),
        (
            {"kind": "amqp", "exchange": "", "routing_key": "k", "broker": "amqp", "exchange_type": "topic"},
            "target.exchange_type",
        ),
        ({"kind": "redis", "stream": "a\n", "broker": "redis"}, "target.stream"),
        ({"kind": "kafka", "topic": "ä", "broker": "kafka"}, "target.topic"),
    ],
)
def test_fields_of_broker_targets_that_are_refused(target: dict[str, Any], field: str) -> None:
    assert field in error_fields(**target)
