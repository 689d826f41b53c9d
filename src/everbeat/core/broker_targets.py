"""Targets at message brokers: one struct per kind, and the validation that needs no network. The other targets: targets.py."""

from __future__ import annotations

import re
from typing import Annotated, Literal, assert_never
from urllib.parse import urlsplit

import msgspec

from everbeat.core.errors import FieldError

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Priority = Annotated[int, msgspec.Meta(ge=0, le=255)]
Headers = dict[str, str]

# Messages carry headers with this prefix, see core/deliveries.py. A target cannot set them.
RESERVED_HEADER_PREFIXES = ("everbeat-", "nats-")
MAX_HEADERS = 50
MAX_HEADER_CHARACTERS = 4096

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SUBJECT = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(\.[^\s.*>\x00-\x1f\x7f]+)*")


class _BrokerTarget(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    pass


class CeleryTarget(_BrokerTarget, frozen=True, kw_only=True, tag="celery"):
    """A task of a Celery application.

    `mode`: when the Everbeat task is completed. `sync`: when the broker has confirmed the message. `callback`: when the Celery
    worker reports its end with everbeat.contrib.celery. None: the mode of the connection.
    """

    task: Text
    broker: Text
    queue: Text = "celery"
    mode: Literal["sync", "callback"] | None = None
    exchange: Text | None = None
    routing_key: Text | None = None
    priority: Priority | None = None
    expires_seconds: Annotated[float, msgspec.Meta(gt=0, le=366 * 86_400)] | None = None
    headers: Headers = {}


class SqsTarget(_BrokerTarget, frozen=True, kw_only=True, tag="sqs"):
    """An SQS queue. `group_id`: the message group of a FIFO queue; None: the name of the schedule, or the type of the task."""

    queue_url: Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]
    broker: Text
    group_id: Annotated[str, msgspec.Meta(min_length=1, max_length=128)] | None = None
    delay_seconds: Annotated[int, msgspec.Meta(ge=0, le=900)] | None = None


class KafkaTarget(_BrokerTarget, frozen=True, kw_only=True, tag="kafka"):
    """A Kafka topic. Records with the same `key` are in one partition. `partition` selects one regardless of the key."""

    topic: Text
    broker: Text
    key: Annotated[str, msgspec.Meta(max_length=1024)] | None = None
    partition: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] | None = None
    headers: Headers = {}


class RedisTarget(_BrokerTarget, frozen=True, kw_only=True, tag="redis"):
    """A Redis stream. `maxlen`: old entries are removed above this length, in whole nodes if `approximate` is true."""

    stream: Text
    broker: Text
    maxlen: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    approximate: bool = True


class AmqpTarget(_BrokerTarget, frozen=True, kw_only=True, tag="amqp"):
    """An exchange of RabbitMQ. An empty `exchange` is the default exchange, whose routing keys are names of queues.

    `exchange_type`: if given, the exchange is declared as durable with this type. None: it must exist.
    """

    exchange: Annotated[str, msgspec.Meta(max_length=256)]
    routing_key: Annotated[str, msgspec.Meta(max_length=256)]
    broker: Text
    exchange_type: Literal["direct", "fanout", "topic", "headers"] | None = None
    persistent: bool = True
    priority: Priority | None = None
    expiration_seconds: Annotated[float, msgspec.Meta(gt=0, le=366 * 86_400)] | None = None
    headers: Headers = {}


class NatsTarget(_BrokerTarget, frozen=True, kw_only=True, tag="nats"):
    """A JetStream subject. `stream`: if given, the delivery fails if another stream stores the subject."""

    subject: Text
    broker: Text
    stream: Text | None = None
    headers: Headers = {}


BrokerTarget = CeleryTarget | SqsTarget | KafkaTarget | RedisTarget | AmqpTarget | NatsTarget


def broker_target_errors(target: BrokerTarget) -> list[FieldError]:
    """Return the errors that msgspec does not detect. Whether the connection exists is checked in targets.py."""
    errors = _control_errors(target)
    match target:
        case KafkaTarget():
            if not _TOPIC.fullmatch(target.topic):
                errors.append(FieldError("target.topic", "must be 1 to 249 letters A-Z and a-z, digits, and . _ -"))
        case NatsTarget():
            if not _SUBJECT.fullmatch(target.subject):
                errors.append(FieldError("target.subject", "must be tokens separated by dots, without spaces and wildcards"))
        case SqsTarget():
            errors += _sqs_errors(target)
        case AmqpTarget():
            errors += _amqp_errors(target)
        case CeleryTarget() | RedisTarget():
            pass
        case _:
            assert_never(target)
    return errors + _header_errors(getattr(target, "headers", {}))


def _control_errors(target: BrokerTarget) -> list[FieldError]:
    return [
        FieldError(f"target.{field}", "must not contain control characters")
        for field in target.__struct_fields__
        if isinstance(value := getattr(target, field), str) and _CONTROL.search(value)
    ]


def _sqs_errors(target: SqsTarget) -> list[FieldError]:
    try:
        parts = urlsplit(target.queue_url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    except ValueError:
        valid = False
    if not valid:
        return [
            FieldError("target.queue_url", "must be the URL of a queue, such as https://sqs.REGION.amazonaws.com/ACCOUNT/NAME")
        ]
    if is_fifo(target) and target.delay_seconds is not None:
        return [FieldError("target.delay_seconds", "cannot be set for a message of a FIFO queue")]
    if not is_fifo(target) and target.group_id is not None:
        return [FieldError("target.group_id", "requires a FIFO queue; the name of such a queue ends with .fifo")]
    return []


def is_fifo(target: SqsTarget) -> bool:
    return target.queue_url.endswith(".fifo")


def _amqp_errors(target: AmqpTarget) -> list[FieldError]:
    errors = [
        FieldError(f"target.{field}", "must be at most 255 bytes in UTF-8")
        for field in ("exchange", "routing_key")
        if len(getattr(target, field).encode(errors="replace")) > 255
    ]
    if not target.exchange and target.exchange_type is not None:
        errors.append(FieldError("target.exchange_type", "the default exchange cannot be declared"))
    return errors


def _header_errors(headers: Headers) -> list[FieldError]:
    errors = []
    if len(headers) > MAX_HEADERS:
        errors.append(FieldError("target.headers", f"must have at most {MAX_HEADERS} headers"))
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or name.lower().startswith(RESERVED_HEADER_PREFIXES):
            errors.append(FieldError("target.headers", f"{name[:100]!r} cannot be set as a header"))
        elif len(value) > MAX_HEADER_CHARACTERS or _CONTROL.search(value):
            message = f"{name}: must be at most {MAX_HEADER_CHARACTERS} characters, without control characters"
            errors.append(FieldError("target.headers", message))
    return errors
