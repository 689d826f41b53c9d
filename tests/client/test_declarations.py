"""The decorators: what they declare, and what they refuse at import time."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from everbeat import Everbeat, Retry
from everbeat.client.errors import RegistrationError
from everbeat.client.tasks import Task
from everbeat.core.definitions import parse_definition


@pytest.fixture
def eb() -> Everbeat:
    return Everbeat(name="billing")


# Tasks


def test_a_task_is_declared_with_its_defaults(eb: Everbeat) -> None:
    @eb.task
    def build(ctx: Any, account: int) -> None: ...

    task = eb.registry.tasks["build"]
    assert task is build.definition
    assert (task.queue, task.max_attempts, task.priority, task.timeout_seconds) == ("default", 3, 100, 3600)
    assert (task.is_async, task.wants_context) == (False, True)
    assert list(task.signature.parameters) == ["account"]
    assert f"{__file__}:" in task.location


def test_a_task_is_declared_with_options(eb: Everbeat) -> None:
    retry = Retry(base_seconds=5)

    @eb.task(
        queue="reports",
        name="reports.build",
        max_attempts=5,
        timeout="10m",
        retry=retry,
        priority=3,
        labels={"team": "a"},
        non_retryable=KeyError,
    )
    async def build(account: int) -> None: ...

    task = eb.registry.tasks["reports.build"]
    assert (task.queue, task.max_attempts, task.timeout_seconds, task.retry) == ("reports", 5, 600, retry)
    assert (task.priority, task.labels, task.non_retryable) == (3, {"team": "a"}, (KeyError,))
    assert (task.is_async, task.wants_context) == (True, False)
    assert eb.registry.queues() == ["reports"]


def test_a_retry_may_be_a_dict(eb: Everbeat) -> None:
    @eb.task(retry={"kind": "fixed", "base_seconds": 3})
    def build() -> None: ...

    assert build.definition.retry == Retry(kind="fixed", base_seconds=3)  # type: ignore[arg-type]


def test_calling_it_calls_the_function(eb: Everbeat) -> None:
    @eb.task
    def double(ctx: Any, number: int) -> int:
        """Return twice the number."""
        return 2 * number

    assert double(None, 4) == 8
    assert double.__name__ == "double"
    assert double.__doc__ == "Return twice the number."


async def test_an_async_task_can_be_awaited(eb: Everbeat) -> None:
    @eb.task
    async def double(number: int) -> int:
        return 2 * number

    assert await double(4) == 8


def test_callable_objects_are_declared_with_a_name(eb: Everbeat) -> None:
    class Builder:
        async def __call__(self, account: int) -> None: ...

    assert eb.task(name="object")(Builder()).definition.is_async
    assert list(eb.task(name="partial")(functools.partial(Builder(), account=1)).definition.signature.parameters) == ["account"]
    assert eb.task(name="lambda")(lambda account: None).name == "lambda"


def _positional(account: int, /) -> None: ...
def _starred(*accounts: int) -> None: ...
def _generator() -> Iterator[int]:
    yield 1


async def _async_generator() -> AsyncIterator[int]:
    yield 1


def _late_context(account: int, ctx: Any) -> None: ...
def _named_context(*, ctx: Any) -> None: ...
def _delayed(delay: int) -> None: ...
def _keyed(account: int, *, key: str) -> None: ...
def _method(self: Any, account: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_positional, "its parameter account is positional-only, but arguments are passed by name; remove the /"),
        (_starred, r"it takes \*accounts, but arguments are passed by name; take a list instead"),
        (_generator, "it is a generator"),
        (_async_generator, "it is a generator"),
        (_late_context, "ctx must be its first parameter"),
        (_named_context, r"ctx is passed by position; remove the \* before it"),
        (_delayed, "its parameter delay has the name of an option of submit .*; rename the parameter, as in task_delay"),
        (_keyed, "its parameter key has the name of an option of submit"),
        (_method, "its first parameter is self; a task is a plain function"),
        (lambda: None, "a lambda or object has no name"),
        (functools.partial(_method), "a lambda or object has no name"),
        (dict, "is not a function"),
        (7, "is not a function"),
    ],
)
def test_it_refuses_functions_that_cannot_be_handlers(eb: Everbeat, function: Any, message: str) -> None:
    with pytest.raises(RegistrationError, match=message):
        eb.task(function)
    assert eb.registry.tasks == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": "a queue"}, "target.queue: must be 1 to 200"),
        ({"queue": ""}, "queue"),
        ({"name": "a/b"}, "the task name 'a/b' must be 1 to 200"),
        ({"timeout": "soon"}, "timeout: 'soon' is not a duration"),
        ({"timeout": 0}, "timeout_seconds: Expected `float` > 0"),
        ({"timeout": "30d"}, "timeout_seconds: Expected `float` <= 604800"),
        ({"max_attempts": 0}, "max_attempts: Expected `int` >= 1"),
        ({"max_attempts": 101}, "max_attempts: Expected `int` <= 100"),
        ({"max_attempts": "3"}, "max_attempts: Expected `int`"),
        ({"priority": 1001}, "priority: Expected `int` <= 1000"),
        ({"retry": 5}, "retry: 5 is not a retry policy"),
        ({"retry": {"kind": "random"}}, "retry.kind: Invalid enum value 'random'; use one of fixed, linear, exponential"),
        ({"retry": Retry(factor=0)}, "retry.factor: must be from 1 to 100"),
        ({"labels": {"a b": "c"}}, "labels"),
        ({"hooks": {"on_missed": [{"kind": "http", "endpoint": "s"}]}}, "hooks.on_missed: can only be used with schedules"),
        ({"hooks": {"on_end": []}}, "hooks"),
        ({"non_retryable": ("ValueError",)}, "non_retryable: 'ValueError' is not an exception class"),
        ({"qeue": "a"}, "qeue: is not an option; the options are queue, max_attempts, timeout"),
    ],
)
def test_it_refuses_options_out_of_range_and_names_the_location(eb: Everbeat, options: dict[str, Any], message: str) -> None:
    def build() -> None: ...

    with pytest.raises(RegistrationError) as refused:
        eb.task(**options)(build)
    assert message in str(refused.value)
    assert f"{__file__}:" in str(refused.value)


def test_two_tasks_with_one_name_are_refused_with_both_locations(eb: Everbeat) -> None:
    @eb.task
    def build() -> None: ...

    first = build.definition.location
    with pytest.raises(RegistrationError) as refused:

        @eb.task(name="build")
        def other() -> None: ...

    assert 'two tasks are named "build"' in str(refused.value)
    assert first in str(refused.value)
    assert "other" in str(refused.value)


def test_a_reloaded_module_replaces_its_declarations(eb: Everbeat) -> None:
    def load() -> Task[..., ..., Any, Any]:
        @eb.every("30s")
        @eb.cron("@daily", name="daily")
        def build() -> None: ...

        return build

    load()
    again = load()
    assert eb.registry.tasks["build"] is again.definition
    assert list(eb.registry.schedules) == ["daily", "build"]


# Schedules


def test_a_schedule_is_declared_with_its_task(eb: Everbeat) -> None:
    @eb.cron("0 2 * * *", tz="America/New_York", overlap="skip", catch_up="latest", queue="reports", timeout="10m", jitter="5s")
    def nightly(ctx: Any) -> None:
        """Summarizes the day.

        With details.
        """

    schedule = eb.registry.schedules["nightly"]
    assert schedule["target"] == {"kind": "worker", "queue": "reports", "type": "nightly"}
    assert (schedule["cron"], schedule["timezone"]) == ("0 2 * * *", "America/New_York")
    assert (schedule["timeout_seconds"], schedule["jitter_seconds"]) == (600, 5)
    assert schedule["description"] == "Summarizes the day."
    assert schedule["labels"] == {"everbeat.app": "billing"}
    assert eb.registry.tasks["nightly"].timeout_seconds == 600
    parse_definition(schedule)


def test_each_kind_of_trigger(eb: Everbeat) -> None:
    anchor = datetime(2026, 1, 1, tzinfo=UTC)

    @eb.at("2030-01-01T00:00:00", tz="Europe/Berlin", name="once-local")
    @eb.at(datetime(2030, 1, 1, tzinfo=UTC), name="once")
    @eb.rrule("FREQ=WEEKLY;BYDAY=MO", tz=ZoneInfo("Europe/Berlin"), name="weekly")
    @eb.every(90, name="number")
    @eb.every(timedelta(minutes=5), name="delta", anchor=anchor)
    @eb.every("30s", name="text")
    @eb.cron("@hourly")
    def work() -> None: ...

    schedules = eb.registry.schedules
    assert [schedules[name]["every_seconds"] for name in ("number", "delta", "text")] == [90, 300, 30]
    assert schedules["delta"]["anchor"] == "2026-01-01T00:00:00.000000Z"
    assert schedules["once"]["at"] == "2030-01-01T00:00:00.000000Z"
    assert schedules["once-local"]["at"] == "2029-12-31T23:00:00.000000Z"
    assert schedules["weekly"]["timezone"] == "Europe/Berlin"
    assert schedules["work"]["cron"] == "@hourly"
    assert {one["target"]["type"] for one in schedules.values()} == {"work"}
    assert list(eb.registry.tasks) == ["work"]
    for one in schedules.values():
        parse_definition(one)


def test_a_schedule_inherits_the_options_of_its_task_and_may_override_them(eb: Everbeat) -> None:
    @eb.cron("@hourly", max_attempts=9, labels={"kind": "hourly"})
    @eb.task(queue="reports", priority=5, labels={"team": "a"})
    def build() -> None: ...

    schedule = eb.registry.schedules["build"]
    assert (schedule["target"]["queue"], schedule["priority"], schedule["max_attempts"]) == ("reports", 5, 9)
    assert schedule["labels"] == {"team": "a", "kind": "hourly", "everbeat.app": "billing"}
    assert build.definition.max_attempts == 3


def test_hooks_are_those_of_the_task_unless_the_schedule_names_its_own(eb: Everbeat) -> None:
    def told(name: str) -> list[dict[str, str]]:
        return [{"kind": "http", "endpoint": name}]

    @eb.every("1h", name="own", hooks={"on_failure": told("own"), "on_missed": told("own")})
    @eb.every("1h", name="inherited")
    @eb.task(hooks={"on_success": told("task")})
    def build() -> None: ...

    @eb.every("1h", hooks={"on_missed": told("missed")})
    def plain() -> None: ...

    schedules = {name: parse_definition(one).hooks for name, one in eb.registry.schedules.items()}
    assert [one.endpoint for one in schedules["inherited"].on_success] == ["task"]  # type: ignore[union-attr]
    assert [one.endpoint for one in schedules["own"].on_missed] == ["own"]  # type: ignore[union-attr]
    assert not schedules["own"].on_success
    assert schedules["plain"].on_missed
    assert not plain.definition.hooks


def test_policies_have_the_format_of_the_api(eb: Everbeat) -> None:
    @eb.cron(
        "0 2 * * *",
        payload={"account": 7},
        misfire_grace="1h",
        dst_gap="skip",
        dst_fold="both",
        exclude="holidays",
        only=["weekdays"],
        starts_at="2026-01-01T00:00:00Z",
        ends_at=datetime(2040, 1, 1, tzinfo=UTC),
        overlap="allow",
        max_concurrent=4,
        enabled=False,
        description="Manual.",
    )
    def build(account: int) -> None: ...

    schedule = eb.registry.schedules["build"]
    assert schedule["payload"] == {"account": 7}
    assert schedule["misfire_grace_seconds"] == 3600
    assert schedule["dst"] == {"gap": "skip", "fold": "both"}
    assert schedule["calendars"] == {"exclude": ["holidays"], "only": ["weekdays"]}
    assert schedule["starts_at"] == "2026-01-01T00:00:00.000000Z"
    assert (schedule["overlap"], schedule["max_concurrent"], schedule["enabled"]) == ("allow", 4, False)
    parse_definition(schedule)


@pytest.mark.parametrize(
    ("decorate", "message"),
    [
        (lambda eb: eb.cron("61 * * * *"), "cron: "),
        (lambda eb: eb.cron("0 0 30 2 *"), "cron: "),
        (lambda eb: eb.cron("0 2 * * *", tz="EST5"), "timezone: "),
        (lambda eb: eb.cron("0 2 * * *", tz="Nowhere/City"), "timezone: "),
        (lambda eb: eb.cron("0 2 * * *", overlap="maybe"), "overlap: Invalid enum value 'maybe'; use one of skip"),
        (lambda eb: eb.cron("0 2 * * *", catch_up="some"), "catch_up: Invalid enum value 'some'"),
        (lambda eb: eb.cron("0 2 * * *", jitter="soon"), "jitter: 'soon' is not a duration"),
        (lambda eb: eb.cron("0 2 * * *", name="a b"), "name: must be 1 to 200"),
        (lambda eb: eb.cron("0 2 * * *", payload=[1]), "payload: must be a dict of arguments, not a list"),
        (lambda eb: eb.cron("0 2 * * *", payload={"acount": 1}), "unknown argument acount (did you mean account?)"),
        (lambda eb: eb.cron("0 2 * * *", payload={"account": {1, 2}}), "the argument account: expected int, got set"),
        (lambda eb: eb.cron("0 2 * * *", timezone="UTC"), "timezone: is not an option"),
        (lambda eb: eb.every("often"), "every: 'often' is not a duration"),
        (lambda eb: eb.every(0), "every_seconds"),
        (lambda eb: eb.rrule("FREQ=SOMETIMES"), "rrule: "),
        (lambda eb: eb.at("tomorrow"), "at: 'tomorrow' is not a time"),
        (lambda eb: eb.at(datetime(2030, 1, 1)), "at: has no time zone"),  # noqa: DTZ001
        (lambda eb: eb.cron("0 2 * * *", starts_at="2030-01-01T00:00:00"), "starts_at: has no time zone"),
    ],
)
def test_it_refuses_invalid_schedules(eb: Everbeat, decorate: Callable[[Any], Any], message: str) -> None:
    def build(account: int = 1) -> None: ...

    with pytest.raises(RegistrationError) as refused:
        decorate(eb)(build)
    assert message in str(refused.value)
    assert f"{__file__}:" in str(refused.value)
    assert eb.registry.schedules == {}


def test_a_schedule_must_provide_all_arguments(eb: Everbeat) -> None:
    with pytest.raises(RegistrationError, match=r"missing argument account;.*payload=.*a default"):

        @eb.cron("0 2 * * *")
        def build(account: int) -> None: ...


def test_a_second_schedule_needs_a_name(eb: Everbeat) -> None:
    with pytest.raises(RegistrationError, match=r'two schedules are named "build".*name="build-2"'):

        @eb.cron("@daily")
        @eb.cron("@hourly")
        def build() -> None: ...


def test_a_queue_belongs_to_the_task(eb: Everbeat) -> None:
    with pytest.raises(RegistrationError, match="queue: must be that of the task, reports"):

        @eb.cron("@daily", queue="other")
        @eb.task(queue="reports")
        def build() -> None: ...


def test_a_task_is_not_declared_twice(eb: Everbeat) -> None:
    with pytest.raises(RegistrationError, match=r"put @eb\.task below @eb\.cron"):

        @eb.task
        @eb.cron("@daily")
        def build() -> None: ...


def test_a_schedule_is_declared_on_the_app_of_its_task(eb: Everbeat) -> None:
    @eb.task
    def build() -> None: ...

    with pytest.raises(RegistrationError, match="build is a task of another app"):
        Everbeat(name="other").cron("@daily")(build)


@pytest.mark.parametrize("kind", ["cron", "every", "rrule", "at"])
def test_a_schedule_without_parentheses_is_refused(eb: Everbeat, kind: str) -> None:
    def nightly() -> None: ...

    with pytest.raises(RegistrationError, match=f"the decorator needs an argument, as in @eb.{kind}"):
        getattr(eb, kind)(nightly)
    assert eb.registry.tasks == {}


# Hooks


def test_hooks_are_kept_in_order(eb: Everbeat) -> None:
    @eb.before
    def first(ctx: Any) -> None: ...

    @eb.before
    async def second(ctx: Any) -> None: ...

    @eb.after
    def done(ctx: Any, result: Any) -> None: ...

    @eb.on_error
    def failed(ctx: Any, error: Exception) -> None: ...

    assert eb.registry.before == [first, second]
    assert (eb.registry.after, eb.registry.on_error) == ([done], [failed])


def test_a_hook_with_a_wrong_signature_is_refused(eb: Everbeat) -> None:
    with pytest.raises(RegistrationError, match=r"is called with \(ctx, result\)"):

        @eb.after
        def done(ctx: Any) -> None: ...

    assert eb.registry.after == []
