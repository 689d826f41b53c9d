"""The context of a handler: the task's fields, progress and log lines."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
import pytest

from everbeat.core.tasks import ClaimedTask, Origin
from everbeat.worker.context import MAX_BUFFERED, MAX_LINE_LENGTH, Cancelled, Context


def make_context(**fields: object) -> Context:
    given: dict[str, object] = {
        "id": uuid4(),
        "type": "job",
        "queue": "default",
        "payload": msgspec.Raw(b'{"account": 7}'),
        "attempt": 2,
        "max_attempts": 3,
        "fence": 9,
        "lease_until": datetime(2026, 1, 1, tzinfo=UTC),
        "lease_seconds": 30.0,
        "scheduled_for": datetime(2026, 1, 1, tzinfo=UTC),
        "schedule": "nightly",
        "schedule_id": uuid4(),
        "origin": Origin.TICK,
        "timeout_seconds": 60.0,
        "traceparent": None,
        **fields,
    }
    return Context(ClaimedTask(**given), worker="w1")  # type: ignore[arg-type]


def test_it_shows_the_task() -> None:
    ctx = make_context()
    assert (ctx.type, ctx.queue, ctx.attempt, ctx.max_attempts, ctx.fence, ctx.worker) == ("job", "default", 2, 3, 9, "w1")
    assert (ctx.schedule, ctx.origin, ctx.scheduled_for) == ("nightly", Origin.TICK, datetime(2026, 1, 1, tzinfo=UTC))
    assert ctx.payload == {"account": 7}
    assert 59 < ctx.seconds_left <= 60
    assert timedelta(seconds=59) < ctx.deadline - datetime.now(UTC) <= timedelta(seconds=60)
    assert "job" in repr(ctx)


def test_it_raises_only_once_cancelled() -> None:
    ctx = make_context()
    ctx.raise_if_cancelled()
    assert not ctx.cancelled
    ctx.cancel()
    assert ctx.cancelled
    with pytest.raises(Cancelled):
        ctx.raise_if_cancelled()


def test_progress_is_the_latest_and_limited() -> None:
    ctx = make_context()
    ctx.progress(0.1, "first")
    ctx.progress(7)
    updates = ctx.take_update()
    assert updates is not None
    assert updates.progress is not None
    assert (updates.progress.fraction, updates.progress.message) == (1.0, "first")
    assert ctx.take_update() is None
    ctx.progress(message="x" * 5000)
    updates = ctx.take_update()
    assert updates is not None
    assert updates.progress is not None
    assert len(updates.progress.message or "") == 2000
    with pytest.raises(ValueError):
        ctx.progress(float("nan"))


def test_log_lines_are_sent_together() -> None:
    ctx = make_context()
    ctx.log("one")
    ctx.log("two")
    updates = ctx.take_update()
    assert updates is not None
    assert updates.log == "one\ntwo"


def test_too_many_lines_are_dropped_with_a_note() -> None:
    ctx = make_context()
    for _ in range(MAX_BUFFERED):
        ctx.log("x" * 20)
    ctx.log("y" * 50_000_000)
    updates = ctx.take_update()
    assert updates is not None
    assert updates.log is not None
    assert len(updates.log) < MAX_BUFFERED + 100
    assert updates.log.endswith(f"[{MAX_BUFFERED - 64_000 // 21 + 1} more lines were dropped: the log buffer was full]")
    ctx.log("after")
    after = ctx.take_update()
    assert after is not None
    assert after.log == "after"


def test_text_that_no_database_can_store_is_replaced() -> None:
    ctx = make_context()
    ctx.log("a\0b \ud800 c")
    ctx.log("z" * (MAX_LINE_LENGTH * 2))
    updates = ctx.take_update()
    assert updates is not None
    assert updates.log is not None
    updates.log.encode()
    assert "\0" not in updates.log
    assert updates.log.endswith("(cut)")


def test_undelivered_updates_are_returned_in_order() -> None:
    ctx = make_context()
    ctx.log("one")
    ctx.progress(0.2, "then")
    updates = ctx.take_update()
    assert updates is not None
    ctx.progress(0.4, "now")
    ctx.log("two")
    ctx.return_update(updates)
    again = ctx.take_update()
    assert again is not None
    assert again.progress is not None
    assert (again.log, again.progress.fraction, again.progress.message) == ("one\ntwo", 0.4, "now")


def test_threads_lose_no_line() -> None:
    ctx = make_context()
    taken: list[str] = []

    def write_lines(name: int) -> None:
        for number in range(200):
            ctx.log(f"{name}.{number}")

    threads = [threading.Thread(target=write_lines, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or ctx.has_update:
        if (updates := ctx.take_update()) is not None and updates.log is not None:
            taken += updates.log.split("\n")
    assert len(taken) == len(set(taken)) == 800
