"""The options of decorators and of submit: their types, their validation, and the API fields that they set."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any, Literal, TypedDict

import msgspec

from everbeat.client.durations import Duration, seconds_of
from everbeat.core.definitions import parse_definition
from everbeat.core.errors import FieldError, InvalidInput
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.protocol import DEFAULT_QUEUE, MAX_DELAY_SECONDS
from everbeat.core.schedules import Retry, Spec

RetryOption = Retry | Mapping[str, Any]
HooksOption = Mapping[str, Sequence[Mapping[str, Any]]]
Zone = str | tzinfo

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class ManyOptions(TypedDict, total=False):
    """The options of submit_many."""

    delay: Duration | None
    run_at: datetime | None
    priority: int | None
    labels: Mapping[str, str] | None
    fair_key: str | None


class SubmitOptions(ManyOptions, total=False):
    """The options of submit. A parameter of a handler cannot have one of these names."""

    key: str | None


class TaskOptions(TypedDict, total=False):
    """The options of a task declaration."""

    queue: str
    max_attempts: int
    timeout: Duration
    retry: RetryOption
    priority: int
    labels: Mapping[str, str]
    hooks: HooksOption
    non_retryable: type[BaseException] | tuple[type[BaseException], ...]


class NamedOptions(SubmitOptions, total=False):
    """The options of a submit by name."""

    queue: str
    max_attempts: int
    timeout: Duration
    retry: RetryOption


class ScheduleOptions(TaskOptions, total=False):
    """The options of a schedule declaration, and of the tasks of its ticks."""

    tz: Zone
    name: str | None
    description: str
    payload: Mapping[str, Any]
    overlap: Literal["skip", "queue", "cancel_previous", "allow"]
    max_concurrent: int
    catch_up: Literal["latest", "all", "none"]
    misfire_grace: Duration
    jitter: Duration
    dst_gap: Literal["after", "shift", "skip"]
    dst_fold: Literal["first", "second", "both"]
    exclude: str | list[str]
    only: str | list[str]
    starts_at: datetime | str
    ends_at: datetime | str
    enabled: bool


SUBMIT_OPTIONS = tuple(SubmitOptions.__annotations__)
# What a schedule declaration on a plain function says about the task as well. Its hooks are those of the schedule alone.
TASK_OPTIONS = tuple(name for name in TaskOptions.__annotations__ if name != "hooks")
_FIELDS = {"timeout": "timeout_seconds"}


def reject_unknown(options: Mapping[str, Any], known: type) -> None:
    names = known.__annotations__
    if unknown := [name for name in options if name not in names]:
        raise InvalidInput(*(FieldError(name, f"is not an option; the options are {', '.join(names)}") for name in unknown))


def task_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the API fields that tasks and schedules have in common."""
    fields = {name: options[name] for name in ("max_attempts", "priority") if name in options}
    if "timeout" in options:
        fields["timeout_seconds"] = seconds_of(options["timeout"], "timeout")
    if "retry" in options:
        fields["retry"] = retry_fields(options["retry"])
    if "labels" in options:
        fields["labels"] = dict(options["labels"])
    if "hooks" in options:
        fields["hooks"] = options["hooks"]
    return fields


def validate_task_options(type_: str, options: Mapping[str, Any]) -> Spec:
    """Validate the options by the rules for schedules, and return them as a schedule definition."""
    target = {"kind": "worker", "type": type_, "queue": options.get("queue", DEFAULT_QUEUE)}
    return parse_definition({"name": type_, "every_seconds": 60, "target": target, **task_fields(options)})


def checked_task_fields(type_: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a TaskInput that these task options set."""
    given = {option: options[option] for option in ("queue", "max_attempts", "timeout", "retry") if option in options}
    spec = validate_task_options(type_, given) if given else None
    return {_FIELDS.get(option, option): getattr(spec, _FIELDS.get(option, option)) for option in given}


def retry_fields(retry: RetryOption) -> dict[str, Any]:
    if isinstance(retry, Retry):
        fields: dict[str, Any] = msgspec.to_builtins(retry)
        return fields
    if isinstance(retry, Mapping):
        return dict(retry)
    raise InvalidInput.of("retry", f"{retry!r} is not a retry policy; use Retry(kind=…, base_seconds=…)")


def exception_kinds(value: Any) -> tuple[type[BaseException], ...]:
    kinds = value if isinstance(value, tuple | list) else (value,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise InvalidInput.of("non_retryable", f"{kind!r} is not an exception class")
    return tuple(kinds)


def submit_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a TaskInput that these submit options set. Each value is validated."""
    fields: dict[str, Any] = {}
    given = {name: value for name, value in options.items() if value is not None}
    if "delay" in given and "run_at" in given:
        raise InvalidInput.of("run_at", "use either delay or run_at, not both")
    if "delay" in given:
        fields["delay_seconds"] = seconds_of(given["delay"], "delay")
        if fields["delay_seconds"] > MAX_DELAY_SECONDS:
            raise InvalidInput.of("delay", f"is longer than {MAX_DELAY_SECONDS} seconds (ten years)")
    if "run_at" in given:
        fields["run_at"] = to_utc(given["run_at"], "run_at")
    if "priority" in given:
        fields["priority"] = _priority(given["priority"])
    if "key" in given:
        fields["idempotency_key"] = _key(given["key"])
    if "labels" in given:
        fields["labels"] = _labels(given["labels"])
    if "fair_key" in given:
        fields["fair_key"] = _fair_key(given["fair_key"])
    return fields


def to_utc(value: Any, field: str) -> datetime:
    """Convert an aware datetime, or an ISO 8601 string with an offset, to a datetime in UTC."""
    at = as_datetime(value, field)
    if at.tzinfo is None or at.utcoffset() is None:
        raise InvalidInput.of(field, "has no time zone; use datetime.now(UTC) or datetime(…, tzinfo=ZoneInfo(…))")
    if not 2 <= at.year <= 9998:
        raise InvalidInput.of(field, "must be in the years 2 to 9998")
    return at.astimezone(UTC)


def as_datetime(value: Any, field: str) -> datetime:
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise InvalidInput.of(field, f"{value!r} is not a time; write it as 2026-03-01T02:00:00+01:00") from None
    if not isinstance(at, datetime):
        raise InvalidInput.of(field, f"{value!r} is not a datetime")
    return at


def _priority(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1000:
        raise InvalidInput.of("priority", f"{value!r} is not an integer from 0 (first) to 1000 (last)")
    return value


def _key(value: Any) -> str:
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        raise InvalidInput.of("key", f"{value!r} is not 1 to 255 visible ASCII characters without spaces")
    return value


def _fair_key(value: Any) -> str:
    if not isinstance(value, str) or not is_name(value):
        raise InvalidInput.of("fair_key", NAME_MESSAGE)
    return value


def _labels(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise InvalidInput.of("labels", f"{value!r} is not a dict of strings")
    for name, text in value.items():
        if not isinstance(name, str) or not is_name(name):
            raise InvalidInput.of(f"labels.{name}", NAME_MESSAGE)
        if not isinstance(text, str) or len(text) > 256:
            raise InvalidInput.of(f"labels.{name}", "must be a string of at most 256 characters")
    return dict(value)
