"""Submitting declared tasks: arguments and options, one and many, by function and by name; and the returned handles."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import msgspec
import pytest

from everbeat import Everbeat, TaskCancelled, TaskFailed, TaskHandle, TaskNotFinished
from everbeat.client.errors import InvalidArguments
from everbeat.client.tasks import input_of
from everbeat.core.errors import InvalidInput
from everbeat.core.tasks import TaskError
from tests.client.scripted import ScriptedServer


@pytest.fixture
def eb(server: ScriptedServer) -> Iterator[Everbeat]:
    made = Everbeat(server.url, name="billing")
    yield made
    made.close()


def declare(eb: Everbeat) -> Any:
    @eb.task(queue="reports", max_attempts=5, timeout="10m", priority=20, labels={"team": "a"})
    def build(ctx: Any, account: int, draft: bool = False) -> None: ...

    return build


def test_it_submits_arguments_by_name(eb: Everbeat, server: ScriptedServer) -> None:
    handle = declare(eb).submit(7, draft=True)
    task = server.tasks[handle.id]
    assert isinstance(handle.id, UUID)
    assert (task["type"], task["queue"], task["payload"]) == ("build", "reports", {"account": 7, "draft": True})
    assert (task["max_attempts"], task["timeout_seconds"], task["priority"]) == (5, 600, 20)
    assert task["labels"] == {"team": "a"}


def test_hooks_are_submitted_and_defaults_are_left_out(eb: Everbeat, server: ScriptedServer) -> None:
    hooks = {"on_success": [{"kind": "http", "endpoint": "s"}]}

    @eb.task(hooks=hooks)
    def told() -> None: ...

    @eb.task
    def plain() -> None: ...

    assert server.tasks[told.submit().id]["hooks"]["on_success"][0]["endpoint"] == "s"
    assert set(msgspec.json.decode(msgspec.json.encode(input_of(plain.definition, {}, {})))) == {"type", "queue", "payload"}


async def test_async_code_does_the_same(eb: Everbeat, server: ScriptedServer) -> None:
    handle = await declare(eb).submit_async(account=7)
    assert server.tasks[handle.id]["payload"] == {"account": 7}


def test_options_are_not_arguments(eb: Everbeat, server: ScriptedServer) -> None:
    build = declare(eb)
    run_at = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    first = build.submit(account=7, delay="10m", priority=10, key="report-7", labels={"kind": "late"}, fair_key="c-7")
    second = build.options(run_at=run_at).submit(account=7)
    one, two = server.tasks[first.id], server.tasks[second.id]
    assert (one["delay_seconds"], one["priority"], one["labels"]) == (600, 10, {"team": "a", "kind": "late"})
    assert one["fair_key"] == "c-7"
    assert server.by_key["report-7"] == first.id
    assert two["run_at"] == "2030-01-01T10:00:00Z"
    assert build.submit(account=7, key="report-7") == first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delay": "later"}, "delay: 'later' is not a duration"),
        ({"delay": "600w"}, "delay: is longer than"),
        ({"delay": 1, "run_at": datetime.now(UTC)}, "run_at: use either delay or run_at, not both"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at: has no time zone"),  # noqa: DTZ001
        ({"run_at": datetime(9999, 1, 1, tzinfo=UTC)}, "run_at: must be in the years 2 to 9998"),
        ({"run_at": 7}, "run_at: 7 is not a datetime"),
        ({"priority": -1}, "priority: -1 is not an integer from 0"),
        ({"priority": True}, "priority: True is not"),
        ({"key": "a b"}, "key: 'a b' is not 1 to 255 visible ASCII"),
        ({"key": 7}, "key: 7 is not"),
        ({"labels": "x"}, "labels: 'x' is not a dict"),
        ({"fair_key": "a b"}, "fair_key: "),
        ({"labels": {"a": 1}}, "labels.a: must be a string"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(
    eb: Everbeat, server: ScriptedServer, options: dict[str, Any], message: str
) -> None:
    build = declare(eb)
    with pytest.raises(InvalidInput) as refused:
        build.submit(account=7, **options)
    assert message in str(refused.value)
    with pytest.raises(InvalidInput):
        build.options(**options)
    assert server.received == []


def test_wrong_arguments_are_refused_before_anything_is_sent(eb: Everbeat, server: ScriptedServer) -> None:
    build = declare(eb)
    with pytest.raises(InvalidArguments, match="build: missing argument account"):
        build.submit(delay="10m")
    with pytest.raises(InvalidArguments, match="build: the argument account: expected int, got set"):
        build.submit(account={1})
    assert server.received == []


def test_many_tasks_are_submitted_in_one_request(eb: Everbeat, server: ScriptedServer) -> None:
    build = declare(eb)
    handles = build.submit_many([{"account": 1}, {"account": 2}], delay="1m", key=lambda item: f"report-{item['account']}")
    assert [server.tasks[handle.id]["payload"]["account"] for handle in handles] == [1, 2]
    assert server.by_key == {"report-1": handles[0].id, "report-2": handles[1].id}
    assert len(server.received) == 1
    assert build.submit_many([]) == []


async def test_a_wrong_task_among_many_is_named(eb: Everbeat, server: ScriptedServer) -> None:
    build = declare(eb)
    with pytest.raises(InvalidArguments, match="build, item 1: missing argument account"):
        await build.submit_many_async([{"account": 1}, {}])
    with pytest.raises(InvalidArguments, match="item 0 is a int, not a dict"):
        build.submit_many([7])
    with pytest.raises(InvalidInput, match="queue: is not an option"):
        build.submit_many([{"account": 1}], queue="x")
    assert server.received == []


def test_a_producer_without_the_code_submits_by_name(eb: Everbeat, server: ScriptedServer) -> None:
    handle = eb.submit("reports.build", {"account": 7}, queue="reports", delay=60, max_attempts=9, retry={"kind": "fixed"})
    task = server.tasks[handle.id]
    assert (task["type"], task["queue"], task["payload"], task["delay_seconds"]) == (
        "reports.build",
        "reports",
        {"account": 7},
        60,
    )
    assert (task["max_attempts"], task["retry"]["kind"]) == (9, "fixed")


async def test_by_name_a_declared_task_keeps_its_options(eb: Everbeat, server: ScriptedServer) -> None:
    declare(eb)
    task = server.tasks[(await eb.submit_async("build", {"account": 7}, labels={"kind": "late"})).id]
    assert (task["queue"], task["max_attempts"]) == ("reports", 5)
    assert task["labels"] == {"team": "a", "kind": "late"}


@pytest.mark.parametrize(
    ("type_", "payload", "options", "message"),
    [
        ("a b", {}, {}, "type: must be 1 to 200"),
        ("a", {"x": {1}}, {}, r"a: the payload\['x'\] is a set"),
        ("a", {}, {"queue": "a b"}, "target.queue: must be"),
        ("a", {}, {"timeout": "soon"}, "timeout: 'soon' is not"),
        ("a", {}, {"max_attempts": 0}, "max_attempts"),
        ("a", {}, {"nmae": 1}, "nmae: is not an option"),
    ],
)
def test_wrong_input_by_name_is_refused(eb: Everbeat, type_: str, payload: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidInput, InvalidArguments), match=message):
        eb.submit(type_, payload, **options)


# Handles


@pytest.fixture
def handle(eb: Everbeat) -> TaskHandle[Any]:
    handle: TaskHandle[Any] = declare(eb).submit(account=7)
    return handle


def test_a_handle_shows_the_task(handle: TaskHandle[Any]) -> None:
    assert handle.get().state == "ready"


async def test_waiting_returns_the_result(handle: TaskHandle[Any], server: ScriptedServer) -> None:
    server.tasks[handle.id] |= {"state": "completed", "result": {"pages": 3}}
    assert handle.wait(timeout=1) == {"pages": 3}
    assert await handle.wait_async() == {"pages": 3}


@pytest.mark.parametrize("state", ["failed", "dead"])
def test_waiting_for_a_failed_task_raises_the_error_of_its_handler(
    handle: TaskHandle[Any], server: ScriptedServer, state: str
) -> None:
    server.tasks[handle.id] |= {"state": state, "error": {"message": "no such account", "kind": "KeyError", "trace": "…"}}
    with pytest.raises(TaskFailed, match=f"is {state}: KeyError: no such account") as failed:
        handle.wait()
    assert failed.value.error == TaskError(message="no such account", kind="KeyError", trace="…")
    assert failed.value.task.state == state


def test_waiting_for_a_cancelled_task_raises_an_error(handle: TaskHandle[Any], server: ScriptedServer) -> None:
    server.tasks[handle.id] |= {"state": "cancelled", "error": None}
    with pytest.raises(TaskCancelled, match="is cancelled"):
        handle.wait()


async def test_waiting_ends_with_its_timeout(handle: TaskHandle[Any]) -> None:
    with pytest.raises(TaskNotFinished, match="is still ready") as timed_out:
        handle.wait(timeout="50ms")
    assert isinstance(timed_out.value, TimeoutError)
    with pytest.raises(TaskNotFinished):
        await handle.wait_async(timeout=0)


async def test_cancelling_sends_a_request(handle: TaskHandle[Any], server: ScriptedServer) -> None:
    handle.cancel()
    await handle.cancel_async()
    assert [received.path for received in server.received[-2:]] == [f"/v1/tasks/{handle.id}/cancel"] * 2
