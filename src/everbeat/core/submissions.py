"""A task as JSON: validating submissions, and building responses."""

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


# Stored in place of the default retry policy, of empty labels, and of a worker target, which follows from queue and type.
_PLAIN = "{}"


def new_task(
    given: TaskInput, id_: UUID, tenant_id: UUID, *, key: str | None = None, traceparent: str | None = None
) -> NewTask:
    """The task that a submission describes. Raises InvalidInput with all errors, or TooLarge."""
    if not (_is_plain(given) and (key is None or _KEY.fullmatch(key))):
        _raise_invalid(given, key)
    queue, target = _destination(given)
    return NewTask(  # positional: twenty keyword arguments cost as much as the checks
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
    """Whether the submission is valid and has only simple fields, as nearly all do; otherwise the full check is needed."""
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
    """Raise InvalidInput with all errors, if there are any."""
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
        errors.append(FieldError("queue", "can only be used with worker targets"))
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
    """The hash that two submissions with one key must share: of everything except the key."""
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
    """A new task of a schedule, with the fields that a tick of it would set."""
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
    """A new task that repeats a finished task or dead letter."""
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
    """The target in responses, from its stored text."""
    if text == _PLAIN:
        return {"kind": "worker", "type": type_, "queue": queue}
    target: dict[str, Any] = msgspec.json.decode(text)
    return target


def lease_end(new: NewTask, now: datetime) -> datetime:
    """The end of the lease of a task that is written as running, for a worker that was waiting."""
    return now + timedelta(seconds=min(new.lease_seconds, new.deadline_seconds or new.timeout_seconds))


def task_as_submitted(new: NewTask, now: datetime) -> TaskRecord:
    """The task as it was written at `now`: waiting, or running if it was handed directly to a waiting worker."""
    is_leased = new.lease_owner is not None
    run_at = new.run_at or now + timedelta(seconds=new.delay_seconds or 0)
    return TaskRecord(
        id=new.id,
        tenant_id=new.tenant_id,
        type=new.type,
        queue=new.queue,
        target=target_of(new.target, new.queue, new.type),
        payload=new.payload.encode(),
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
        lease_until=lease_end(new, now) if is_leased else None,
        fence=1 if is_leased else 0,
        cancel_requested=False,
        traceparent=new.traceparent,
        payload_ref=new.payload_ref,
        fair_key=new.fair_key,
    )


# Results and errors, truncated


def result_text(result: Any) -> str | None:
    """The stored text of a result: None, its JSON, or a note in its place if it is too large."""
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
        "note": f"the result was {len(encoded)} bytes; at most {MAX_RESULT_BYTES} are stored, so only its beginning is here",
        "start": encoded[:_SHOWN_OF_CUT_RESULT].decode(errors="ignore"),
    }


def error_text(message: str, kind: str | None = None, trace: str | None = None) -> str:
    """The stored text of an error. Long messages keep their beginning, long traces their end, each with a note of the cut."""
    if trace is not None and len(trace) > MAX_TRACE_CHARACTERS:
        trace = f"… {len(trace) - MAX_TRACE_CHARACTERS} characters cut …\n{trace[-MAX_TRACE_CHARACTERS:]}"
    if len(message) > MAX_ERROR_CHARACTERS:
        message = f"{message[:MAX_ERROR_CHARACTERS]} … {len(message) - MAX_ERROR_CHARACTERS} characters cut"
    parts = {"message": message, "kind": None if kind is None else kind[:200], "trace": trace}
    return _text({name: None if value is None else _encodable(value) for name, value in parts.items()})


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


# Responses


def _raw(encoded: bytes | None) -> msgspec.Raw | None:
    return None if encoded is None else msgspec.Raw(encoded)


def task_response(task: TaskRecord) -> dict[str, Any]:
    """The JSON of a task in responses."""
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
