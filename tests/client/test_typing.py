"""The types of decorated functions. mypy makes the checks; the tests only verify that the calls work."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, assert_type

from everbeat import Context, Everbeat, TaskHandle
from everbeat.core.responses import ScheduleResponse, TaskResponse

eb = Everbeat(name="typed")


@eb.task
def to_json_value(account: int, draft: bool = False) -> str:
    return f"{account} {draft}"


@eb.task(queue="reports", timeout="10m")
async def build(ctx: Context, account: int) -> str:
    return str(account)


@eb.cron("@daily", tz="Europe/Berlin", overlap="skip")
def nightly(ctx: Context) -> None: ...


@eb.every("1h", name="hourly")
@eb.task
def stacked(account: int = 1) -> None: ...


@dataclasses.dataclass
class Account:
    number: int


@eb.task
def due(account: Account) -> datetime:
    return datetime(2027, 1, account.number, tzinfo=UTC)


def check(function: Callable[[], Any]) -> None:
    """Type-checked, but not called, because submitting needs a server."""
    assert callable(function)


def test_the_function_keeps_its_types() -> None:
    assert_type(to_json_value(1), str)
    check(lambda: to_json_value("1"))  # type: ignore[arg-type]
    check(lambda: assert_type(build(Context.__new__(Context), 1), Coroutine[Any, Any, str]))


def test_a_submit_takes_the_arguments_of_the_function_without_the_context() -> None:
    check(lambda: assert_type(to_json_value.submit(account=1), TaskHandle[str]))
    check(lambda: build.submit(account=1))
    check(lambda: build.submit(1))
    check(lambda: nightly.submit())
    check(lambda: stacked.submit(account=2))
    check(lambda: build.submit(account="1"))  # type: ignore[arg-type]
    check(lambda: build.submit(acount=1))  # type: ignore[call-arg]
    check(lambda: build.submit())  # type: ignore[call-arg]
    check(lambda: build.submit_async(account="1"))  # type: ignore[arg-type]


def test_options_and_arguments_cannot_be_confused() -> None:
    check(lambda: assert_type(build.options(delay="10m", priority=10, key="report-1").submit(account=1), TaskHandle[str]))
    check(lambda: build.options(delay="10m").submit(account="1"))  # type: ignore[arg-type]
    check(lambda: build.options(delay=[]))  # type: ignore[arg-type]
    check(lambda: build.options(account=1))  # type: ignore[call-arg]
    check(lambda: build.submit(account=1, key="report-1"))  # type: ignore[call-arg]
    check(lambda: build.submit_many([{"account": 1}], dely="10m"))  # type: ignore[call-arg]


def test_the_result_has_the_type_that_the_function_returns() -> None:
    check(lambda: assert_type(to_json_value.submit(account=1).wait(), str))
    check(lambda: assert_type(build.submit(account=1).wait("10s"), str))
    check(lambda: assert_type(stacked.submit_many([{"account": 1}]), list[TaskHandle[None]]))
    check(lambda: assert_type(due.submit(Account(7)).wait(), datetime))
    check(lambda: assert_type(due.options(key="a").submit(Account(7)).wait(), datetime))
    check(lambda: assert_type(eb.submit("by-name"), TaskHandle[Any]))
    check(lambda: due.submit(Account(7)).wait().isofromat())  # type: ignore[attr-defined]

    async def awaiting() -> None:
        assert_type(await (await build.submit_async(account=1)).wait_async(), str)
        assert_type(await (await build.options(delay=1).submit_async(account=1)).wait_async(), str)
        assert_type(await build.submit_many_async([]), list[TaskHandle[str]])

    assert callable(awaiting)


def test_names_of_other_task_queues_are_no_attributes() -> None:
    check(lambda: build.delay(account=1))  # type: ignore[attr-defined]
    check(lambda: build.apply_async())  # type: ignore[attr-defined]


def test_decorators_check_their_options() -> None:
    check(lambda: eb.task(qeue="reports"))  # type: ignore[call-overload]
    check(lambda: eb.cron("@daily", overlap="maybe"))  # type: ignore[arg-type]
    check(lambda: eb.cron("@daily", timezone="UTC"))  # type: ignore[call-arg]


def test_the_client_is_typed_for_sync_and_async_code() -> None:
    def sync() -> None:
        assert_type(eb.client.schedules.pause("nightly"), ScheduleResponse)
        eb.client.schedules.list(statu="paused")  # type: ignore[call-arg]

    async def awaiting() -> None:
        assert_type(await eb.async_client.tasks.list(limit=5), list[TaskResponse])

    assert callable(sync)
    assert callable(awaiting)
