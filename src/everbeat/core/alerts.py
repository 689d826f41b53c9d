"""Alert rules: what they watch, whom they notify, and the validation of a rule. Judging: alert_conditions.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated
from uuid import UUID

import msgspec

from everbeat.core.errors import FieldError, InvalidInput
from everbeat.core.names import NAME_MESSAGE, has_control_characters, is_encodable, is_name, label_errors
from everbeat.core.quiet_times import CLOCK_MESSAGE, ClockText, QuietTimes, parse_clock, quiet_errors, zone_error
from everbeat.core.target_secrets import redaction_errors, shown_target, with_stored_secrets
from everbeat.core.targets import Target, TargetRules, target_errors
from everbeat.core.ticks import SkipReason

MAX_ALERTS = 100
MAX_NOTIFIED = 10
MAX_DESCRIPTION_CHARACTERS = 2000
# A task that took less is never judged as slow, so that the database does not have to look at the rules for each task.
MIN_SLOW_SECONDS = 1

_YEAR_SECONDS = 366 * 86_400


class AlertKind(StrEnum):
    """What a rule watches. A closed list: adding a kind changes the API contract."""

    DEAD = "dead"
    MISSED = "missed"
    LATE = "late"
    DEADLINE = "deadline"
    SLOW = "slow"
    SUCCESS_RATE = "success_rate"
    QUEUE_AGE = "queue_age"
    NO_WORKER = "no_worker"
    SKIPPED = "skipped"


class _When(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    pass


class WhenDead(_When, frozen=True, kw_only=True, tag="dead"):
    """A task became a dead letter."""


class WhenMissed(_When, frozen=True, kw_only=True, tag="missed"):
    """A tick did not fire: it was skipped as a misfire, or the audit finds it missing."""


class WhenLate(_When, frozen=True, kw_only=True, tag="late"):
    """A tick is overdue by more than `seconds`."""

    seconds: Annotated[float, msgspec.Meta(ge=1, le=_YEAR_SECONDS)] = 60


class WhenDeadline(_When, frozen=True, kw_only=True, tag="deadline"):
    """A schedule that had a tick in the day before `by` has not completed a task since, also if the tick never fired.

    `timezone`: that of `by`; None: the zone of the schedule.
    """

    by: ClockText
    timezone: str | None = None
    even_if_paused: bool = False


class WhenSlow(_When, frozen=True, kw_only=True, tag="slow"):
    """An attempt takes longer than `seconds`, or than `times_usual` times the median of the last 20 runs of its schedule."""

    seconds: Annotated[float, msgspec.Meta(ge=MIN_SLOW_SECONDS, le=_YEAR_SECONDS)] | None = None
    times_usual: Annotated[float, msgspec.Meta(gt=1, le=1000)] | None = None


class WhenSuccessRate(_When, frozen=True, kw_only=True, tag="success_rate"):
    """Of the finished tasks that were created in the last `window_seconds`, less than `below` were completed."""

    below: Annotated[float, msgspec.Meta(gt=0, le=1)]
    window_seconds: Annotated[float, msgspec.Meta(ge=60, le=7 * 86_400)] = 3600
    min_runs: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 10


class WhenQueueAge(_When, frozen=True, kw_only=True, tag="queue_age"):
    """A task of a queue has been ready for longer than `seconds`."""

    seconds: Annotated[float, msgspec.Meta(ge=1, le=_YEAR_SECONDS)]


class WhenNoWorker(_When, frozen=True, kw_only=True, tag="no_worker"):
    """A task has been ready for longer than `seconds`, and no live worker asks for its queue and type."""

    seconds: Annotated[float, msgspec.Meta(ge=1, le=_YEAR_SECONDS)] = 60


class WhenSkipped(_When, frozen=True, kw_only=True, tag="skipped"):
    """The last `in_a_row` ticks of a schedule were skipped for one of the reasons. Skips for other reasons are not counted.

    The default of `reasons` is overlap, misfire and quota.
    """

    in_a_row: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3
    reasons: Annotated[list[SkipReason], msgspec.Meta(min_length=1, max_length=len(SkipReason))] = msgspec.field(
        default_factory=lambda: [SkipReason.OVERLAP, SkipReason.MISFIRE, SkipReason.QUOTA]
    )


When = WhenDead | WhenMissed | WhenLate | WhenDeadline | WhenSlow | WhenSuccessRate | WhenQueueAge | WhenNoWorker | WhenSkipped


class AlertMatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a rule concerns; everything of the tenant by default. `label`: key or key=value."""

    schedule: str | None = None
    label: str | None = None
    queue: str | None = None

    def accepts(self, *, schedule: str | None, queue: str, labels: Mapping[str, str]) -> bool:
        """Return whether a schedule or a task is matched."""
        if self.schedule is not None and self.schedule != schedule:
            return False
        if self.queue is not None and self.queue != queue:
            return False
        if self.label is None:
            return True
        key, value = split_label(self.label)
        return key in labels and value in (None, labels[key])


class AlertInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An alert rule in requests.

    `notify`: the targets that get the notifications. `quiet`: when none are sent. `remind_seconds`: how often an open incident
    that nobody has acknowledged is reported again. `group_seconds`: incidents that open within this time after a notification
    are reported together. `notify_resolved`: whether the end of an incident is reported. `labels`: of the rule itself; they do
    not affect what it concerns.
    """

    when: When
    notify: Annotated[list[Target], msgspec.Meta(min_length=1, max_length=MAX_NOTIFIED)]
    match: AlertMatch = AlertMatch()
    quiet: QuietTimes | None = None
    remind_seconds: Annotated[float, msgspec.Meta(ge=60, le=_YEAR_SECONDS)] | None = None
    group_seconds: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 60
    notify_resolved: bool = True
    description: str = ""
    labels: dict[str, str] = {}
    enabled: bool = True


class AlertRule(msgspec.Struct, frozen=True, kw_only=True):
    """An alert rule of a tenant, as it is stored."""

    tenant_id: UUID
    name: str
    given: AlertInput
    revision: int
    created_at: datetime
    updated_at: datetime

    @property
    def kind(self) -> AlertKind:
        return kind_of(self.given.when)

    def matches(self, *, schedule: str | None, queue: str, labels: Mapping[str, str]) -> bool:
        return self.given.match.accepts(schedule=schedule, queue=queue, labels=labels)


def kind_of(when: When) -> AlertKind:
    return AlertKind(str(when.__struct_config__.tag))


def split_label(text: str) -> tuple[str, str | None]:
    """Split `key` or `key=value`."""
    key, separator, value = text.partition("=")
    return key, value if separator else None


def new_alert(
    tenant_id: UUID, name: str, given: AlertInput, existing: AlertRule | None, rules: TargetRules, now: datetime
) -> AlertRule:
    """Return the rule that a request describes: a new one, or the existing one changed. Raises InvalidInput with all errors."""
    notify, errors = _with_stored_secrets(given.notify, () if existing is None else existing.given.notify)
    if not is_name(name):
        errors.append(FieldError("name", NAME_MESSAGE))
    errors += [*definition_errors(given), *_target_errors(notify, rules)]
    if errors:
        raise InvalidInput(*errors)
    return AlertRule(
        tenant_id=tenant_id,
        name=name,
        given=msgspec.structs.replace(given, notify=notify),
        revision=1 if existing is None else existing.revision + 1,
        created_at=now if existing is None else existing.created_at,
        updated_at=now,
    )


def definition_errors(given: AlertInput) -> list[FieldError]:
    """Return the errors of a rule that do not depend on the server: all but those of its targets."""
    errors = [*_when_errors(given.when), *_match_errors(given), *label_errors(given.labels)]
    if given.quiet is not None:
        errors += quiet_errors(given.quiet)
    text = given.description
    if len(text) > MAX_DESCRIPTION_CHARACTERS or has_control_characters(text) or not is_encodable(text):
        message = f"must be at most {MAX_DESCRIPTION_CHARACTERS} characters, without control characters"
        errors.append(FieldError("description", message))
    return errors


def shown_alert(given: AlertInput) -> AlertInput:
    """Return the rule as responses show it, without secrets."""
    return msgspec.structs.replace(given, notify=[shown_target(target) for target in given.notify])


def _with_stored_secrets(notify: Sequence[Target], stored: Sequence[Target]) -> tuple[list[Target], list[FieldError]]:
    """Return the targets with the stored values of what is redacted, and the errors of unknown values.

    The stored target at the same position is tried first, and then the others, so that targets can change places.
    """
    restored: list[Target] = []
    errors: list[FieldError] = []
    for index, given in enumerate(notify):
        candidates = [with_stored_secrets(given, one) for one in (*stored[index : index + 1], *stored)]
        target = next((one for one in candidates if not redaction_errors(one)), given)
        errors += [_of_notify(index, error) for error in redaction_errors(target)]
        restored.append(target)
    return restored, errors


def _target_errors(notify: Sequence[Target], rules: TargetRules) -> list[FieldError]:
    errors = [_of_notify(index, error) for index, target in enumerate(notify) for error in target_errors(target, rules)]
    errors += [
        FieldError(f"notify[{index}].mode", "must be sync: a notification ends when it is delivered")
        for index, target in enumerate(notify)
        if getattr(target, "mode", None) == "callback"
    ]
    return errors


def _of_notify(index: int, error: FieldError) -> FieldError:
    return FieldError(f"notify[{index}].{error.field.removeprefix('target.')}", error.message)


def _when_errors(when: When) -> list[FieldError]:
    if isinstance(when, WhenDeadline):
        errors = [] if parse_clock(when.by) is not None else [FieldError("when.by", CLOCK_MESSAGE)]
        return errors + ([] if when.timezone is None else zone_error("when.timezone", when.timezone))
    if isinstance(when, WhenSlow) and when.seconds is None and when.times_usual is None:
        return [FieldError("when.seconds", "give seconds, times_usual, or both")]
    return []


# What a rule of these kinds cannot be restricted to. Their incidents are about queues, or about schedules.
_OF_QUEUES = frozenset({AlertKind.QUEUE_AGE, AlertKind.NO_WORKER})


def _match_errors(given: AlertInput) -> list[FieldError]:
    match, kind = given.match, kind_of(given.when)
    errors = [
        FieldError(f"match.{field}", NAME_MESSAGE)
        for field, value in (("schedule", match.schedule), ("queue", match.queue))
        if value is not None and not is_name(value)
    ]
    if match.label is not None:
        key, value = split_label(match.label)
        if not is_name(key) or len(value or "") > 256 or has_control_characters(match.label) or not is_encodable(match.label):
            errors.append(FieldError("match.label", "must be a label, or a label and its value: key or key=value"))
    if kind in _OF_QUEUES:
        errors += [
            FieldError(f"match.{field}", f"cannot be used with {kind}, which watches queues; use match.queue")
            for field in ("schedule", "label")
            if getattr(match, field) is not None
        ]
    return errors


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AlertInput).decode


def alert_text(given: AlertInput) -> str:
    """Return the stored form of a rule."""
    return _encode(given).decode()


def alert_from_text(text: str) -> AlertInput:
    return _decode(text)


def is_same_alert(one: AlertRule, other: AlertRule) -> bool:
    """Whether a request would change nothing but the revision."""
    return one.given == other.given
