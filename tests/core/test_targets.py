"""Validation of targets, as far as it needs no network."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from everbeat.core.targets import Target, target_errors, target_from_text

BROKERS = frozenset({"main"})


def errors(**fields: Any) -> list[tuple[str, str]]:
    return [(error.field, error.message) for error in target_errors(msgspec.convert(fields, Target), BROKERS)]


def error_fields(**fields: Any) -> list[str]:
    return [field for field, _ in errors(**fields)]


@pytest.mark.parametrize(
    "target",
    [
        {"kind": "worker", "type": "mail.send"},
        {"kind": "worker", "type": "mail", "queue": "slow:1"},
        {"kind": "http", "url": "https://example.com/hook?x=1"},
        {"kind": "http", "url": "http://[::1]:8080/", "method": "DELETE", "headers": {"X-Key": "v"}, "success": "200,204,3xx"},
        {"kind": "celery", "task": "app.add", "broker": "main"},
        {"kind": "sqs", "queue_url": "https://sqs.example/q", "broker": "main"},
        {"kind": "kafka", "topic": "t", "broker": "main", "key": "k"},
        {"kind": "redis", "stream": "s", "broker": "main"},
        {"kind": "amqp", "exchange": "", "routing_key": "q", "broker": "main"},
        {"kind": "nats", "subject": "s.t", "broker": "main"},
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
        ("target.broker", 'no broker named "other" is configured on this server')
    ]


@pytest.mark.parametrize("target", [{"kind": "unknown"}, {"kind": "worker"}, {"kind": "worker", "type": "t", "more": 1}, {}])
def test_invalid_targets_are_refused(target: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(target, Target)
