"""The writer thread of an SQLite file: one write at a time, firings and renewals first."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from everbeat.store.sqlite.writer import SqliteWriter


def test_urgent_writes_wait_only_for_the_write_in_progress() -> None:
    writer = SqliteWriter("writer")
    may_finish, order = threading.Event(), list[str]()

    def write(name: str) -> Callable[[], bool]:
        def work() -> bool:
            order.append(name)
            return True

        return work

    writes = [writer.submit("task_submit", lambda: may_finish.wait(10))]
    for number, verb in enumerate(("task_submit", "task_complete", "tick_fire", "task_submit", "partition_renew")):
        writes.append(writer.submit(verb, write(f"{verb} {number}")))
    may_finish.set()
    assert all(write.result(10) for write in writes)
    assert order == ["tick_fire 2", "partition_renew 4", "task_submit 0", "task_complete 1", "task_submit 3"]
    writer.shutdown()


def test_a_write_that_fails_or_is_cancelled_does_not_end_the_thread() -> None:
    writer = SqliteWriter("writer")
    may_finish = threading.Event()
    first = writer.submit("tick_fire", lambda: may_finish.wait(10))
    failing = writer.submit("tick_fire", lambda: 1 / 0)
    cancelled = writer.submit("tick_fire", lambda: 2)
    assert cancelled.cancel()
    may_finish.set()
    assert first.result(10)
    with pytest.raises(ZeroDivisionError):
        failing.result(10)
    assert writer.submit("tick_fire", lambda: 3).result(10) == 3
    writer.shutdown()


def test_what_waits_is_written_before_the_writer_ends() -> None:
    writer = SqliteWriter("writer")
    writes = [writer.submit("task_submit", lambda number=number: number) for number in range(5)]  # type: ignore[misc]
    writer.shutdown()
    assert [write.result(0) for write in writes] == list(range(5))
    with pytest.raises(RuntimeError):
        writer.submit("tick_fire", lambda: None)
