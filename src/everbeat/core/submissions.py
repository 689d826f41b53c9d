"""A task as JSON: checking what users submit, and writing what they are answered."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec

from everbeat.core.definitions import (
    encode_payload,
    label_errors,
    number,
    optional_rfc3339,
    retry_errors,
    rfc3339,
    utc,
)
from everbeat.core.errors import FieldError, InvalidInput
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.partitioning import partition_of
from everbeat.core.protocol import DEFAULT_QUEUE, TaskInput
from everbeat.core.schedules import Retry, Schedule
from everbeat.core.targets import HttpTarget, WorkerTarget, target_errors, target_to_json
from everbeat.core.tasks import Attempt, DeadLetter, LogLine, NewTask, Origin, TaskKey, TaskRecord, TaskState

MAX_RESULT_BYTES = 64 * 1024
MAX_ERROR_CHARACTERS = 4000
MAX_TRACE_CHARACTERS = 16_000
_SHOWN_OF_CUT_RESULT = 1000
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_DEFAULT_RETRY = Retry()
_SUBMIT = Origin.SUBMIT

_encode = msgspec.json.encode
_ordered = msgspec.json.Encoder(order="deterministic").encode
_decode_retry = msgspec.json.Decoder(Retry).decode
_is_name = lru_cache(4096)(is_name)


def _text(value: Any) -> str:
    return _encode(value).decode()


# Written so often that they are kept short: a worker's target says nothing that queue and type do not.
_PLAIN = "{}"


def new_task(
    given: TaskInput, id_: UUID, tenant_id: UUID, *, key: str | None = None, traceparent: str | None = None
) -> NewTask:
    """The task that a submission describes; raises InvalidInput with every error found, or TooLarge."""
    if not (_is_plain(given) and (key is None or _KEY.fullmatch(key))):
        _raise_invalid(given, key)
    queue, target = _destination(given)
    return NewTask(  # by place: naming twenty fields costs as much as checking them
        id_,
        tenant_id,
        partition_of(id_),
        queue,
        given.type,
        target,
        encode_payload(given.payload).decode(),
        _SUBMIT,
        given.priority,
        given.max_attempts,
        _PLAIN if given.retry == _DEFAULT_RETRY else _text(given.retry),
        given.timeout_seconds,
        _text(given.labels) if given.labels else _PLAIN,
        None if given.run_at is None else utc(given.run_at, "run_at"),
        given.delay_seconds,
        traceparent=traceparent if traceparent is not None and _TRACEPARENT.fullmatch(traceparent) else None,
        key=None if key is None else TaskKey(key, _fingerprint(given)),
        fair_key=given.fair_key or "",
    )


def _is_plain(given: TaskInput) -> bool:
    """Nothing that would need a closer look: the way of nearly every task."""
    return (
        _is_name(given.type)
        and (given.queue is None or _is_name(given.queue))
        and (given.fair_key is None or _is_name(given.fair_key))
        and (given.run_at is None or (given.delay_seconds is None and 2 <= given.run_at.year <= 9998))
        and given.target is None
        and not given.labels
        and given.retry == _DEFAULT_RETRY
    )


def _raise_invalid(given: TaskInput, key: str | None) -> None:
    """Raise if there is anything wrong, naming all of it."""
    errors = [
        FieldError(field, NAME_MESSAGE)
        for field, value in (("type", given.type), ("queue", given.queue), ("fair_key", given.fair_key))
        if value is not None and not is_name(value)
    ]
    if given.run_at is not None and given.delay_seconds is not None:
        errors.append(FieldError("delay_seconds", "give run_at or delay_seconds, not both"))
    if given.run_at is not None and not 2 <= given.run_at.year <= 9998:
        errors.append(FieldError("run_at", "must be in the years 2 to 9998"))
    errors += [*label_errors(given.labels), *retry_errors(given.retry), *_target_errors(given)]
    if key is not None and not _KEY.fullmatch(key):
        errors.append(FieldError("idempotency_key", "must be 1 to 255 visible ASCII characters"))
    if errors:
        raise InvalidInput(*errors)


def _target_errors(given: TaskInput) -> list[FieldError]:
    target = given.target
    if target is None:
        return []
    errors = target_errors(target)
    if isinstance(target, WorkerTarget):
        if target.type != given.type:
            errors.append(FieldError("target.type", "differs from type; make them equal"))
        if given.queue is not None and target.queue != given.queue:
            errors.append(FieldError("target.queue", "differs from queue; make them equal or leave one out"))
    elif given.queue is not None:
        errors.append(FieldError("queue", "goes only with worker targets"))
    return errors


def _destination(given: TaskInput) -> tuple[str, str]:
    target = given.target
    if target is None:
        return given.queue or DEFAULT_QUEUE, _PLAIN
    if isinstance(target, WorkerTarget):
        return target.queue, _PLAIN
    kind = "http" if isinstance(target, HttpTarget) else str(target_to_json(target)["kind"])
    return kind, _text(target_to_json(target))


def _fingerprint(given: TaskInput) -> bytes:
    """What two submissions under one key must have in common: everything but the key."""
    return hashlib.sha256(_ordered(msgspec.structs.replace(given, idempotency_key=None))).digest()


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
    """A task as a tick of the schedule would make it."""
    spec = schedule.spec
    return NewTask(
        id=id_,
        tenant_id=schedule.tenant_id,
        partition=partition_of(id_),
        queue=spec.queue,
        type=spec.task_type,
        target=_text(spec.target),
        payload=(spec.payload if payload is None else payload).decode(),
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
    )


def task_for_replay(task: TaskRecord | DeadLetter, id_: UUID, *, run_at: datetime | None = None) -> NewTask:
    """The same work as a new task."""
    return NewTask(
        id=id_,
        tenant_id=task.tenant_id,
        partition=partition_of(id_),
        queue=task.queue,
        type=task.type,
        target=_text(task.target),
        payload="null" if task.payload_ref else task.payload.decode(),
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
        fair_key=task.fair_key,
    )


def target_of(text: str, queue: str, type_: str) -> dict[str, Any]:
    """A target as users see it, from what is kept of it."""
    if text == _PLAIN:
        return {"kind": "worker", "type": type_, "queue": queue}
    target: dict[str, Any] = msgspec.json.decode(text)
    return target


def task_as_submitted(new: NewTask, now: datetime) -> TaskRecord:
    """A task as it stands in the moment it was written."""
    run_at = new.run_at or now + timedelta(seconds=new.delay_seconds or 0)
    return TaskRecord(
        id=new.id,
        tenant_id=new.tenant_id,
        type=new.type,
        queue=new.queue,
        target=target_of(new.target, new.queue, new.type),
        payload=new.payload.encode(),
        state=TaskState.SCHEDULED if run_at > now else TaskState.READY,
        priority=new.priority,
        run_at=run_at,
        attempt=0,
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
        started_at=None,
        finished_at=None,
        worker=None,
        lease_until=None,
        fence=0,
        cancel_requested=False,
        traceparent=new.traceparent,
        payload_ref=new.payload_ref,
        fair_key=new.fair_key,
    )


# What workers hand in, cut to size


def result_text(result: Any) -> str | None:
    """A result as it is kept: nothing, its JSON, or a note in its place if it is too large."""
    if result is None:
        return None
    encoded = _encode(result)
    if len(encoded) <= MAX_RESULT_BYTES:
        return encoded.decode()
    return _text(cut_result(encoded))


def cut_result(encoded: bytes) -> dict[str, Any]:
    return {
        "cut": True,
        "bytes": len(encoded),
        "note": f"the result was {len(encoded)} bytes; at most {MAX_RESULT_BYTES} are kept, so only its start is here",
        "start": encoded[:_SHOWN_OF_CUT_RESULT].decode(errors="ignore"),
    }


def error_text(message: str, kind: str | None = None, trace: str | None = None) -> str:
    """An error as it is kept; of a long message the start, of a long trace the end, each with a note of the cut."""
    if trace is not None and len(trace) > MAX_TRACE_CHARACTERS:
        trace = f"… {len(trace) - MAX_TRACE_CHARACTERS} characters cut …\n{trace[-MAX_TRACE_CHARACTERS:]}"
    if len(message) > MAX_ERROR_CHARACTERS:
        message = f"{message[:MAX_ERROR_CHARACTERS]} … {len(message) - MAX_ERROR_CHARACTERS} characters cut"
    parts = {"message": message, "kind": None if kind is None else kind[:200], "trace": trace}
    return _text({name: None if value is None else _encodable(value) for name, value in parts.items()})


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


# Answers


def _raw(encoded: bytes | None) -> msgspec.Raw | None:
    return None if encoded is None else msgspec.Raw(encoded)


def task_response(task: TaskRecord) -> dict[str, Any]:
    """A task as the API answers it."""
    progress = None
    if task.progress_fraction is not None or task.progress_message is not None:
        progress = {"fraction": task.progress_fraction, "message": task.progress_message}
    duration = None
    if task.started_at is not None and task.finished_at is not None:
        duration = round((task.finished_at - task.started_at).total_seconds() * 1000, 3)
    return {
        "id": str(task.id),
        "type": task.type,
        "queue": task.queue,
        "target": task.target,
        "payload": msgspec.Raw(task.payload),
        "payload_omitted": task.payload_ref is not None,
        "state": task.state.value,
        "priority": task.priority,
        "run_at": rfc3339(task.run_at),
        "attempt": task.attempt,
        "max_attempts": task.max_attempts,
        "retry": msgspec.to_builtins(_decode_retry(task.retry)),
        "timeout_seconds": number(task.timeout_seconds),
        "labels": task.labels,
        "fair_key": task.fair_key or None,
        "origin": task.origin.value,
        "schedule_id": None if task.schedule_id is None else str(task.schedule_id),
        "schedule": task.schedule,
        "scheduled_for": optional_rfc3339(task.scheduled_for),
        "progress": progress,
        "result": _raw(task.result),
        "error": _raw(task.error),
        "reason": task.reason,
        "created_at": rfc3339(task.created_at),
        "started_at": optional_rfc3339(task.started_at),
        "finished_at": optional_rfc3339(task.finished_at),
        "duration_ms": duration,
        "worker": task.worker,
        "lease_until": optional_rfc3339(task.lease_until),
        "cancel_requested": task.cancel_requested,
    }


def attempt_response(attempt: Attempt) -> dict[str, Any]:
    duration = None
    if attempt.ended_at is not None:
        duration = round((attempt.ended_at - attempt.started_at).total_seconds() * 1000, 3)
    return {
        "attempt": attempt.attempt,
        "fence": attempt.fence,
        "worker": attempt.worker,
        "started_at": rfc3339(attempt.started_at),
        "ended_at": optional_rfc3339(attempt.ended_at),
        "outcome": None if attempt.outcome is None else attempt.outcome.value,
        "error": _raw(attempt.error),
        "duration_ms": duration,
    }


def log_response(line: LogLine) -> dict[str, Any]:
    return {"at": rfc3339(line.at), "attempt": line.attempt, "worker": line.worker, "text": line.text}


def dead_letter_response(letter: DeadLetter) -> dict[str, Any]:
    return {
        "task_id": str(letter.task_id),
        "type": letter.type,
        "queue": letter.queue,
        "target": letter.target,
        "payload": msgspec.Raw(letter.payload),
        "payload_omitted": letter.payload_ref is not None,
        "origin": letter.origin.value,
        "schedule_id": None if letter.schedule_id is None else str(letter.schedule_id),
        "schedule": letter.schedule,
        "scheduled_for": optional_rfc3339(letter.scheduled_for),
        "priority": letter.priority,
        "labels": letter.labels,
        "fair_key": letter.fair_key or None,
        "attempts": letter.attempt,
        "max_attempts": letter.max_attempts,
        "reason": letter.reason,
        "error": _raw(letter.error),
        "worker": letter.worker,
        "created_at": rfc3339(letter.created_at),
        "died_at": rfc3339(letter.died_at),
        "replayed_at": optional_rfc3339(letter.replayed_at),
        "replayed_as": None if letter.replayed_as is None else str(letter.replayed_as),
        "replays": letter.replays,
    }
