"""Group commit: items are written together and in order, each request gets its own result, and failures stay separate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.core.errors import StoreLocked, StoreRefused, StoreUnavailable
from everbeat.services.group_commit import GroupCommit

Item = tuple[str, int]  # a name, and its number of rows


class Database:
    """Records the batches in the order of their commits. It can delay writes, refuse items or be unavailable."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.batches: list[list[str]] = []
        self.bad: set[str] = set()
        self.failing_writes = 0  # the number of writes that fail
        self.writing = 0
        self.may_finish = asyncio.Event()
        self.may_finish.set()
        self.started = asyncio.Semaphore(0)

    async def write(self, items: list[Item]) -> list[str]:
        self.writing += 1
        assert self.writing == 1, "one batch at a time"
        try:
            self.started.release()
            await self.may_finish.wait()
            names = [name for name, _ in items]
            self.batches.append(names)
            if self.failing_writes:
                self.failing_writes -= 1
                raise StoreUnavailable("unavailable")
            if bad := self.bad.intersection(names):
                raise StoreRefused(min(bad))
            self.written += names
            return [f"done {name}" for name in names]
        finally:
            self.writing -= 1


def rows(item: Item) -> int:
    return item[1]


def grouping(database: Database, max_rows: int = 100) -> GroupCommit[Item, str]:
    return GroupCommit(database.write, max_rows=max_rows, count_rows=rows)


def add(group: GroupCommit[Item, str], name: str, weight: int = 1) -> asyncio.Task[str]:
    return asyncio.create_task(group.add((name, weight)))


async def run_pending() -> None:
    """Run everything that can run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def start_blocked_write(database: Database, group: GroupCommit[Item, str]) -> asyncio.Task[str]:
    """Start a write that does not finish, so that later items form a batch."""
    database.may_finish.clear()
    first = add(group, "first")
    await database.started.acquire()
    return first


async def test_items_that_arrive_during_a_write_are_written_together() -> None:
    database = Database()
    group = grouping(database)
    first = await start_blocked_write(database, group)
    others = [add(group, f"item-{number}") for number in range(50)]
    await run_pending()
    database.may_finish.set()
    assert await asyncio.gather(first, *others) == ["done first", *(f"done item-{number}" for number in range(50))]
    assert database.batches == [["first"], [f"item-{number}" for number in range(50)]]


async def test_a_single_item_is_written_immediately() -> None:
    database = Database()
    group = grouping(database)
    for name in ("a", "b", "c"):
        assert await group.add((name, 1)) == f"done {name}"
    assert database.batches == [["a"], ["b"], ["c"]]


async def test_no_request_gets_a_result_before_the_commit() -> None:
    database = Database()
    group = grouping(database)
    first = await start_blocked_write(database, group)
    second = add(group, "second")
    await run_pending()
    assert not first.done()
    assert not second.done()
    database.may_finish.set()
    await asyncio.gather(first, second)


async def test_a_batch_has_at_most_max_rows() -> None:
    database = Database()
    group = grouping(database, max_rows=10)
    first = await start_blocked_write(database, group)
    others = [add(group, f"{number}", weight) for number, weight in enumerate([4, 4, 2, 1, 9, 1])]
    await run_pending()
    database.may_finish.set()
    await asyncio.gather(first, *others)
    assert database.batches[1:] == [["0", "1", "2"], ["3", "4"], ["5"]]


async def test_an_item_with_more_than_max_rows_is_written_alone() -> None:
    database = Database()
    group = grouping(database, max_rows=10)
    first = await start_blocked_write(database, group)
    others = [add(group, "small"), add(group, "big", 1000), add(group, "after")]
    await run_pending()
    database.may_finish.set()
    assert await asyncio.gather(first, *others) == ["done first", "done small", "done big", "done after"]
    assert database.batches[1:] == [["small"], ["big"], ["after"]]


async def test_a_refused_item_fails_alone() -> None:
    database = Database()
    group = grouping(database)
    first = await start_blocked_write(database, group)
    others = [add(group, f"{number}") for number in range(16)]
    await run_pending()
    database.bad = {"5", "11"}
    database.may_finish.set()
    results = await asyncio.gather(first, *others, return_exceptions=True)
    refused = {index - 1: result for index, result in enumerate(results) if isinstance(result, StoreRefused)}
    assert {index: str(error) for index, error in refused.items()} == {5: "5", 11: "11"}
    assert database.written == ["first", *(f"{number}" for number in range(16) if number not in (5, 11))], "in order"
    assert len(database.batches) < 2 + 2 * 2 * 5, "by halving, not one by one"


async def test_an_unavailable_store_fails_the_batch_and_the_next_one_is_written() -> None:
    database = Database()
    group = grouping(database, max_rows=3)
    database.failing_writes = 2
    first = await start_blocked_write(database, group)
    batch = [add(group, name) for name in "abc"]
    later = [add(group, name) for name in "def"]
    await run_pending()
    database.may_finish.set()
    for one in [first, *batch]:
        with pytest.raises(StoreUnavailable):
            await one
    assert await asyncio.gather(*later) == ["done d", "done e", "done f"]
    assert await group.add(("afterwards", 1)) == "done afterwards"
    assert database.batches[1] == ["a", "b", "c"], "not halved, because no item is the cause"


async def test_a_cancelled_caller_does_not_affect_the_batch() -> None:
    database = Database()
    group = grouping(database)
    first = await start_blocked_write(database, group)
    others = [add(group, name) for name in "abc"]
    await run_pending()
    first.cancel()
    others[1].cancel()
    await run_pending()
    assert (first.cancelled(), others[1].cancelled()) == (True, True)
    database.may_finish.set()
    assert [await others[0], await others[2]] == ["done a", "done c"]
    assert database.written == ["first", "a", "b", "c"], "accepted items are written"
    assert await group.add(("afterwards", 1)) == "done afterwards"


async def test_after_all_callers_are_cancelled_the_next_one_is_served() -> None:
    database = Database()
    group = grouping(database)
    tasks = [await start_blocked_write(database, group), *(add(group, name) for name in "ab")]
    await run_pending()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    database.may_finish.set()
    assert await group.add(("afterwards", 1)) == "done afterwards"
    assert database.written == ["first", "a", "b", "afterwards"]


async def test_a_cancelled_write_leaves_no_caller_waiting() -> None:
    """If a write ends in an unexpected way, the items behind it are still processed, without waiting for the next item."""
    is_broken = True
    started, may_finish = asyncio.Event(), asyncio.Event()

    async def write(items: list[Item]) -> list[str]:
        nonlocal is_broken
        started.set()
        await may_finish.wait()
        if is_broken:
            is_broken = False
            raise asyncio.CancelledError
        return [name for name, _ in items]

    group: GroupCommit[Item, str] = GroupCommit(write, max_rows=1, count_rows=rows)
    first = add(group, "first")
    await started.wait()
    second = add(group, "second")
    await run_pending()
    may_finish.set()
    async with asyncio.timeout(5):
        await asyncio.gather(first, second, return_exceptions=True)
    assert first.cancelled()
    assert second.cancelled() or second.result() == "second"
    assert await group.add(("third", 1)) == "third"


async def test_a_write_with_too_few_results_fails_its_whole_batch() -> None:
    async def write(items: list[Item]) -> list[str]:
        return []

    group: GroupCommit[Item, str] = GroupCommit(write, max_rows=10, count_rows=rows)
    async with asyncio.timeout(5):
        results = await asyncio.gather(group.add(("a", 1)), group.add(("b", 1)), return_exceptions=True)
    assert [type(result) for result in results] == [ValueError, ValueError]


class FaultyDatabase:
    """A database that takes time, refuses bad items, and is sometimes unavailable."""

    def __init__(self, random: Random, max_rows: int) -> None:
        self.random = random
        self.max_rows = max_rows
        self.committed: list[int] = []
        self.failed: set[int] = set()
        self.is_writing = False

    async def write(self, items: list[tuple[int, int, bool]]) -> list[int]:
        assert not self.is_writing, "one batch at a time"
        assert len(items) == 1 or sum(weight for _, weight, _ in items) <= self.max_rows
        self.is_writing = True
        try:
            for _ in range(self.random.randrange(4)):
                await asyncio.sleep(0)
            if self.random.random() < 0.1:
                self.failed.update(number for number, _, _ in items)
                raise StoreUnavailable("unavailable")
            if any(is_bad for _, _, is_bad in items):
                raise StoreRefused("bad")
            self.committed += [number for number, _, _ in items]
            return [-number for number, _, _ in items]
        finally:
            self.is_writing = False


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 60), max_rows=st.integers(1, 20))
def test_each_item_is_written_once_or_its_caller_gets_an_error(seed: int, count: int, max_rows: int) -> None:
    asyncio.run(_run_random_calls(Random(seed), count, max_rows))


async def _run_random_calls(random: Random, count: int, max_rows: int) -> None:
    database = FaultyDatabase(random, max_rows)
    write: Callable[[list[tuple[int, int, bool]]], Awaitable[list[int]]] = database.write
    group = GroupCommit(write, max_rows=max_rows, count_rows=lambda item: item[1])
    bad = {number for number in range(count) if random.random() < 0.1}
    calls: dict[int, asyncio.Task[int]] = {}
    cancelled: set[int] = set()
    for number in range(count):
        calls[number] = asyncio.create_task(group.add((number, random.randint(1, max_rows + 2), number in bad)))
        for _ in range(random.randrange(3)):
            await asyncio.sleep(0)
        if random.random() < 0.15:
            chosen = random.choice(list(calls))
            if not calls[chosen].done() and random.random() < 0.8:
                await asyncio.sleep(0)  # a call that has never run is not accepted
                cancelled.add(chosen)
                calls[chosen].cancel()
    async with asyncio.timeout(10):
        await asyncio.gather(*calls.values(), return_exceptions=True)
        while group._writing is not None:
            await asyncio.sleep(0)
    assert database.committed == sorted(set(database.committed)), "once, and in order"
    assert not bad.intersection(database.committed)
    for number, call in calls.items():
        if call.cancelled():
            assert number in cancelled
            assert number in database.committed or number in bad or number in database.failed
        elif call.exception() is None:
            assert call.result() == -number
            assert number in database.committed
        elif isinstance(call.exception(), StoreRefused):
            assert number in bad
        else:
            assert number in database.failed
            assert number not in database.committed


async def test_an_item_with_a_locked_row_waits_alone_and_later_items_are_not_delayed() -> None:
    locked, written = {"b"}, list[str]()

    async def write(items: list[Item]) -> list[str]:
        await asyncio.sleep(0)
        if locked & {name for name, _ in items}:
            raise StoreLocked("locked")
        written.extend(name for name, _ in items)
        return [f"done {name}" for name, _ in items]

    group: GroupCommit[Item, str] = GroupCommit(write, max_rows=100, count_rows=rows)
    tasks = {name: add(group, name) for name in "abc"}
    others = await asyncio.gather(tasks["a"], tasks["c"], add(group, "d"))
    assert list(others) == ["done a", "done c", "done d"]
    assert not tasks["b"].done()
    locked.clear()
    assert await tasks["b"] == "done b"
    assert sorted(written) == ["a", "b", "c", "d"]


async def test_an_item_whose_row_stays_locked_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everbeat.services.locked_writes.REQUEST_DELAYS_SECONDS", (0.0, 0.0))
    tries = 0

    async def write(_items: list[Item]) -> list[str]:
        nonlocal tries
        tries += 1
        raise StoreLocked("locked")

    with pytest.raises(StoreLocked):
        await GroupCommit(write, max_rows=100, count_rows=rows).add(("a", 1))
    assert tries == 1 + 3
