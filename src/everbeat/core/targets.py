"""Targets: where a task is sent. Structs, and the validation that needs no network.

The kinds of brokers: broker_targets.py. Messages to people: message_targets.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, assert_never, get_args
from urllib.parse import urlsplit

import msgspec

from everbeat.core.broker_targets import BrokerTarget, CeleryTarget, Text, broker_target_errors
from everbeat.core.errors import FieldError
from everbeat.core.message_targets import EmailTarget, MessageTarget, SlackTarget, email_errors, slack_errors
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.webhook_addresses import MAX_URL_CHARACTERS, WebhookRules, url_message
from everbeat.core.webhooks import DEFAULT_RETRY_ON, MAX_HEADERS, STATUS_LIST, header_message


class _Target(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    pass


class WorkerTarget(_Target, frozen=True, kw_only=True, tag="worker"):
    type: Text
    queue: Text = "default"


class HttpTarget(_Target, frozen=True, kw_only=True, tag="http"):
    """A webhook: a URL, or the name of an endpoint. `success` and `retry_on` are lists of statuses, such as "2xx,304"."""

    url: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_URL_CHARACTERS)] | None = None
    endpoint: Text | None = None
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    headers: dict[str, str] = {}
    success: str = "2xx"
    retry_on: str = DEFAULT_RETRY_ON
    mode: Literal["sync", "callback"] = "sync"


class CustomTarget(_Target, frozen=True, kw_only=True, tag="custom"):
    """A target of a kind that an installed package adds. `name`: the kind. It defines the options."""

    name: Text
    broker: Text | None = None
    options: dict[str, Any] = {}


Target = WorkerTarget | HttpTarget | BrokerTarget | MessageTarget | CustomTarget


# The kinds that are built in.
TargetKind = Literal["worker", "http", "celery", "sqs", "kafka", "redis", "amqp", "nats", "slack", "email"]
TARGET_KINDS: tuple[str, ...] = (*get_args(TargetKind), "custom")

# Tasks for targets other than workers are in queues with this prefix, one for each kind. Users cannot name them.
RESERVED_QUEUE_PREFIX = "everbeat:"
RESERVED_QUEUE_MESSAGE = f"must not start with {RESERVED_QUEUE_PREFIX}, which is reserved for deliveries"


def is_reserved_queue(queue: str) -> bool:
    return queue.startswith(RESERVED_QUEUE_PREFIX)


def delivery_kind(target: Target) -> str:
    """Return the kind that delivers the target: the tag, or the name of a custom kind."""
    return target.name if isinstance(target, CustomTarget) else target_kind(target)


def queue_of_kind(kind: str) -> str:
    return f"{RESERVED_QUEUE_PREFIX}{kind}"


def queue_of(target: Target) -> str:
    """Return the queue of the tasks of a target."""
    return target.queue if isinstance(target, WorkerTarget) else queue_of_kind(delivery_kind(target))


def destination_of(target: Target) -> str:
    """Return what deliveries to the target have in common if it is slow or unavailable: a host, or a connection.

    It is the fair key of the tasks, so that claims can skip one destination without affecting the others. Empty for workers.
    """
    match target:
        case WorkerTarget():
            return ""
        case HttpTarget():
            return f"endpoint:{target.endpoint}" if target.url is None else urlsplit(target.url).netloc.lower()
        case SlackTarget():
            return urlsplit(target.url).netloc.lower()
        case CustomTarget():
            return f"{target.name}:{target.broker or ''}"
        case _:
            return f"broker:{target.broker}"


class TargetRules(NamedTuple):
    """What the server's settings allow in the targets of a tenant.

    `brokers`: the kinds of the connections that the tenant may use, by name. `custom`: for each kind that a package adds,
    a function that returns what is wrong with the options of a target. `webhooks`: None in clients, which judge no addresses.
    """

    brokers: Mapping[str, str] = {}
    custom: Mapping[str, Callable[[Mapping[str, Any]], list[str]]] = {}
    webhooks: WebhookRules | None = None


NO_RULES = TargetRules()


def target_errors(target: Target, rules: TargetRules = NO_RULES) -> list[FieldError]:
    """Return the errors that msgspec does not detect."""
    if isinstance(target, WorkerTarget):
        return _worker_errors(target)
    if isinstance(target, HttpTarget):
        return _http_errors(target, rules.webhooks)
    if isinstance(target, BrokerTarget):
        errors = _broker_errors(target.broker, target_kind(target), rules) + broker_target_errors(target)
        if isinstance(target, CeleryTarget) and target.mode == "callback":
            errors += _callback_errors(rules.webhooks)
        return errors
    if isinstance(target, SlackTarget):
        return slack_errors(target, rules.webhooks)
    if isinstance(target, EmailTarget):
        return _broker_errors(target.broker, target_kind(target), rules) + email_errors(target)
    if isinstance(target, CustomTarget):
        return _custom_errors(target, rules)
    assert_never(target)


def _worker_errors(target: WorkerTarget) -> list[FieldError]:
    errors = [
        FieldError(f"target.{field}", NAME_MESSAGE)
        for field, value in (("type", target.type), ("queue", target.queue))
        if not is_name(value)
    ]
    if is_reserved_queue(target.queue):
        errors.append(FieldError("target.queue", RESERVED_QUEUE_MESSAGE))
    return errors


def _broker_errors(broker: str, kind: str, rules: TargetRules) -> list[FieldError]:
    if broker not in rules.brokers:
        return [FieldError("target.broker", f'no broker named "{broker}" is configured on this server for this tenant')]
    if rules.brokers[broker] != kind:
        return [FieldError("target.broker", f'the broker "{broker}" is for targets of the kind {rules.brokers[broker]}')]
    return []


def _custom_errors(target: CustomTarget, rules: TargetRules) -> list[FieldError]:
    check = rules.custom.get(target.name)
    if check is None:
        return [FieldError("target.name", f'no package on this server delivers to targets of the kind "{target.name[:100]}"')]
    errors = [] if target.broker is None else _broker_errors(target.broker, target.name, rules)
    return errors + [FieldError("target.options", message) for message in check(target.options)]


def target_kind(target: Target) -> str:
    return str(target.__struct_config__.tag)


_decode_target = msgspec.json.Decoder(Target).decode


def target_from_text(text: str) -> Target:
    """Decode a stored target."""
    target: Target = _decode_target(text)
    return target


def _http_errors(target: HttpTarget, rules: WebhookRules | None) -> list[FieldError]:
    errors = []
    if (target.url is None) == (target.endpoint is None):
        errors.append(FieldError("target.url", "give exactly one of url and endpoint"))
    if target.url is not None and (message := url_message(target.url, rules)):
        errors.append(FieldError("target.url", message))
    if target.endpoint is not None and not is_name(target.endpoint):
        errors.append(FieldError("target.endpoint", NAME_MESSAGE))
    for field, statuses in (("success", target.success), ("retry_on", target.retry_on)):
        if not STATUS_LIST.fullmatch(statuses):
            message = 'must be a list of status codes or classes, such as "2xx" or "200,204"'
            errors.append(FieldError(f"target.{field}", message))
    if target.mode == "callback":
        errors += _callback_errors(rules)
    return errors + header_errors("target.headers", target.headers)


def _callback_errors(rules: WebhookRules | None) -> list[FieldError]:
    if rules is None or rules.has_callbacks:
        return []
    return [FieldError("target.mode", "callbacks need the setting public_url of the server")]


def header_errors(field: str, headers: Mapping[str, str]) -> list[FieldError]:
    """Return the errors of headers that a user wants to send."""
    errors = [FieldError(field, message) for name, value in headers.items() if (message := header_message(name, value))]
    if len(headers) > MAX_HEADERS:
        errors.append(FieldError(field, f"must have at most {MAX_HEADERS} headers"))
    return errors
