"""The harness for users' tests: time, ticks, retries and handlers, without waiting."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from everbeat import Context, Everbeat, NonRetryable, Retry, RetryLater
from everbeat.client.errors import RegistrationError
from everbeat.core.errors import InvalidInput
from everbeat.core.responses import ProgressResponse
from everbeat.testing import FakeClock, Harness, TooManyRuns

START = datetime(2026, 3, 6, tzinfo=UTC)


@pytest.fixture
def eb() -> Everbeat:
    return Everbeat("http://nowhere.invalid", name="tested")


def at(run: Any) -> str:
    return f"{run.at:%m-%d %H:%M:%S}"


# The clock


def test_the_clock_moves_forward_only() -> None:
    clock = FakeClock("2026-03-06T00:00:00Z")
    assert clock.now() == START
    assert clock.advance("1h30m") == START + timedelta(minutes=90)
    assert clock.move_to(START + timedelta(days=1)) == clock.now()
    with pytest.raises(ValueError, match="the clock cannot go backward"):
        clock.move_to(START)
    with pytest.raises(InvalidInput, match="has no time zone"):
        clock.move_to(datetime(2027, 1, 1))  # noqa: DTZ001


# Submitted tasks


def test_a_task_runs_inline_in_the_thread_of_the_test(eb: Everbeat) -> None:
    received: list[Any] = []

    @eb.task
    def add(ctx: Context, one: int, two: int = 2) -> int:
        received.append((threading.current_thread(), ctx.attempt, ctx.schedule))
        ctx.log("adding")
        ctx.progress(0.5, "half")
        return one + two

    with Harness(eb, now=START) as harness:
        handle = add.submit(one=1)
        assert received == []
        (run,) = harness.run_due()
        assert (run.type, run.arguments, run.result, run.state) == ("add", {"one": 1}, 3, "completed")
        assert (run.task_id, run.at, run.error) == (handle.id, START, None)
        assert handle.wait() == 3
        assert [line.text for line in eb.client.tasks.log(handle.id)] == ["adding"]
        assert handle.get().progress == ProgressResponse(0.5, "half")
    assert received == [(threading.current_thread(), 1, None)]


def test_async_handlers_share_an_event_loop(eb: Everbeat) -> None:
    loops = set()

    @eb.task
    async def work() -> None:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)

    with Harness(eb, now=START) as harness:
        work.submit()
        harness.run_due()
        work.submit()
        harness.run_due()
        assert len(harness.completed) == 2
    assert len(loops) == 1


async def test_async_tests_run_handlers_in_their_own_loop(eb: Everbeat) -> None:
    received: list[Any] = []

    @eb.task
    async def first() -> None:
        received.append(asyncio.get_running_loop())
        await second.submit_async()

    @eb.task
    def second() -> None:
        received.append(threading.current_thread())
        third.options(delay=60).submit()

    @eb.task
    def third() -> str:
        return "done"

    async with Harness(eb, now=START) as harness:
        await first.submit_async()
        assert [run.type for run in await harness.run_due_async()] == ["first", "second"]
        assert [run.result for run in await harness.advance_async("1m")] == ["done"]
    assert received == [asyncio.get_running_loop(), threading.current_thread()]


def test_a_delayed_task_waits_for_the_clock(eb: Everbeat) -> None:
    @eb.task
    def remind(user: int) -> None: ...

    with Harness(eb, now=START) as harness:
        remind.options(delay="10m").submit(user=1)
        remind.options(run_at=START + timedelta(minutes=5)).submit(user=2)
        assert harness.run_due() == []
        assert {task.payload["user"] for task in harness.waiting()} == {1, 2}
        harness.clock.advance("9m59s")
        assert [run.arguments["user"] for run in harness.run_due()] == [2]
        harness.clock.advance("1s")
        assert [run.arguments["user"] for run in harness.run_due()] == [1]
        assert harness.waiting() == []


def test_tasks_that_a_handler_submits_run_too(eb: Everbeat) -> None:
    @eb.task
    def parent(children: int) -> None:
        child.submit_many([{"number": number} for number in range(children)])

    @eb.task
    def child(number: int) -> int:
        return number

    with Harness(eb, now=START) as harness:
        parent.submit(children=3)
        harness.run_due()
        assert sorted(run.result for run in harness.runs_of(child)) == [0, 1, 2]
        assert len(harness.runs_of("parent")) == 1


def test_priorities_and_keys_work_as_in_production(eb: Everbeat) -> None:
    @eb.task
    def work(name: str) -> None: ...

    with Harness(eb, now=START) as harness:
        work.options(priority=200).submit(name="late")
        work.options(priority=1).submit(name="early")
        assert work.options(key="k").submit(name="once") == work.options(key="k").submit(name="once")
        assert [run.arguments["name"] for run in harness.run_due()] == ["early", "once", "late"]


def test_a_task_without_a_handler_stays_ready(eb: Everbeat) -> None:
    @eb.task
    def work() -> None: ...

    with Harness(eb, now=START) as harness:
        eb.submit("other", {"a": 1})
        assert harness.run_due() == []
        assert [task.type for task in harness.waiting()] == ["other"]


# Failures


def test_retries_follow_the_clock(eb: Everbeat) -> None:
    @eb.task(max_attempts=4, retry=Retry(base_seconds=10, factor=2))
    def work() -> None:
        raise KeyError("no such account")

    with Harness(eb, now=START) as harness:
        handle = work.submit()
        (run,) = harness.run_due()
        assert (run.state, run.attempt) == ("retry", 1)
        assert isinstance(run.error, KeyError)
        harness.advance("1h")
        assert [(at(run), run.state) for run in harness.failed] == [
            ("03-06 00:00:00", "retry"),
            ("03-06 00:00:10", "retry"),
            ("03-06 00:00:30", "retry"),
            ("03-06 00:01:10", "dead"),
        ]
        assert handle.get().state == "dead"
        assert eb.client.dead_letters.get(handle.id).attempts == 4


def test_a_retried_task_can_complete(eb: Everbeat) -> None:
    @eb.task
    def work(ctx: Context) -> int:
        if ctx.attempt < 2:
            raise RetryLater(300)
        return ctx.attempt

    with Harness(eb, now=START) as harness:
        work.submit()
        harness.advance("10m")
        assert [(at(run), run.state) for run in harness.runs] == [("03-06 00:00:00", "retry"), ("03-06 00:05:00", "completed")]


def test_a_failure_that_is_not_retryable_is_dead_immediately(eb: Everbeat) -> None:
    @eb.task(non_retryable=LookupError)
    def work(kind: str) -> None:
        raise NonRetryable("no") if kind == "raised" else KeyError("no")

    with Harness(eb, now=START) as harness:
        work.submit_many([{"kind": "raised"}, {"kind": "declared"}])
        assert [run.state for run in harness.run_due()] == ["dead", "dead"]


def test_errors_can_be_raised_in_the_test(eb: Everbeat) -> None:
    @eb.task
    def work() -> None:
        raise KeyError("no such account")

    with Harness(eb, now=START) as harness:
        work.submit()
        with pytest.raises(KeyError, match="no such account"):
            harness.run_due(raise_errors=True)


def test_a_test_failure_raised_in_a_handler_fails_the_test(eb: Everbeat) -> None:
    @eb.task
    def work() -> None:
        pytest.fail("found something")

    with Harness(eb, now=START) as harness:
        work.submit()
        with pytest.raises(pytest.fail.Exception, match="found something"):
            harness.run_due()


def test_a_result_that_json_cannot_represent_fails_as_in_production(eb: Everbeat) -> None:
    @eb.task
    def work() -> object:
        return object()

    with Harness(eb, now=START) as harness:
        work.submit()
        (run,) = harness.run_due()
        assert run.state == "dead"
        assert "JSON cannot represent" in str(run.error)


def test_hooks_are_called(eb: Everbeat) -> None:
    received: list[str] = []

    @eb.before
    def before(ctx: Context) -> None:
        received.append(f"before {ctx.type}")

    @eb.after
    async def after(ctx: Context, result: Any) -> None:
        received.append(f"after {result}")

    @eb.on_error
    def on_error(ctx: Context, error: BaseException) -> None:
        received.append(f"error {error}")

    @eb.task
    def work(fails: bool) -> str:
        if fails:
            raise NonRetryable("no")
        return "done"

    with Harness(eb, now=START) as harness:
        work.submit(fails=False)
        work.submit(fails=True)
        harness.run_due()
    assert received == ["before work", "after done", "before work", "error no"]
    assert eb.registry.on_error == [on_error]


# Schedules


def test_each_tick_fires_at_its_own_time(eb: Everbeat) -> None:
    fired_at: list[datetime] = []

    @eb.cron("0 2 * * *", tz="America/New_York")
    def nightly(ctx: Context) -> None:
        fired_at.append(harness.clock.now())
        assert ctx.scheduled_for == fired_at[-1]

    with Harness(eb, now=START) as harness:
        harness.clock.advance("3d")
        harness.run_due(raise_errors=True)
        # The clocks go forward on March 8th: 2:00 does not exist, and the tick is at 3:00 local time, an hour earlier in UTC.
        assert fired_at == [datetime(2026, 3, day, 7, tzinfo=UTC) for day in (6, 7, 8)]
        assert harness.clock.now() == START + timedelta(days=3)
        harness.advance("1d")
        assert fired_at[-1] == datetime(2026, 3, 9, 6, tzinfo=UTC)


def test_ticks_tasks_and_retries_happen_in_order(eb: Everbeat) -> None:
    @eb.every("10m", anchor=START)
    def ping(ctx: Context) -> None:
        follow.options(delay="3m").submit()
        if ctx.attempt == 1:
            raise RetryLater(60)

    @eb.task
    def follow() -> None: ...

    with Harness(eb, now=START) as harness:
        harness.advance("25m")
        assert [(run.type, f"{run.at:%M}") for run in harness.runs] == [
            *(("ping", "10"), ("ping", "11"), ("follow", "13"), ("follow", "14")),
            *(("ping", "20"), ("ping", "21"), ("follow", "23"), ("follow", "24")),
        ]


def test_after_an_outage_the_catch_up_policy_applies(eb: Everbeat) -> None:
    @eb.every("10m", anchor=START, name="latest", payload={"kind": "latest"})
    @eb.every("10m", anchor=START, name="all", catch_up="all", payload={"kind": "all"})
    @eb.every("10m", anchor=START, name="none", catch_up="none", payload={"kind": "none"})
    def ping(kind: str) -> None: ...

    with Harness(eb, now=START) as harness:
        harness.outage("35m")
        harness.run_due()
        caught_up = [run.arguments["kind"] for run in harness.runs]
        assert caught_up.count("latest") == 1
        assert caught_up.count("none") == 0
        harness.advance("4m")
        assert [run.arguments["kind"] for run in harness.runs].count("all") >= 1
        reasons = {tick.reason for tick in eb.client.schedules.ticks("latest") if tick.outcome == "skipped"}
        assert reasons == {"misfire"}


def test_schedules_can_be_read_and_changed_during_a_test(eb: Everbeat) -> None:
    @eb.every("1h", anchor=START)
    def ping(ctx: Context) -> str:
        return str(ctx.origin)

    with Harness(eb, now=START) as harness:
        assert eb.client.schedules.get("ping").next_tick_at == "2026-03-06T01:00:00.000000Z"
        eb.client.schedules.pause("ping")
        assert harness.advance("2h30m") == []
        eb.client.schedules.resume("ping")
        eb.client.schedules.trigger("ping")
        assert [run.result for run in harness.run_due()] == ["trigger"]
        assert [at(run) for run in harness.advance("1h")] == ["03-06 03:00:00"]


def test_a_past_schedule_does_not_prevent_a_test(eb: Everbeat) -> None:
    @eb.at("2026-01-01T00:00:00Z")
    def once() -> None: ...

    with Harness(eb, now=START) as harness:
        assert harness.advance("1d") == []
    with Harness(eb, now="2025-12-31T00:00:00Z") as harness:
        assert [run.type for run in harness.advance("2d")] == ["once"]


# The harness itself


def test_a_task_that_submits_itself_is_stopped(eb: Everbeat) -> None:
    @eb.task
    def again() -> None:
        again.submit()

    with Harness(eb, now=START, max_runs=20) as harness:
        again.submit()
        with pytest.raises(TooManyRuns, match="the last one of again: does a task submit itself"):
            harness.run_due()


def test_each_harness_starts_without_tasks(eb: Everbeat) -> None:
    @eb.task
    def work() -> None: ...

    for _ in range(2):
        with Harness(eb, now=START) as harness:
            assert harness.waiting() == []
            work.submit()
            assert len(harness.waiting()) == 1


def test_an_app_is_in_one_harness_at_a_time(eb: Everbeat) -> None:
    with Harness(eb, now=START):
        with pytest.raises(RegistrationError, match="already in use"), Harness(eb, now=START):
            pass
        assert eb.client.tasks.list() == []


def test_the_example_suite_passes() -> None:
    folder = Path(__file__).parents[2] / "examples" / "testing"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
