"""Targets: where a task is sent. One struct per kind, and the validation that needs no network."""

from __future__ import annotations

import re
from typing import Annotated, Literal, assert_never
from urllib.parse import urlsplit

import msgspec

from everbeat.core.errors import FieldError
from everbeat.core.names import NAME_MESSAGE, is_name

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]

_SUCCESS = re.compile(r"[1-5](xx|\d\d)(,[1-5](xx|\d\d)){0,9}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DENIED_HEADERS = frozenset(
    [
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "upgrade",
        "te",
        "trailer",
        "expect",
        "proxy-authorization",
        "proxy-connection",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
    ]
)


class _Target(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    pass


class WorkerTarget(_Target, frozen=True, kw_only=True, tag="worker"):
    type: Text
    queue: Text = "default"


class HttpTarget(_Target, frozen=True, kw_only=True, tag="http"):
    url: Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    headers: dict[str, str] = {}
    success: str = "2xx"
    mode: Literal["sync", "callback"] = "sync"


class CeleryTarget(_Target, frozen=True, kw_only=True, tag="celery"):
    task: Text
    broker: Text
    queue: Text = "celery"


class SqsTarget(_Target, frozen=True, kw_only=True, tag="sqs"):
    queue_url: Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]
    broker: Text


class KafkaTarget(_Target, frozen=True, kw_only=True, tag="kafka"):
    topic: Text
    broker: Text
    key: Annotated[str, msgspec.Meta(max_length=1024)] | None = None


class RedisTarget(_Target, frozen=True, kw_only=True, tag="redis"):
    stream: Text
    broker: Text


class AmqpTarget(_Target, frozen=True, kw_only=True, tag="amqp"):
    exchange: Annotated[str, msgspec.Meta(max_length=256)]
    routing_key: Annotated[str, msgspec.Meta(max_length=256)]
    broker: Text


class NatsTarget(_Target, frozen=True, kw_only=True, tag="nats"):
    subject: Text
    broker: Text


BrokerTarget = CeleryTarget | SqsTarget | KafkaTarget | RedisTarget | AmqpTarget | NatsTarget
Target = WorkerTarget | HttpTarget | BrokerTarget


TARGET_KINDS = ("worker", "http", "celery", "sqs", "kafka", "redis", "amqp", "nats")


def target_errors(target: Target, brokers: frozenset[str] = frozenset()) -> list[FieldError]:
    """Return the errors that msgspec does not detect. `brokers`: the names of the server's broker connections."""
    if isinstance(target, WorkerTarget):
        return [
            FieldError(f"target.{field}", NAME_MESSAGE)
            for field, value in (("type", target.type), ("queue", target.queue))
            if not is_name(value)
        ]
    if isinstance(target, HttpTarget):
        return _http_errors(target)
    if isinstance(target, BrokerTarget):
        if target.broker in brokers:
            return []
        return [FieldError("target.broker", f'no broker named "{target.broker}" is configured on this server')]
    assert_never(target)


def target_kind(target: Target) -> str:
    return str(target.__struct_config__.tag)


_decode_target = msgspec.json.Decoder(Target).decode


def target_from_text(text: str) -> Target:
    """Decode a stored target."""
    target: Target = _decode_target(text)
    return target


def _http_errors(target: HttpTarget) -> list[FieldError]:
    errors = []
    if message := _url_message(target.url):
        errors.append(FieldError("target.url", message))
    if not _SUCCESS.fullmatch(target.success):
        errors.append(FieldError("target.success", 'must be a list of status codes or classes, such as "2xx" or "200,204"'))
    if len(target.headers) > 50:
        errors.append(FieldError("target.headers", "must have at most 50 headers"))
    for name, value in target.headers.items():
        if not _HEADER.fullmatch(name) or name.lower() in _DENIED_HEADERS:
            errors.append(FieldError("target.headers", f"{name[:100]!r} cannot be set as a header"))
        elif len(value) > 4096 or _CONTROL.search(value):
            errors.append(FieldError("target.headers", f"{name}: must be at most 4096 characters, without control characters"))
    return errors


def _url_message(url: str) -> str | None:
    if _CONTROL.search(url) or " " in url:
        return "must not contain spaces or control characters"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return f"is not a valid URL: {error}"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "must be an absolute http:// or https:// URL"
    if parts.username is not None or parts.password is not None:
        return "must not contain a user name or password; use a header"
    return None
