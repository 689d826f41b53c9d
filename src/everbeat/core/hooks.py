"""Hooks: targets that are told when a task is completed, when it becomes a dead letter, or when ticks are missed.

A hook is sent as a task of its own, with the origin `hook`. The database writes it in the transaction of the ending, or of the
ledger row: a trigger on `task_history` and `ticks` reads the stored form, which has one entry for each hook with the queue,
type, target and fair key of the task to write. Tasks of hooks have no hooks, so that their own failures send nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from everbeat.core.errors import FieldError
from everbeat.core.target_secrets import redaction_errors, shown_target, with_stored_secrets
from everbeat.core.targets import Target, TargetRules, WorkerTarget, destination_of, queue_of, target_errors

MAX_HOOKS = 10
EVENTS = ("on_success", "on_failure", "on_missed")


class Hooks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`on_failure`: the task became a dead letter. `on_missed`: ticks of the schedule were skipped as misfires."""

    on_success: list[Target] = []
    on_failure: list[Target] = []
    on_missed: list[Target] = []

    def __bool__(self) -> bool:
        return bool(self.on_success or self.on_failure or self.on_missed)


NO_HOOKS = Hooks()


class _StoredHook(msgspec.Struct, frozen=True, kw_only=True):
    """`target` is JSON, as it is stored with a task. `type` None: the type of the task that the hook is about."""

    on: str
    queue: str
    type: str | None
    target: str
    fair_key: str


_decode_stored = msgspec.json.Decoder(list[_StoredHook]).decode
_decode_target = msgspec.json.Decoder(Target).decode


def hooks_text(hooks: Hooks) -> str | None:
    """Return the stored form; None if there are no hooks."""
    stored = [
        _StoredHook(
            on=event,
            queue=queue_of(target),
            type=target.type if isinstance(target, WorkerTarget) else None,
            target=msgspec.json.encode(target).decode(),
            fair_key=destination_of(target),
        )
        for event, _, target in _each(hooks)
    ]
    return msgspec.json.encode(stored).decode() if stored else None


def hooks_from_text(text: str | None) -> Hooks:
    if not text:
        return NO_HOOKS
    targets: dict[str, list[Any]] = {event: [] for event in EVENTS}
    for one in _decode_stored(text):
        targets[one.on].append(_decode_target(one.target))
    return Hooks(**targets)


def hook_errors(hooks: Hooks, rules: TargetRules, *, of_task: bool = False) -> list[FieldError]:
    """Return the errors of the targets. A task cannot be missed, only the tick of a schedule can."""
    errors: list[FieldError] = []
    for event, index, target in _each(hooks):
        at = f"hooks.{event}[{index}]"
        errors += [FieldError(f"{at}.{one.field.removeprefix('target.')}", one.message) for one in target_errors(target, rules)]
    errors += [
        FieldError(f"hooks.{event}", f"must have at most {MAX_HOOKS} targets")
        for event in EVENTS
        if len(getattr(hooks, event)) > MAX_HOOKS
    ]
    if of_task and hooks.on_missed:
        errors.append(FieldError("hooks.on_missed", "can only be used with schedules"))
    return errors


def shown_hooks(hooks: Hooks) -> Hooks:
    """Return the hooks as responses show them."""
    return Hooks(**{event: [shown_target(target) for target in getattr(hooks, event)] for event in EVENTS})


def hooks_with_stored_secrets(hooks: Hooks, stored: Hooks) -> tuple[Hooks, list[FieldError]]:
    """Return the hooks with the stored values of redacted headers, by position, and the errors of those that are unknown."""
    known: Mapping[tuple[str, int], Target] = {(event, index): target for event, index, target in _each(stored)}
    restored: dict[str, list[Any]] = {event: [] for event in EVENTS}
    errors: list[FieldError] = []
    for event, index, given in _each(hooks):
        target = with_stored_secrets(given, known.get((event, index)))
        errors += [FieldError(f"hooks.{event}[{index}]", error.message) for error in redaction_errors(target)]
        restored[event].append(target)
    return Hooks(**restored), errors


def _each(hooks: Hooks) -> Iterator[tuple[str, int, Any]]:
    for event in EVENTS:
        for index, target in enumerate(getattr(hooks, event)):
            yield event, index, target
