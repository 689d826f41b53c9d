"""Fair scheduling of requests on the event loop: other work gets time between requests, and responses do not change."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from everbeat.api.fair_scheduling import FairScheduler

SHARE = 0.002
STEP = 0.001


async def work(steps: int, done: list[str], name: str) -> None:
    for _ in range(steps):
        time.sleep(STEP)  # busy, not waiting
        await asyncio.sleep(0)
    done.append(name)


async def usual_wait(over: asyncio.Event) -> float:
    """How long anything else had to wait for its turn, but for the worst tenth: the machine may be busy with other things."""
    waits, last = [], time.perf_counter()
    while not over.is_set():
        await asyncio.sleep(0)
        now = time.perf_counter()
        waits.append(now - last)
        last = now
    return sorted(waits)[len(waits) * 9 // 10]


async def crowd(scheduler: FairScheduler | None) -> float:
    over, done = asyncio.Event(), list[str]()
    watching = asyncio.create_task(usual_wait(over))

    async def one(name: str) -> None:
        if scheduler is None:
            await work(4, done, name)
        else:
            await scheduler.paced(work(4, done, name))

    await asyncio.gather(*(one(str(number)) for number in range(60)))
    over.set()
    assert len(done) == 60
    return await watching


async def test_many_requests_leave_time_in_each_round() -> None:
    assert await crowd(None) > 60 * STEP
    assert await crowd(FairScheduler(SHARE)) < 20 * STEP


async def test_requests_pass_in_the_order_in_which_they_came() -> None:
    scheduler, done = FairScheduler(0.0), list[str]()
    await asyncio.gather(*(scheduler.paced(work(2, done, str(number))) for number in range(20)))
    assert done == [str(number) for number in range(20)]


async def test_an_error_goes_through() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await FairScheduler(0.0).paced(fail())


@pytest.mark.parametrize("share", [0.0, 1.0], ids=["while it waits for its turn", "while it waits for something"])
async def test_a_cancelled_request_learns_of_it_and_may_go_on(share: float) -> None:
    scheduler, told = FairScheduler(share), list[str]()
    begun = asyncio.Event()

    async def stubborn() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.append("cancelled")
        await asyncio.sleep(0)
        told.append("went on")

    running = asyncio.ensure_future(scheduler.paced(stubborn()))
    await begun.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert told == ["cancelled", "went on"]


async def test_whoever_left_while_it_waited_holds_up_nobody() -> None:
    scheduler, done = FairScheduler(0.0), list[str]()
    running = [asyncio.ensure_future(scheduler.paced(work(3, done, str(number)))) for number in range(10)]
    await asyncio.sleep(0)
    for one in running[::2]:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert done == ["1", "3", "5", "7", "9"]
