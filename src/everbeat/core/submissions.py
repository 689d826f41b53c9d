"""Tasks as JSON: validates submissions and builds responses."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec

from everbeat.core.definitions import (
    MAX_ROW_PAYLOAD_BYTES,
    check_payload_size,
    retry_errors,
    utc,
)
from everbeat.core.errors import FieldError, InvalidInput
from everbeat.core.hooks import NO_HOOKS, hook_errors, hooks_text, hooks_with_stored_secrets
from everbeat.core.leases import attempt_deadline, lease_end
from everbeat.core.names import NAME_MESSAGE, is_name, label_errors
from everbeat.core.partitioning import partition_of
from everbeat.core.protocol import DEFAULT_QUEUE, TaskInput
from everbeat.core.schedules import DEFAULT_RETRY, Schedule
from everbeat.core.target_secrets import redaction_errors
from everbeat.core.targets import (
    NO_RULES,
    RESERVED_QUEUE_MESSAGE,
    Target,
    TargetRules,
    WorkerTarget,
    destination_of,
    is_reserved_queue,
    queue_of,
    target_errors,
    target_from_text,
)
from everbeat.core.tasks import DeadLetter, NewTask, Origin, TaskKey, TaskRecord, TaskState
from everbeat.core.tracing import TRACEPARENT

MAX_RESULT_BYTES = 64 * 1024
MAX_ERROR_CHARACTERS = 4000
MAX_TRACE_CHARACTERS = 16_000
_TRUNCATED_RESULT_BYTES = 1000
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_SUBMIT = Origin.SUBMIT

_encode = msgspec.json.encode
_ordered = msgspec.json.Encoder(order="deterministic").encode
_is_name = lru_cache(4096)(is_name)


def _text(value: Any) -> str:
    return _encode(value).decode()


# Stored instead of the default retry policy, empty labels, or a worker target, which follows from queue and type.
_DEFAULT_TEXT = "{}"
_NO_PAYLOAD = msgspec.Raw(b"null")


def new_task(
    given: TaskInput,
    id_: UUID,
    tenant_id: UUID,
    *,
    key: str | None = None,
    traceparent: str | None = None,
    rules: TargetRules = NO_RULES,
) -> NewTask:
    """Return the task that a submission describes. Raises InvalidInput with all errors, or TooLarge."""
    if not (_is_valid_and_simple(given) and (key is None or _KEY.fullmatch(key))):
        _raise_invalid(given, key, rules)
    queue, target = _destination(given)
    payload = bytes(given.payload)
    check_payload_size(payload)
    return NewTask(  # positional, because twenty keyword arguments take as long as the checks
        id_,
        tenant_id,
        partition_of(id_),
        queue,
        given.type,
        target,
        payload,
        _SUBMIT,
        given.priority,
        given.max_attempts,
        _DEFAULT_TEXT if given.retry == DEFAULT_RETRY else _text(given.retry),
        given.timeout_seconds,
        _text(given.labels) if given.labels else _DEFAULT_TEXT,
        None if given.run_at is None else utc(given.run_at, "run_at"),
        given.delay_seconds,
        traceparent=_valid_traceparent(given.traceparent or traceparent),
        key=None if key is None else TaskKey(key, _fingerprint(given)),
        fair_key=given.fair_key or ("" if given.target is None else destination_of(given.target)),
        hooks=hooks_text(given.hooks) if given.hooks else None,
    )


def _valid_traceparent(text: str | None) -> str | None:
    return text if text is not None and TRACEPARENT.fullmatch(text) else None


def _is_valid_and_simple(given: TaskInput) -> bool:
    """Whether the submission is valid and has only simple fields, like nearly all submissions. Others need the full check."""
    return (
        _is_name(given.type)
        and (given.queue is None or (_is_name(given.queue) and not is_reserved_queue(given.queue)))
        and (given.fair_key is None or _is_name(given.fair_key))
        and (given.run_at is None or (given.delay_seconds is None and 2 <= given.run_at.year <= 9998))
        and given.target is None
        and not given.labels
        and not given.hooks
        and given.retry == DEFAULT_RETRY
    )


def _raise_invalid(given: TaskInput, key: str | None, rules: TargetRules) -> None:
    """Raise InvalidInput with all errors, if there are any."""
    errors = [
        FieldError(field, NAME_MESSAGE)
        for field, value in (("type", given.type), ("queue", given.queue), ("fair_key", given.fair_key))
        if value is not None and not is_name(value)
    ]
    if given.queue is not None and is_reserved_queue(given.queue):
        errors.append(FieldError("queue", RESERVED_QUEUE_MESSAGE))
    if given.run_at is not None and given.delay_seconds is not None:
        errors.append(FieldError("delay_seconds", "cannot be used together with run_at"))
    if given.run_at is not None and not 2 <= given.run_at.year <= 9998:
        errors.append(FieldError("run_at", "must be in the years 2 to 9998"))
    errors += [*label_errors(given.labels), *retry_errors(given.retry), *_target_errors(given, rules)]
    errors += hook_errors(given.hooks, rules, of_task=True)
    errors += hooks_with_stored_secrets(given.hooks, NO_HOOKS)[1]
    if key is not None and not _KEY.fullmatch(key):
        errors.append(FieldError("idempotency_key", "must be 1 to 255 visible ASCII characters"))
    if errors:
        raise InvalidInput(*errors)


def _target_errors(given: TaskInput, rules: TargetRules) -> list[FieldError]:
    target = given.target
    if target is None:
        return []
    errors = [*target_errors(target, rules), *redaction_errors(target)]
    if isinstance(target, WorkerTarget):
        if target.type != given.type:
            errors.append(FieldError("target.type", "must be equal to type"))
        if given.queue is not None and target.queue != given.queue:
            errors.append(FieldError("target.queue", "must be equal to queue if both are given"))
        return errors
    for field, value in (("queue", given.queue), ("fair_key", given.fair_key)):
        if value is not None:
            errors.append(FieldError(field, "can only be used with worker targets"))
    return errors


def _destination(given: TaskInput) -> tuple[str, str]:
    target = given.target
    if target is None:
        return given.queue or DEFAULT_QUEUE, _DEFAULT_TEXT
    if isinstance(target, WorkerTarget):
        return target.queue, _DEFAULT_TEXT
    return queue_of(target), _text(target)


def _fingerprint(given: TaskInput) -> bytes:
    """Return a hash of everything except the key and the trace. Two submissions with the same key must have the same hash.

    The order of the fields of a small payload does not matter. A large payload is not decoded.
    """
    payload = bytes(given.payload)
    if len(payload) <= MAX_ROW_PAYLOAD_BYTES:
        payload = _ordered(msgspec.json.decode(payload))
    digest = hashlib.sha256(
        _ordered(msgspec.structs.replace(given, idempotency_key=None, payload=_NO_PAYLOAD, traceparent=None))
    )
    digest.update(payload)
    return digest.digest()


def task_from_schedule(
    schedule: Schedule,
    id_: UUID,
    origin: Origin,
    *,
    payload: bytes | None = None,
    scheduled_for: datetime | None = None,
    run_at: datetime | None = None,
    key: TaskKey | None = None,
) -> NewTask:
    """Return a new task of a schedule, with the fields that a tick would set."""
    spec = schedule.spec
    return NewTask(
        id=id_,
        tenant_id=schedule.tenant_id,
        partition=partition_of(id_),
        queue=spec.queue,
        type=spec.task_type,
        target=_text(spec.target),
        payload=spec.payload if payload is None else payload,
        origin=origin,
        priority=spec.priority,
        max_attempts=spec.max_attempts,
        retry=_text(spec.retry),
        timeout_seconds=spec.timeout_seconds,
        labels=_text(spec.labels),
        run_at=run_at,
        schedule_id=schedule.id,
        schedule_name=spec.name,
        scheduled_for=scheduled_for,
        key=key,
        fair_key=spec.fair_key,
        hooks=hooks_text(spec.hooks),
    )


def task_for_replay(task: TaskRecord | DeadLetter, id_: UUID, *, run_at: datetime | None = None) -> NewTask:
    """Return a new task that repeats a finished task or a dead letter."""
    return NewTask(
        id=id_,
        tenant_id=task.tenant_id,
        partition=partition_of(id_),
        queue=queue_of(task.target),
        type=task.type,
        target=_text(task.target),
        payload=b"null" if task.payload_ref else task.payload,
        origin=Origin.REPLAY,
        priority=task.priority,
        max_attempts=task.max_attempts,
        retry=task.retry.decode(),
        timeout_seconds=task.timeout_seconds,
        labels=_text(task.labels),
        run_at=run_at,
        schedule_id=task.schedule_id,
        schedule_name=task.schedule,
        scheduled_for=task.scheduled_for,
        payload_ref=task.payload_ref,
        fair_key=task.fair_key or destination_of(task.target),
        hooks=task.hooks,
    )


def target_of(text: str, queue: str, type_: str) -> Target:
    """Return the target of a task from its stored text."""
    return WorkerTarget(type=type_, queue=queue) if text == _DEFAULT_TEXT else target_from_text(text)


def handoff_lease_end(new: NewTask, now: datetime) -> datetime:
    """Return the end of the lease of a task that is written as running by a direct handoff."""
    return lease_end(now, new.lease_seconds, attempt_deadline(now, new.timeout_seconds, now, new.total_seconds))


def task_as_submitted(new: NewTask, now: datetime) -> TaskRecord:
    """Return the task as written at `now`: waiting, or running after a direct handoff."""
    is_leased = new.lease_owner is not None
    run_at = new.run_at or now + timedelta(seconds=new.delay_seconds or 0)
    return TaskRecord(
        id=new.id,
        tenant_id=new.tenant_id,
        type=new.type,
        queue=new.queue,
        target=target_of(new.target, new.queue, new.type),
        payload=new.payload,
        state=TaskState.RUNNING if is_leased else TaskState.SCHEDULED if run_at > now else TaskState.READY,
        priority=new.priority,
        run_at=run_at,
        attempt=1 if is_leased else 0,
        max_attempts=new.max_attempts,
        retry=new.retry.encode(),
        timeout_seconds=new.timeout_seconds,
        labels=msgspec.json.decode(new.labels),
        origin=new.origin,
        schedule_id=new.schedule_id,
        schedule=new.schedule_name,
        scheduled_for=new.scheduled_for,
        progress_fraction=None,
        progress_message=None,
        result=None,
        error=None,
        created_at=now,
        started_at=now if is_leased else None,
        finished_at=None,
        worker=new.lease_owner,
        lease_until=handoff_lease_end(new, now) if is_leased else None,
        fence=1 if is_leased else 0,
        cancel_requested=False,
        traceparent=new.traceparent,
        payload_ref=new.payload_ref,
        fair_key=new.fair_key,
        hooks=new.hooks,
    )


# Results and errors, truncated to their limits


def result_text(result: msgspec.Raw) -> str | None:
    """Return the text to store for a result: None, its JSON, or, if it is too large, a note with its beginning."""
    encoded = bytes(result)
    if encoded == b"null":
        return None
    if len(encoded) <= MAX_RESULT_BYTES:
        return encoded.decode()
    return _text(truncated_result(encoded))


def truncated_result(encoded: bytes) -> dict[str, Any]:
    return {
        "cut": True,
        "bytes": len(encoded),
        "note": f"the result was {len(encoded)} bytes and was truncated; at most {MAX_RESULT_BYTES} bytes are stored",
        "start": encoded[:_TRUNCATED_RESULT_BYTES].decode(errors="ignore"),
    }


def error_text(message: str, kind: str | None = None, trace: str | None = None) -> str:
    """Return the text to store for an error. Long messages keep their beginning and long traces their end, with a note."""
    if trace is not None and len(trace) > MAX_TRACE_CHARACTERS:
        trace = f"… {len(trace) - MAX_TRACE_CHARACTERS} characters truncated …\n{trace[-MAX_TRACE_CHARACTERS:]}"
    if len(message) > MAX_ERROR_CHARACTERS:
        message = f"{message[:MAX_ERROR_CHARACTERS]} … {len(message) - MAX_ERROR_CHARACTERS} characters truncated"
    parts = {"message": message, "kind": None if kind is None else kind[:200], "trace": trace}
    return _text({name: None if value is None else _encodable(value) for name, value in parts.items()})


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
