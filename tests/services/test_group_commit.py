"""Group commit: together, in order, each request told of its own, and nobody harmed by a neighbour."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.core.errors import StoreRefused, StoreUnavailable
from everbeat.services.group_commit import GroupCommit

Item = tuple[str, int]  # a name, and how many rows it has


class Database:
    """Writes are noted, in the order they were committed. A test may hold them back, and say what becomes of them."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.batches: list[list[str]] = []
        self.bad: set[str] = set()
        self.away_for = 0  # so many writes
        self.writing = 0
        self.may_go = asyncio.Event()
        self.may_go.set()
        self.entered = asyncio.Semaphore(0)

    async def write(self, items: list[Item]) -> list[str]:
        self.writing += 1
        assert self.writing == 1, "one batch at a time"
        try:
            self.entered.release()
            await self.may_go.wait()
            names = [name for name, _ in items]
            self.batches.append(names)
            if self.away_for:
                self.away_for -= 1
                raise StoreUnavailable("away")
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


async def turn_over() -> None:
    """Let everything run that can run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def hold_a_write(database: Database, group: GroupCommit[Item, str]) -> asyncio.Task[str]:
    """A write under way, behind which others queue up."""
    database.may_go.clear()
    first = add(group, "first")
    await database.entered.acquire()
    return first


async def test_items_that_arrive_during_a_write_are_written_together() -> None:
    database = Database()
    group = grouping(database)
    first = await hold_a_write(database, group)
    others = [add(group, f"item-{number}") for number in range(50)]
    await turn_over()
    database.may_go.set()
    assert await asyncio.gather(first, *others) == ["done first", *(f"done item-{number}" for number in range(50))]
    assert database.batches == [["first"], [f"item-{number}" for number in range(50)]]


async def test_an_item_that_comes_alone_is_written_at_once() -> None:
    database = Database()
    group = grouping(database)
    for name in ("a", "b", "c"):
        assert await group.add((name, 1)) == f"done {name}"
    assert database.batches == [["a"], ["b"], ["c"]]


async def test_nobody_is_answered_before_the_commit() -> None:
    database = Database()
    group = grouping(database)
    first = await hold_a_write(database, group)
    second = add(group, "second")
    await turn_over()
    assert not first.done()
    assert not second.done()
    database.may_go.set()
    await asyncio.gather(first, second)


async def test_a_batch_has_at_most_so_many_rows() -> None:
    database = Database()
    group = grouping(database, max_rows=10)
    first = await hold_a_write(database, group)
    others = [add(group, f"{number}", weight) for number, weight in enumerate([4, 4, 2, 1, 9, 1])]
    await turn_over()
    database.may_go.set()
    await asyncio.gather(first, *others)
    assert database.batches[1:] == [["0", "1", "2"], ["3", "4"], ["5"]]


async def test_an_item_with_more_rows_than_a_batch_may_have_goes_alone() -> None:
    database = Database()
    group = grouping(database, max_rows=10)
    first = await hold_a_write(database, group)
    others = [add(group, "small"), add(group, "big", 1000), add(group, "after")]
    await turn_over()
    database.may_go.set()
    assert await asyncio.gather(first, *others) == ["done first", "done small", "done big", "done after"]
    assert database.batches[1:] == [["small"], ["big"], ["after"]]


async def test_an_item_that_is_refused_fails_alone() -> None:
    database = Database()
    group = grouping(database)
    first = await hold_a_write(database, group)
    others = [add(group, f"{number}") for number in range(16)]
    await turn_over()
    database.bad = {"5", "11"}
    database.may_go.set()
    answers = await asyncio.gather(first, *others, return_exceptions=True)
    refused = {place - 1: response for place, response in enumerate(answers) if isinstance(response, StoreRefused)}
    assert {place: str(error) for place, error in refused.items()} == {5: "5", 11: "11"}
    assert database.written == ["first", *(f"{number}" for number in range(16) if number not in (5, 11))], "in order"
    assert len(database.batches) < 2 + 2 * 2 * 5, "by halving, not one by one"


async def test_a_store_that_is_away_fails_the_batch_and_the_next_one_is_written() -> None:
    database = Database()
    group = grouping(database, max_rows=3)
    database.away_for = 2
    first = await hold_a_write(database, group)
    batch = [add(group, name) for name in "abc"]
    later = [add(group, name) for name in "def"]
    await turn_over()
    database.may_go.set()
    for one in [first, *batch]:
        with pytest.raises(StoreUnavailable):
            await one
    assert await asyncio.gather(*later) == ["done d", "done e", "done f"]
    assert await group.add(("afterwards", 1)) == "done afterwards"
    assert database.batches[1] == ["a", "b", "c"], "not halved: nothing in it is at fault"


async def test_a_caller_that_goes_away_loses_nothing_and_harms_nobody() -> None:
    database = Database()
    group = grouping(database)
    first = await hold_a_write(database, group)
    others = [add(group, name) for name in "abc"]
    await turn_over()
    first.cancel()
    others[1].cancel()
    await turn_over()
    assert (first.cancelled(), others[1].cancelled()) == (True, True)
    database.may_go.set()
    assert [await others[0], await others[2]] == ["done a", "done c"]
    assert database.written == ["first", "a", "b", "c"], "it was accepted, so it is written"
    assert await group.add(("afterwards", 1)) == "done afterwards"


async def test_when_every_caller_goes_away_the_next_one_is_served() -> None:
    database = Database()
    group = grouping(database)
    tasks = [await hold_a_write(database, group), *(add(group, name) for name in "ab")]
    await turn_over()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    database.may_go.set()
    assert await group.add(("afterwards", 1)) == "done afterwards"
    assert database.written == ["first", "a", "b", "afterwards"]


async def test_a_write_that_is_broken_off_leaves_nobody_waiting() -> None:
    """Whatever ends a write: those who waited behind it are not forgotten until the next one comes by chance."""
    is_broken = True
    entered, may_go = asyncio.Event(), asyncio.Event()

    async def write(items: list[Item]) -> list[str]:
        nonlocal is_broken
        entered.set()
        await may_go.wait()
        if is_broken:
            is_broken = False
            raise asyncio.CancelledError
        return [name for name, _ in items]

    group: GroupCommit[Item, str] = GroupCommit(write, max_rows=1, count_rows=rows)
    first = add(group, "first")
    await entered.wait()
    second = add(group, "second")
    await turn_over()
    may_go.set()
    async with asyncio.timeout(5):
        await asyncio.gather(first, second, return_exceptions=True)
    assert first.cancelled()
    assert second.cancelled() or second.result() == "second"
    assert await group.add(("third", 1)) == "third"


async def test_a_write_that_answers_too_little_is_told_to_all_of_its_batch() -> None:
    async def write(items: list[Item]) -> list[str]:
        return []

    group: GroupCommit[Item, str] = GroupCommit(write, max_rows=10, count_rows=rows)
    async with asyncio.timeout(5):
        answers = await asyncio.gather(group.add(("a", 1)), group.add(("b", 1)), return_exceptions=True)
    assert [type(response) for response in answers] == [ValueError, ValueError]


class Chaotic:
    """A database that takes a while, refuses what is bad, and is away at times."""

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
                raise StoreUnavailable("away")
            if any(is_bad for _, _, is_bad in items):
                raise StoreRefused("bad")
            self.committed += [number for number, _, _ in items]
            return [-number for number, _, _ in items]
        finally:
            self.is_writing = False


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 60), max_rows=st.integers(1, 20))
def test_whatever_happens_each_item_is_written_once_or_its_caller_told(seed: int, count: int, max_rows: int) -> None:
    asyncio.run(_happen(Random(seed), count, max_rows))


async def _happen(random: Random, count: int, max_rows: int) -> None:
    database = Chaotic(random, max_rows)
    write: Callable[[list[tuple[int, int, bool]]], Awaitable[list[int]]] = database.write
    group = GroupCommit(write, max_rows=max_rows, count_rows=lambda item: item[1])
    bad = {number for number in range(count) if random.random() < 0.1}
    calls: dict[int, asyncio.Task[int]] = {}
    gone: set[int] = set()
    for number in range(count):
        calls[number] = asyncio.create_task(group.add((number, random.randint(1, max_rows + 2), number in bad)))
        for _ in range(random.randrange(3)):
            await asyncio.sleep(0)
        if random.random() < 0.15:
            chosen = random.choice(list(calls))
            if not calls[chosen].done() and random.random() < 0.8:
                await asyncio.sleep(0)  # one that never got to ask is not accepted either
                gone.add(chosen)
                calls[chosen].cancel()
    async with asyncio.timeout(10):
        await asyncio.gather(*calls.values(), return_exceptions=True)
        while group._writing is not None:
            await asyncio.sleep(0)
    assert database.committed == sorted(set(database.committed)), "once, and in order"
    assert not bad.intersection(database.committed)
    for number, call in calls.items():
        if call.cancelled():
            assert number in gone
            assert number in database.committed or number in bad or number in database.failed
        elif call.exception() is None:
            assert call.result() == -number
            assert number in database.committed
        elif isinstance(call.exception(), StoreRefused):
            assert number in bad
        else:
            assert number in database.failed
            assert number not in database.committed
