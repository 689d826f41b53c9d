"""Submissions: conversion to a task or to a list of all errors; stored results and errors; responses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.core.broker_targets import KafkaTarget
from everbeat.core.errors import InvalidInput, TooLarge
from everbeat.core.partitioning import partition_of
from everbeat.core.protocol import MAX_DELAY_SECONDS, TaskInput, raw_json
from everbeat.core.responses import attempt_response, dead_letter_response, log_response, task_response
from everbeat.core.schedules import DEFAULT_TENANT, Retry, RetryKind
from everbeat.core.submissions import (
    MAX_ERROR_CHARACTERS,
    MAX_RESULT_BYTES,
    MAX_TRACE_CHARACTERS,
    error_text,
    new_task,
    result_text,
    target_of,
    task_as_submitted,
    task_for_replay,
    task_from_schedule,
    truncated_result,
)
from everbeat.core.targets import HttpTarget, WorkerTarget
from everbeat.core.tasks import Attempt, AttemptOutcome, DeadLetter, LogLine, NewTask, Origin, TaskKey, TaskRecord, TaskState
from everbeat.core.tenants import MAX_PAYLOAD_BYTES
from tests.factories import NOW, make_input, make_schedule, seconds

ID = UUID(int=77)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def make(key: str | None = None, traceparent: str | None = None, **more: Any) -> NewTask:
    return new_task(make_input(**{"type": "work", **more}), ID, DEFAULT_TENANT, key=key, traceparent=traceparent)


def error_fields(key: str | None = None, **more: Any) -> list[str]:
    with pytest.raises(InvalidInput) as refused:
        make(key, **more)
    assert not isinstance(refused.value, TooLarge)
    return [error.field for error in refused.value.errors]


def decode(body: str) -> TaskInput:
    return msgspec.json.decode(body, type=TaskInput)


# New tasks


def test_a_minimal_submission_gets_the_defaults() -> None:
    task = make()
    assert (task.id, task.tenant_id, task.partition) == (ID, DEFAULT_TENANT, partition_of(ID))
    assert (task.type, task.queue, task.origin, task.payload) == ("work", "default", Origin.SUBMIT, b"{}")
    assert (task.priority, task.max_attempts, task.timeout_seconds) == (100, 3, 3600)
    assert (task.run_at, task.delay_seconds, task.key, task.traceparent) == (None, None, None, None)
    assert msgspec.json.decode(task.retry, type=Retry) == Retry()
    assert (msgspec.json.decode(task.labels), task.lease_owner) == ({}, None)


def test_a_full_submission_keeps_all_fields() -> None:
    retry = Retry(kind=RetryKind.FIXED, base_seconds=9, factor=3, max_seconds=90, jitter=False)
    at = datetime(2027, 1, 1, 12, tzinfo=UTC)
    task = make(
        queue="q",
        payload={"a": [1, None]},
        run_at=at.astimezone(tz=datetime.now().astimezone().tzinfo),
        priority=0,
        max_attempts=100,
        retry=retry,
        timeout_seconds=0.5,
        labels={"team": "ü"},
        traceparent=TRACE,
        key="k",
    )
    assert (task.queue, msgspec.json.decode(task.payload), task.run_at) == ("q", {"a": [1, None]}, at)
    assert task.run_at is not None
    assert task.run_at.tzinfo is UTC
    assert (task.priority, task.max_attempts, task.timeout_seconds, task.traceparent) == (0, 100, 0.5, TRACE)
    assert msgspec.json.decode(task.retry, type=Retry) == retry
    assert msgspec.json.decode(task.labels) == {"team": "ü"}
    assert task.key is not None
    assert task.key.key == "k"


@pytest.mark.parametrize(
    ("more", "fields"),
    [
        ({"type": ""}, ["type"]),
        ({"type": "a b"}, ["type"]),
        ({"type": "x" * 201}, ["type"]),
        ({"type": "a\x00"}, ["type"]),
        ({"queue": "ü"}, ["queue"]),
        ({"queue": ""}, ["queue"]),
        ({"run_at": NOW, "delay_seconds": 1}, ["delay_seconds"]),
        ({"run_at": datetime.max.replace(tzinfo=UTC)}, ["run_at"]),
        ({"run_at": datetime.min.replace(tzinfo=UTC)}, ["run_at"]),
        ({"labels": {"": "x"}}, ["labels.''"]),
        ({"labels": {"a": "x" * 257}}, ["labels.'a'"]),
        ({"labels": {"a": "\x00"}}, ["labels.'a'"]),
        ({"labels": {f"l{number}": "" for number in range(33)}}, ["labels"]),
        ({"retry": Retry(base_seconds=-1)}, ["retry.base_seconds"]),
        ({"retry": Retry(factor=0.5)}, ["retry.factor"]),
        ({"retry": Retry(max_seconds=1e300)}, ["retry.max_seconds"]),
        ({"retry": Retry(base_seconds=float("nan"))}, ["retry.base_seconds"]),
        ({"target": WorkerTarget(type="other")}, ["target.type"]),
        ({"queue": "a", "target": WorkerTarget(type="work", queue="b")}, ["target.queue"]),
        ({"target": WorkerTarget(type="work", queue="a b")}, ["target.queue"]),
        ({"queue": "a", "target": HttpTarget(url="https://example.org/")}, ["queue"]),
        ({"target": HttpTarget(url="ftp://example.org/")}, ["target.url"]),
        ({"target": KafkaTarget(topic="t", broker="unknown")}, ["target.broker"]),
        ({"key": ""}, ["idempotency_key"]),
        ({"key": "with space"}, ["idempotency_key"]),
        ({"key": "x" * 256}, ["idempotency_key"]),
        ({"key": "ü"}, ["idempotency_key"]),
        ({"key": "a\n"}, ["idempotency_key"]),
    ],
)
def test_invalid_fields_are_named(more: dict[str, Any], fields: list[str]) -> None:
    assert error_fields(**more) == fields


def test_all_invalid_fields_are_named_together() -> None:
    found = error_fields(key="", type="a b", queue="", run_at=NOW, delay_seconds=1, labels={"": ""}, retry=Retry(factor=0))
    assert found == ["type", "queue", "delay_seconds", "labels.''", "retry.factor", "idempotency_key"]


@pytest.mark.parametrize(
    "body",
    [
        '{"type":"w","priority":-1}',
        '{"type":"w","priority":1001}',
        '{"type":"w","max_attempts":0}',
        '{"type":"w","max_attempts":101}',
        '{"type":"w","timeout_seconds":0}',
        '{"type":"w","timeout_seconds":604801}',
        '{"type":"w","delay_seconds":-0.1}',
        f'{{"type":"w","delay_seconds":{MAX_DELAY_SECONDS + 1}}}',
        '{"type":"w","run_at":"2026-01-01T00:00:00"}',
        '{"type":"w","run_at":"tomorrow"}',
        '{"type":"w","labels":{"a":1}}',
        '{"type":"w","retry":{"kind":"never"}}',
        '{"type":"w","retry":{"unknown":1}}',
        '{"type":"w","unknown":1}',
        '{"type":"w","tenant_id":"00000000-0000-0000-0000-000000000000"}',
        '{"type":"w","target":{"kind":"shell","command":"rm"}}',
        "{}",
    ],
)
def test_values_out_of_range_and_unknown_fields_do_not_decode(body: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(body)


def test_a_payload_that_is_too_large_is_refused() -> None:
    make(payload="x" * (MAX_PAYLOAD_BYTES - 2))
    with pytest.raises(TooLarge):
        make(payload="x" * (MAX_PAYLOAD_BYTES - 1))


def test_targets_decide_the_queue() -> None:
    worker = make(target=WorkerTarget(type="work", queue="q"))
    assert (worker.queue, target_of(worker.target, worker.queue, worker.type)) == (
        "q",
        WorkerTarget(type="work", queue="q"),
    )
    http = make(target=HttpTarget(url="https://example.org/", headers={"X-A": "b"}))
    assert (http.queue, http.fair_key) == ("everbeat:http", "example.org")
    assert target_of(http.target, http.queue, http.type) == HttpTarget(url="https://example.org/", headers={"X-A": "b"})


@pytest.mark.parametrize("trace", ["", "00-zz-00-00", TRACE.upper(), TRACE + "-x", "x" * 10_000, "a\x00b"])
def test_an_invalid_traceparent_is_dropped(trace: str) -> None:
    assert make(traceparent=trace).traceparent is None


@given(payload=JSON)
def test_every_payload_is_stored_unchanged(payload: Any) -> None:
    assert msgspec.json.decode(make(payload=payload).payload) == payload


# Fingerprints


def fingerprint(given: TaskInput) -> bytes:
    key = new_task(given, ID, DEFAULT_TENANT, key="k").key
    assert key is not None
    return key.fingerprint


def test_the_order_of_keys_and_the_key_itself_do_not_matter() -> None:
    one = decode('{"type":"w","payload":{"a":{"x":1,"y":2},"b":1},"labels":{"p":"q","r":"s"}}')
    two = decode('{"labels":{"r":"s","p":"q"},"idempotency_key":"k","payload":{"b":1,"a":{"y":2,"x":1}},"type":"w"}')
    assert fingerprint(one) == fingerprint(two)
    assert len(fingerprint(one)) == 32


@pytest.mark.parametrize(
    "more",
    [
        {"type": "v"},
        {"queue": "q"},
        {"payload": {"a": 2}},
        {"payload": {"a": "1"}},
        {"payload": [1]},
        {"run_at": NOW},
        {"delay_seconds": 0},
        {"priority": 99},
        {"max_attempts": 4},
        {"retry": Retry(factor=3)},
        {"timeout_seconds": 3601},
        {"labels": {"a": "b"}},
        {"target": WorkerTarget(type="w")},
    ],
)
def test_a_different_task_has_a_different_fingerprint(more: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"type": "w", "payload": {"a": 1}}
    changed = {**plain, **more}
    if "type" in more:
        changed["type"] = more["type"]
    assert fingerprint(make_input(**plain)) != fingerprint(make_input(**changed))


# Tasks of other origins


def test_a_task_of_a_schedule_has_the_fields_of_the_schedule() -> None:
    schedule = make_schedule("nightly", payload=b'{"a":1}', priority=3, max_attempts=7, timeout_seconds=9, labels={"x": "y"})
    task = task_from_schedule(schedule, ID, Origin.BACKFILL, scheduled_for=NOW, run_at=NOW + seconds(1), key=TaskKey("k", b""))
    assert (task.origin, task.schedule_id, task.schedule_name, task.scheduled_for) == (
        Origin.BACKFILL,
        schedule.id,
        "nightly",
        NOW,
    )
    assert (task.payload, task.priority, task.max_attempts, task.timeout_seconds) == (b'{"a":1}', 3, 7, 9)
    assert (task.queue, task.type, task.labels, task.run_at) == ("default", "work", '{"x":"y"}', NOW + seconds(1))
    own = task_from_schedule(schedule, ID, Origin.TRIGGER, payload=b"[2]")
    assert (own.payload, own.scheduled_for, own.key) == (b"[2]", None, None)


@pytest.mark.parametrize("target", [None, WorkerTarget(type="work", queue="q"), HttpTarget(url="https://example.org/")])
def test_a_replayed_task_has_the_fields_of_the_first_one(target: Any) -> None:
    first = task_as_submitted(make(target=target, payload={"a": 1}, retry=Retry(factor=3), labels={"x": "y"}, key="k"), NOW)
    again = task_as_submitted(task_for_replay(first, UUID(int=78), run_at=NOW + seconds(5)), NOW)
    assert (again.id, again.origin, again.state, again.run_at) == (
        UUID(int=78),
        Origin.REPLAY,
        TaskState.SCHEDULED,
        NOW + seconds(5),
    )
    kept = ("type", "queue", "target", "payload", "priority", "max_attempts", "timeout_seconds", "labels")
    assert [getattr(again, field) for field in kept] == [getattr(first, field) for field in kept]
    assert msgspec.json.decode(again.retry, type=Retry) == Retry(factor=3)
    assert task_for_replay(first, ID).key is None, "the idempotency key is not copied"


@pytest.mark.parametrize(
    ("more", "run_at", "state"),
    [
        ({}, NOW, TaskState.READY),
        ({"delay_seconds": 0}, NOW, TaskState.READY),
        ({"delay_seconds": 1.5}, NOW + seconds(1.5), TaskState.SCHEDULED),
        ({"run_at": NOW}, NOW, TaskState.READY),
        ({"run_at": NOW - timedelta(days=999)}, NOW - timedelta(days=999), TaskState.READY),
        ({"run_at": NOW + seconds(0.000001)}, NOW + seconds(0.000001), TaskState.SCHEDULED),
    ],
)
def test_a_new_task_is_ready_or_scheduled(more: dict[str, Any], run_at: datetime, state: TaskState) -> None:
    task = task_as_submitted(make(**more), NOW)
    assert (task.run_at, task.state, task.created_at, task.attempt, task.fence) == (run_at, state, NOW, 0, 0)


# Results and errors


@given(result=JSON)
@settings(max_examples=50)
def test_a_result_is_stored_unchanged(result: Any) -> None:
    kept = result_text(raw_json(result))
    assert (kept is None) == (result is None)
    assert kept is None or msgspec.json.decode(kept) == result


@pytest.mark.parametrize("character", ["x", "ü", "\U0001f600", "\x00", '"'])
def test_a_result_that_is_too_large_is_truncated_with_a_note(character: str) -> None:
    kept = result_text(raw_json({"text": character * MAX_RESULT_BYTES}))
    assert kept is not None
    assert len(kept.encode()) < MAX_RESULT_BYTES
    note = msgspec.json.decode(kept)
    assert (note["cut"], note["start"].startswith('{"text":"')) == (True, True)
    assert f"{note['bytes']} bytes" in note["note"]
    assert note["bytes"] > MAX_RESULT_BYTES


def test_truncation_leaves_no_broken_character() -> None:
    for shift in range(4):
        start = truncated_result(b"x" * shift + "\U0001f600".encode() * 20_000)["start"]
        assert set(start) <= {"x", "\U0001f600"}


def test_a_short_error_is_stored_unchanged() -> None:
    kept = msgspec.json.decode(error_text("it broke", "ValueError", "line 1\nline 2"))
    assert kept == {"message": "it broke", "kind": "ValueError", "trace": "line 1\nline 2"}
    assert msgspec.json.decode(error_text("it broke")) == {"message": "it broke", "kind": None, "trace": None}


def test_a_long_error_keeps_the_start_of_the_message_and_the_end_of_the_trace() -> None:
    message, trace = "start" + "m" * MAX_ERROR_CHARACTERS, "t" * MAX_TRACE_CHARACTERS + "end"
    kept = msgspec.json.decode(error_text(message, "k" * 999, trace))
    assert kept["message"].startswith("start")
    assert kept["message"].endswith("5 characters truncated")
    assert kept["trace"].startswith("… 3 characters truncated")
    assert kept["trace"].endswith("end")
    assert len(kept["kind"]) == 200
    assert error_text(kept["message"][:MAX_ERROR_CHARACTERS]).count("truncated") == 0


@given(message=st.text(st.characters(), max_size=50), kind=st.none() | st.text(st.characters(), max_size=5))
def test_an_error_with_any_characters_can_be_stored(message: str, kind: str | None) -> None:
    """Python strings may contain lone surrogates; JSON and the databases may not."""
    text = error_text(message, kind, message)
    assert "\x00" not in text
    assert len(msgspec.json.decode(text.encode())["message"]) == len(message)


# Responses


def some_task(**more: Any) -> TaskRecord:
    return msgspec.structs.replace(task_as_submitted(make(payload={"a": 1}), NOW), **more)


def as_json(response: msgspec.Struct) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(response))
    return decoded


def test_a_task_response_has_the_documented_fields() -> None:
    response = as_json(task_response(some_task()))
    assert response | {"id": "", "retry": {}} == {
        "id": "",
        "type": "work",
        "queue": "default",
        "target": {"kind": "worker", "type": "work", "queue": "default"},
        "payload": {"a": 1},
        "payload_omitted": False,
        "state": "ready",
        "priority": 100,
        "run_at": "2026-03-02T12:00:00.000000Z",
        "attempt": 0,
        "max_attempts": 3,
        "retry": {},
        "timeout_seconds": 3600,
        "labels": {},
        "hooks": {"on_success": [], "on_failure": [], "on_missed": []},
        "fair_key": None,
        "origin": "submit",
        "schedule_id": None,
        "schedule": None,
        "scheduled_for": None,
        "progress": None,
        "result": None,
        "error": None,
        "created_at": "2026-03-02T12:00:00.000000Z",
        "started_at": None,
        "finished_at": None,
        "duration_ms": None,
        "worker": None,
        "lease_until": None,
        "cancel_requested": False,
        "reason": None,
    }
    assert response["retry"] == {"kind": "exponential", "base_seconds": 1, "factor": 2, "max_seconds": 3600, "jitter": True}


def test_the_response_of_a_finished_task_has_its_result_and_duration() -> None:
    task = some_task(
        state=TaskState.COMPLETED,
        started_at=NOW,
        finished_at=NOW + seconds(1.2345),
        result=b'{"rows":3}',
        progress_fraction=0.5,
        worker="w",
    )
    response = as_json(task_response(task))
    assert (response["state"], response["result"], response["duration_ms"]) == ("completed", {"rows": 3}, 1234.5)
    assert (response["progress"], response["worker"]) == ({"fraction": 0.5, "message": None}, "w")


def test_the_response_of_a_failed_task_has_its_error() -> None:
    response = as_json(task_response(some_task(state=TaskState.DEAD, error=error_text("broke", "KeyError").encode())))
    assert response["error"] == {"message": "broke", "kind": "KeyError", "trace": None}


def test_responses_of_attempts_and_log_lines() -> None:
    attempt = Attempt(
        attempt=2,
        fence=5,
        worker="w",
        started_at=NOW,
        ended_at=NOW + seconds(0.5),
        outcome=AttemptOutcome.LOST,
        error=error_text("lost worker", "lost").encode(),
    )
    response = as_json(attempt_response(attempt))
    assert (response["attempt"], response["fence"], response["outcome"], response["duration_ms"]) == (2, 5, "lost", 500)
    assert response["error"]["message"] == "lost worker"
    running = as_json(attempt_response(msgspec.structs.replace(attempt, ended_at=None, outcome=None, error=None)))
    assert (running["outcome"], running["ended_at"], running["duration_ms"], running["error"]) == (None, None, None, None)
    line = LogLine(id=ID, at=NOW, attempt=1, worker=None, text="hello\nworld")
    assert as_json(log_response(line)) == {
        "at": "2026-03-02T12:00:00.000000Z",
        "attempt": 1,
        "worker": None,
        "text": "hello\nworld",
    }


def test_the_response_of_a_dead_letter() -> None:
    task = some_task()
    letter = DeadLetter(
        task_id=task.id,
        tenant_id=task.tenant_id,
        queue=task.queue,
        type=task.type,
        target=task.target,
        payload=task.payload,
        origin=task.origin,
        schedule_id=None,
        schedule=None,
        scheduled_for=None,
        priority=task.priority,
        max_attempts=3,
        retry=task.retry,
        timeout_seconds=task.timeout_seconds,
        labels={},
        attempt=3,
        reason="all 3 attempts failed",
        error=error_text("broke").encode(),
        worker="w",
        created_at=NOW,
        died_at=NOW + seconds(9),
        replayed_at=None,
        replayed_as=None,
        replays=0,
    )
    response = as_json(dead_letter_response(letter))
    assert (response["task_id"], response["payload"], response["attempts"]) == (str(ID), {"a": 1}, 3)
    assert (response["reason"], response["error"]["message"]) == ("all 3 attempts failed", "broke")
    assert (response["died_at"], response["replayed_at"], response["replays"]) == ("2026-03-02T12:00:09.000000Z", None, 0)
    again = msgspec.structs.replace(letter, replayed_at=NOW, replayed_as=UUID(int=1), replays=2)
    assert as_json(dead_letter_response(again))["replayed_as"] == str(UUID(int=1))
