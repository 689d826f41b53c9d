"""Results and errors of every kind and size, as they are reported to the server."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from everbeat.client.errors import NonRetryable, RetryLater
from tests.worker.conftest import Workers
from tests.worker.fakes import FakeServer, definition


class Opaque:
    pass


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@dataclasses.dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ({"a": [1, 2.5, "x", None, True]}, {"a": [1, 2.5, "x", None, True]}),
        (Point(3), {"x": 3}),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00Z"),
        ("é\0", "é\0"),
        (0, 0),
        ("", ""),
    ],
)
async def test_a_result_is_kept_as_json(workers: Workers, value: Any, expected: Any) -> None:
    async def job() -> Any:
        return value

    task = await workers.run_one(job)
    assert (task.state, task.result) == ("completed", expected)


@pytest.mark.parametrize("value", [Opaque(), {"a": {"b": Opaque()}}, "half \ud800", {Opaque(): 1}, [object()]])
async def test_a_result_that_json_cannot_represent_fails_without_a_retry(workers: Workers, value: Any) -> None:
    async def job() -> Any:
        return value

    task = await workers.run_one(job)
    assert task.state == "failed"
    assert task.failure is not None
    assert not task.failure.retryable
    assert f"returned a {type(value).__name__} that JSON cannot represent" in task.failure.error.message
    assert "not retried" in task.failure.error.message


async def test_a_recursive_result_fails_without_a_retry(workers: Workers) -> None:
    async def job() -> Any:
        recursive: list[Any] = []
        recursive.append(recursive)
        return recursive

    task = await workers.run_one(job)
    assert task.failure is not None
    assert not task.failure.retryable


async def test_a_sync_handler_that_returns_a_coroutine_fails_with_a_hint(workers: Workers) -> None:
    async def later() -> None: ...

    def job() -> Any:
        return later()

    task = await workers.run_one(job)
    assert task.failure is not None
    assert "coroutine" in task.failure.error.message


async def test_a_result_of_50_mb_is_truncated_with_a_note(workers: Workers) -> None:
    async def job() -> str:
        return "ü" * 25_000_000

    task = await workers.run_one(job)
    assert task.state == "completed"
    assert task.result["cut"] is True
    assert task.result["bytes"] == 50_000_002
    assert "65536" in task.result["note"]
    assert task.result["start"].startswith('"üüü')


async def test_a_result_within_the_limit_is_complete(workers: Workers) -> None:
    async def job() -> str:
        return "x" * (64 * 1024 - 2)

    assert len((await workers.run_one(job)).result) == 64 * 1024 - 2


async def test_a_traceback_contains_only_frames_of_the_handler(workers: Workers) -> None:
    def inner() -> None:
        raise KeyError("missing")

    async def job() -> None:
        try:
            inner()
        except KeyError as error:
            raise ValueError("wrong") from error

    task = await workers.run_one(job)
    assert task.failure is not None
    error = task.failure.error
    assert (error.message, error.kind, task.failure.retryable) == ("wrong", "ValueError", True)
    assert error.trace is not None
    assert error.trace.count("in job") == 2
    assert "in inner" in error.trace
    assert "direct cause" in error.trace
    assert "everbeat/worker" not in error.trace


async def test_the_kind_of_an_error_includes_its_module(workers: Workers) -> None:
    async def job() -> None:
        raise asyncio.QueueEmpty

    task = await workers.run_one(job)
    assert task.error is not None
    assert (task.error.kind, task.error.message) == ("asyncio.queues.QueueEmpty", "QueueEmpty")


async def test_an_error_of_50_mb_is_truncated(workers: Workers) -> None:
    async def job() -> None:
        raise ValueError("x" * 50_000_000)

    task = await workers.run_one(job)
    assert task.error is not None
    assert task.error.message == "x" * (4000 - 8) + " … (cut)"
    assert task.error.trace is not None
    assert len(task.error.trace) <= 16_000
    assert "in job" in task.error.trace


async def test_a_long_traceback_keeps_its_last_part(workers: Workers) -> None:
    async def job(depth: int = 0) -> None:
        exec("\n".join(f"def f{n}(): f{n + 1}()" for n in range(800)) + "\ndef f800(): 1 / 0\nf0()", {})

    task = await workers.run_one(job)
    assert task.error is not None
    assert task.error.trace is not None
    assert len(task.error.trace) <= 16_000
    assert task.error.trace.startswith("… (the first")
    assert task.error.trace.rstrip().endswith("ZeroDivisionError: division by zero")


async def test_an_error_that_cannot_be_printed_is_still_reported(workers: Workers) -> None:
    async def job() -> None:
        raise UnprintableError

    task = await workers.run_one(job)
    assert task.error is not None
    assert "UnprintableError" in task.error.message


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), BaseException("other")])
@pytest.mark.parametrize("is_async", [True, False])
async def test_an_exception_that_would_end_the_process_ends_only_the_attempt(
    workers: Workers, raised: BaseException, is_async: bool
) -> None:
    async def job() -> None:
        raise raised

    def sync_job() -> None:
        raise raised

    task = await workers.run_one(job if is_async else sync_job)
    assert task.error is not None
    assert task.error.kind == type(raised).__name__


async def test_non_retryable_errors_are_reported_as_such(workers: Workers, server: FakeServer) -> None:
    async def job() -> None:
        raise NonRetryable("no such account")

    async def other() -> None:
        raise LookupError("missing")

    tasks = [server.submit("job"), server.submit("other")]
    await workers.start(definition(job), definition(other, "other", non_retryable=(LookupError,)))
    await workers.until_ended()
    assert [task.failure is not None and task.failure.retryable for task in tasks] == [False, False]


async def test_retry_later_sets_the_delay(workers: Workers) -> None:
    async def job() -> None:
        raise RetryLater(90)

    task = await workers.run_one(job)
    assert task.failure is not None
    assert (task.failure.retryable, task.failure.retry_in_seconds) == (True, 90)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b'{"account": 1, "other": 2}', "unknown argument other; its parameters: account"),
        (b"{}", "missing argument account; its parameters: account"),
        (b"[1]", "must be an object with the handler's arguments, but is a list"),
        (b"null", "but is a NoneType"),
        (b'{"ctx": 1, "account": 1}', "unknown argument ctx; its"),
    ],
)
async def test_a_payload_that_does_not_match_fails_without_a_retry(
    workers: Workers, server: FakeServer, payload: bytes, message: str, is_async: bool
) -> None:
    async def job(ctx: Any, account: int) -> None:
        raise AssertionError("not reached")

    def sync_job(ctx: Any, account: int) -> None:
        raise AssertionError("not reached")

    task = server.submit_raw(payload)
    await workers.start(job if is_async else sync_job)
    await workers.until_ended()
    assert task.failure is not None
    assert not task.failure.retryable
    assert message in task.failure.error.message
    assert task.failure.error.trace is None


async def test_a_type_error_in_the_handler_is_retried(workers: Workers) -> None:
    async def job(account: int) -> None:
        len(account)  # type: ignore[arg-type]

    task = await workers.run_one(job, {"account": 7})
    assert task.failure is not None
    assert (task.failure.retryable, task.failure.error.kind) == (True, "TypeError")


async def test_a_task_of_an_unknown_type_fails_and_is_retryable(workers: Workers, server: FakeServer) -> None:
    async def job() -> None: ...

    task = server.submit("newer")
    await workers.start(job, types=["job", "newer"])
    await workers.until_ended()
    assert task.failure is not None
    assert (task.failure.retryable, task.failure.error.kind) == (True, "unknown_type")
    assert "newer" in task.failure.error.message


async def test_only_types_with_a_handler_are_claimed(workers: Workers, server: FakeServer) -> None:
    async def job() -> None: ...

    other, mine = server.submit("other"), server.submit("job")
    await workers.start(job)
    await workers.until_ended(mine)
    assert other.state == "ready"


def test_an_encoded_result_is_sent_unchanged() -> None:
    assert msgspec.json.encode({"result": msgspec.Raw(b'{"a":1}')}) == b'{"result":{"a":1}}'
