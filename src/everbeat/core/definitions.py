"""The definition of a schedule as JSON: validates requests and builds responses.

msgspec checks structure and types. All other errors are collected, so that one response lists every invalid field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import msgspec

from everbeat.core.alerts import AlertKind
from everbeat.core.errors import FieldError, InvalidInput, TooLarge
from everbeat.core.hooks import NO_HOOKS, Hooks, hook_errors
from everbeat.core.json_text import is_nested_deeper
from everbeat.core.names import NAME_MESSAGE, has_control_characters, is_encodable, is_name, label_errors
from everbeat.core.rules import TRIGGER_FIELDS, DstFold, DstGap, Rule, TriggerKind, default_gap
from everbeat.core.schedules import (
    DEFAULT_RETRY,
    DEFAULT_TIMEOUT_SECONDS,
    MAX_CONCURRENT,
    CatchUp,
    Overlap,
    Retry,
    RetryKind,
    Spec,
    default_concurrency,
)
from everbeat.core.targets import NO_RULES, TARGET_KINDS, Target, TargetRules, target_errors
from everbeat.core.tenants import MAX_PAYLOAD_BYTES
from everbeat.core.triggers.interval import read_every

MAX_ROW_PAYLOAD_BYTES = 64 * 1024
MAX_DEPTH = 64
_encode = msgspec.json.Encoder().encode
_YEAR_SECONDS = 366 * 86_400

_RESERVED_NAMES = frozenset({"batch", "bulk", ".", ".."})

Instant = Annotated[datetime, msgspec.Meta(tz=True)]
T = TypeVar("T")


class DstPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    gap: DstGap | msgspec.UnsetType = msgspec.UNSET
    fold: DstFold = DstFold.FIRST


class CalendarFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    exclude: Annotated[list[str], msgspec.Meta(max_length=16)] = []
    only: Annotated[list[str], msgspec.Meta(max_length=16)] = []


class TriggerInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a rule, with exactly one trigger."""

    cron: str | None = None
    every_seconds: float | None = None
    anchor: Instant | None = None
    rrule: str | None = None
    at: Instant | None = None
    timezone: str = "UTC"
    dst: DstPolicy = DstPolicy()

    def rule(self, **other_fields: Any) -> Rule:
        """Return the rule that these fields describe. Raises InvalidInput unless exactly one trigger is given."""
        given = {
            TriggerKind.CRON: self.cron,
            TriggerKind.EVERY: None if self.every_seconds is None else f"{self.every_seconds:.6f}".rstrip("0").rstrip("."),
            TriggerKind.RRULE: self.rrule,
            TriggerKind.AT: None if self.at is None else rfc3339(utc(self.at, "at")),
        }
        triggers = {kind: text for kind, text in given.items() if text is not None}
        if len(triggers) != 1:
            raise InvalidInput.of("cron", "give exactly one of cron, every_seconds, rrule and at")
        ((kind, expression),) = triggers.items()
        timezone = self.timezone
        if kind is TriggerKind.CRON and (every := read_every(expression)) is not None:
            kind, expression, timezone = TriggerKind.EVERY, every.seconds, every.zone or timezone
        if self.anchor is not None and kind not in (TriggerKind.EVERY, TriggerKind.RRULE):
            raise InvalidInput.of("anchor", "can only be used with every_seconds and rrule")
        return Rule(
            kind=kind,
            expression=expression,
            timezone=timezone,
            anchor=None if self.anchor is None else utc(self.anchor, "anchor"),
            gap=default_gap(kind) if self.dst.gap is msgspec.UNSET else self.dst.gap,
            fold=self.dst.fold,
            **other_fields,
        )


class ScheduleDefinition(TriggerInput, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The definition of a schedule in requests."""

    name: str
    target: Target
    description: str = ""
    payload: Any = {}
    overlap: Overlap = Overlap.SKIP
    max_concurrent: Annotated[int, msgspec.Meta(ge=1, le=MAX_CONCURRENT)] | None = None
    catch_up: CatchUp = CatchUp.LATEST
    misfire_grace_seconds: Annotated[float, msgspec.Meta(ge=0, le=_YEAR_SECONDS)] = 3600
    jitter_seconds: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 0
    calendars: CalendarFilter = CalendarFilter()
    starts_at: Instant | None = None
    ends_at: Instant | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 100
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    retry: Retry = DEFAULT_RETRY
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=7 * 86_400)] = DEFAULT_TIMEOUT_SECONDS
    labels: dict[str, str] = {}
    hooks: Hooks = NO_HOOKS
    enabled: bool = True


_CHOICES: dict[str, Iterable[str]] = {
    "overlap": Overlap,
    "catch_up": CatchUp,
    "dst.gap": DstGap,
    "dst.fold": DstFold,
    "retry.kind": RetryKind,
    "target.kind": TARGET_KINDS,
    "when.kind": AlertKind,
}
_PATH = re.compile(r"(?s)(.*) - at `(?:key in )?\$(.*)`")
_WHOLE_NUMBER = re.compile(r"Expected `int(?: \| null)?`, got `float` - at `\$(.*)`")
_MISSING = re.compile(r"Object (?:missing required|contains unknown) field `(.*?)`")


def convert(data: Any, type_: type[T]) -> T:
    """Convert decoded JSON to a struct. Raises InvalidInput with a field and a message instead of an error of msgspec."""
    try:
        return as_struct(data, type_)
    except msgspec.ValidationError as error:
        raise as_invalid_input(error) from None


def as_struct(data: Any, type_: type[T]) -> T:
    """Convert like msgspec, but accept 3.0 as an integer, as JSON Schema does."""
    seen: set[str] = set()
    while True:
        try:
            return msgspec.convert(data, type_)
        except msgspec.ValidationError as error:
            data = _with_integers(data, _path_of_whole_number(error, seen))


def decode_struct(raw: bytes, type_: Callable[..., T]) -> T:
    """Decode valid JSON like msgspec, but accept 3.0 as an integer, as JSON Schema does."""
    decoder: msgspec.json.Decoder[T] = _decoder_of(type_)
    seen: set[str] | None = None
    while True:
        try:
            return decoder.decode(raw)
        except msgspec.ValidationError as error:
            seen = set() if seen is None else seen
            raw = _encode(_with_integers(msgspec.json.decode(raw), _path_of_whole_number(error, seen)))


@lru_cache
def _decoder_of(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_)


def _path_of_whole_number(error: msgspec.ValidationError, seen: set[str]) -> Sequence[str]:
    """Return where a float is that may have to be an integer. If there is none, or it was seen before, raise the error."""
    match = _WHOLE_NUMBER.fullmatch(str(error))
    path = "" if match is None else re.sub(r"\[\d+\]", "[]", match[1])
    if not path or path in seen:
        raise error
    seen.add(path)
    return re.findall(r"\[\]|[^.\[\]]+", path)


def _with_integers(data: Any, path: Sequence[str]) -> Any:
    """Return the data with whole floats at the path converted to integers, in every item of the lists on the path."""
    if not path:
        return int(data) if isinstance(data, float) and data.is_integer() else data
    if path[0] == "[]" and isinstance(data, list):
        return [_with_integers(item, path[1:]) for item in data]
    if isinstance(data, dict) and path[0] in data:
        return {**data, path[0]: _with_integers(data[path[0]], path[1:])}
    return data


def as_invalid_input(error: msgspec.ValidationError) -> InvalidInput:
    message, path = str(error), ""
    if match := _PATH.fullmatch(message):
        message, path = match[1], match[2].removeprefix(".").replace("[...]", "")
    if match := _MISSING.match(message):
        path = f"{path}.{match[1]}" if path else match[1]
        message = "is required" if "missing" in message else "is not a known field"
    if message.startswith("Invalid") and (choices := _CHOICES.get(_in_lists(path))):
        message = f"{message}; use one of {', '.join(choices)}"
    return InvalidInput.of(path or "body", message)


def _in_lists(path: str) -> str:
    """Return the path without the list that contains the object: a schedule of a batch, or a target to notify."""
    return re.sub(r"^notify\[\d+\]\.", "target.", re.sub(r"^schedules\[\d+\]\.", "", path))


def parse_definition(data: Any, rules: TargetRules = NO_RULES) -> Spec:
    """Parse decoded JSON. Raises InvalidInput with all errors, or TooLarge."""
    definition = convert(data, ScheduleDefinition)
    errors = [*_text_errors(definition), *target_errors(definition.target, rules), *retry_errors(definition.retry)]
    errors += hook_errors(definition.hooks, rules)
    spec = None
    try:
        spec = _spec_of(definition)
    except InvalidInput as error:
        if isinstance(error, TooLarge) and not errors:
            raise
        errors.extend(error.errors)
    if errors or spec is None:
        raise InvalidInput(*errors)
    return spec


def _spec_of(definition: ScheduleDefinition) -> Spec:
    starts_at = None if definition.starts_at is None else utc(definition.starts_at, "starts_at")
    ends_at = None if definition.ends_at is None else utc(definition.ends_at, "ends_at")
    if starts_at is not None and ends_at is not None and ends_at <= starts_at:
        raise InvalidInput.of("ends_at", "must be later than starts_at")
    rule = definition.rule(
        exclude=tuple(definition.calendars.exclude),
        only=tuple(definition.calendars.only),
        starts_at=starts_at,
        ends_at=ends_at,
    )
    return Spec(
        name=definition.name,
        rule=rule,
        target=definition.target,
        payload=_row_payload(definition.payload),
        description=definition.description,
        overlap=definition.overlap,
        max_concurrent=None
        if definition.max_concurrent == default_concurrency(definition.overlap)
        else definition.max_concurrent,
        catch_up=definition.catch_up,
        misfire_grace_seconds=definition.misfire_grace_seconds,
        jitter_seconds=definition.jitter_seconds,
        priority=definition.priority,
        max_attempts=definition.max_attempts,
        retry=definition.retry,
        timeout_seconds=definition.timeout_seconds,
        labels=definition.labels,
        hooks=definition.hooks,
        enabled=definition.enabled,
    )


def _row_payload(payload: Any) -> bytes:
    """Encode the payload of a schedule. Its limit is lower, because it is stored in the row and read with it."""
    encoded = _encoded(payload)
    if len(encoded) > MAX_ROW_PAYLOAD_BYTES:
        raise TooLarge.of(
            "payload",
            f"is {len(encoded)} bytes; the payload of a schedule may have at most {MAX_ROW_PAYLOAD_BYTES}: "
            "store larger data elsewhere and put a reference here",
        )
    check_payload_depth(encoded)
    return encoded


def encode_payload(payload: Any) -> bytes:
    """Encode a payload as compact JSON and check its size and depth. Raw JSON stays as it is."""
    encoded = _encoded(payload)
    check_payload_size(encoded)
    check_payload_depth(encoded)
    return encoded


def _encoded(payload: Any) -> bytes:
    try:
        return _encode(payload)
    except (UnicodeEncodeError, msgspec.MsgspecError, OverflowError, RecursionError, TypeError) as error:
        raise InvalidInput.of("payload", f"cannot be written as JSON: {error}") from None


def check_payload_size(payload: bytes) -> None:
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise TooLarge.of("payload", f"is {len(payload)} bytes; at most {MAX_PAYLOAD_BYTES} are allowed")


def check_payload_depth(payload: bytes) -> None:
    if is_nested_deeper(payload, MAX_DEPTH - 1):  # what is in the innermost list or object is a level
        raise InvalidInput.of("payload", f"is nested deeper than {MAX_DEPTH} levels")


def _text_errors(definition: ScheduleDefinition) -> list[FieldError]:
    errors = []
    if not is_name(definition.name):
        errors.append(FieldError("name", NAME_MESSAGE))
    elif definition.name in _RESERVED_NAMES:
        errors.append(FieldError("name", "is reserved, because its URL has another meaning; choose another name"))
    text = definition.description
    if len(text) > 2000 or has_control_characters(text) or not is_encodable(text):
        errors.append(FieldError("description", "must be at most 2000 characters, without control characters"))
    return errors + label_errors(definition.labels)


def retry_errors(retry: Retry) -> list[FieldError]:
    errors = []
    if not 0 <= retry.base_seconds <= 86_400:
        errors.append(FieldError("retry.base_seconds", "must be from 0 to 86400"))
    if not 1 <= retry.factor <= 100:
        errors.append(FieldError("retry.factor", "must be from 1 to 100"))
    if not 0 <= retry.max_seconds <= _YEAR_SECONDS:
        errors.append(FieldError("retry.max_seconds", f"must be from 0 to {_YEAR_SECONDS}"))
    return errors


def utc(at: datetime, field: str) -> datetime:
    """Convert to UTC. The years at both ends of the range are rejected, so that conversion to any zone cannot overflow."""
    if not 2 <= at.year <= 9998:
        raise InvalidInput.of(field, "must be in the years 2 to 9998")
    return at.astimezone(UTC)


def rfc3339(at: datetime) -> str:
    """Format as UTC with Z and microseconds, as in every response."""
    if at.tzinfo is UTC and at.microsecond:  # msgspec is ten times faster, but omits microseconds if they are zero
        text: str = msgspec.to_builtins(at)
        return text
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def optional_rfc3339(at: datetime | None) -> str | None:
    return None if at is None else rfc3339(at)


def number(value: float) -> float | int:
    """Return an int for a whole number, so that the JSON has no decimal point."""
    return int(value) if value == int(value) else value


def trigger_fields(rule: Rule) -> dict[str, Any]:
    """Return the field of the trigger, and the anchor if the rule has one."""
    fields: dict[str, Any] = {TRIGGER_FIELDS[rule.kind]: rule.expression}
    if rule.kind is TriggerKind.EVERY:
        fields["every_seconds"] = number(float(rule.expression))
    if rule.anchor is not None:
        fields["anchor"] = rfc3339(rule.anchor)
    return fields


def definition_from_spec(spec: Spec) -> dict[str, Any]:
    """Return a spec as JSON. GET returns this, and PATCH is merged into it."""
    rule = spec.rule
    return {
        "name": spec.name,
        "description": spec.description,
        **trigger_fields(rule),
        "timezone": rule.timezone,
        "target": msgspec.to_builtins(spec.target),
        "payload": msgspec.json.decode(spec.payload),
        "overlap": spec.overlap.value,
        "max_concurrent": spec.concurrency,
        "catch_up": spec.catch_up.value,
        "misfire_grace_seconds": number(spec.misfire_grace_seconds),
        "jitter_seconds": number(spec.jitter_seconds),
        "dst": {"gap": rule.gap.value, "fold": rule.fold.value},
        "calendars": {"exclude": list(rule.exclude), "only": list(rule.only)},
        "starts_at": optional_rfc3339(rule.starts_at),
        "ends_at": optional_rfc3339(rule.ends_at),
        "priority": spec.priority,
        "max_attempts": spec.max_attempts,
        "retry": {
            "kind": spec.retry.kind.value,
            "base_seconds": number(spec.retry.base_seconds),
            "factor": number(spec.retry.factor),
            "max_seconds": number(spec.retry.max_seconds),
            "jitter": spec.retry.jitter,
        },
        "timeout_seconds": number(spec.timeout_seconds),
        "labels": spec.labels,
        "hooks": msgspec.to_builtins(spec.hooks),
        "enabled": spec.enabled,
    }


_MERGED_OBJECTS = frozenset({"dst", "retry", "calendars", "hooks"})


def apply_patch(spec: Spec, patch: Any) -> dict[str, Any]:
    """Merge a patch into the definition of a spec: triggers are replaced; dst, retry and calendars are merged by field."""
    if not isinstance(patch, dict):
        raise InvalidInput.of("body", "must be a JSON object with the fields to change")
    definition = definition_from_spec(spec)
    if spec.max_concurrent is None:
        del definition["max_concurrent"]
    if set(TRIGGER_FIELDS.values()) & {field for field, value in patch.items() if value is not None}:
        for field in (*TRIGGER_FIELDS.values(), "anchor"):
            definition.pop(field, None)
        if spec.rule.gap is default_gap(spec.rule.kind):  # the new trigger may have another default
            del definition["dst"]["gap"]
    for field, value in patch.items():
        if field in _MERGED_OBJECTS and isinstance(value, dict):
            definition[field] = {**definition[field], **value}
        else:
            definition[field] = value
    return definition
