"""Annotations: arguments are checked at submit and converted in the worker; results are converted when they are read."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest

from everbeat import Everbeat, InvalidArguments, TaskHandle, UnexpectedResult
from everbeat.client.annotations import HandlerTypes
from everbeat.client.declarations import define_task
from everbeat.testing import Harness
from tests.client.scripted import ScriptedServer

ID = UUID("01a1e231-932d-71cb-8dab-e37075a3e37c")
AT = datetime(2027, 1, 31, 9, tzinfo=UTC)


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Account:
    number: int
    opened: date


class Order(msgspec.Struct):
    id: UUID
    lines: list[Account] = []


class Node(msgspec.Struct):
    children: list[Node] = []


class Point(NamedTuple):
    x: float
    y: float


class Options(TypedDict):
    draft: bool


class Exotic:
    """A class that msgspec does not know."""


@pytest.fixture
def eb(server: ScriptedServer) -> Iterator[Everbeat]:
    made = Everbeat(server.url)
    yield made
    made.close()


ROUND_TRIPS: list[tuple[Any, Any]] = [
    (datetime, AT),
    (date, date(2027, 1, 31)),
    (timedelta, timedelta(minutes=5)),
    (UUID, ID),
    (Decimal, Decimal("10.50")),
    (bytes, b"\x00\xff"),
    (Color, Color.RED),
    (Account, Account(7, date(2027, 1, 1))),
    (Order, Order(ID, [Account(7, date(2027, 1, 1))])),
    (Node, Node([Node(), Node([Node()])])),
    (Point, Point(1.0, 2.5)),
    (Options, {"draft": True}),
    (set[int], {1, 2}),
    (tuple[int, str], (1, "a")),
    (dict[int, UUID], {7: ID}),
    (datetime | None, None),
    (datetime | None, AT),
    (Literal["a", "b"], "a"),
    (Annotated[int, msgspec.Meta(gt=0)], 1),
    (Sequence[Account], [Account(1, date(2027, 1, 1))]),
]


@pytest.mark.parametrize(("annotation", "value"), ROUND_TRIPS, ids=str)
def test_a_value_reaches_the_handler_and_returns_as_its_annotated_type(annotation: Any, value: Any) -> None:
    eb = Everbeat("sqlite:///unused.db")

    def echo(value: Any) -> Any:
        received.append(value)
        return value

    received: list[Any] = []
    echo.__annotations__ = {"value": annotation, "return": annotation}
    task = eb.task(echo)
    with Harness(eb) as harness:
        handle: TaskHandle[Any] = task.submit(value)
        harness.run_due()
        assert received == [value]
        assert type(received[0]) is type(value)
        result = handle.wait("1s")
        assert (result, type(result)) == (value, type(value))


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, "7", "build: the argument value: expected int, got str"),
        (int, True, "expected int, got bool"),
        (int, {1}, "expected int, got set"),
        (str, 7, "expected str, got int"),
        (list[int], [1, "b"], r"expected int, got str \(in \[1\]\)"),
        (Account, {"number": 1}, "object missing required field opened"),
        (Account, {"number": 1, "opened": "soon"}, r"invalid RFC3339 encoded date \(in opened\)"),
        (Literal["a", "b"], "c", "invalid enum value 'c'"),
        (Annotated[int, msgspec.Meta(gt=0)], 0, "expected int >= 1"),
        (datetime, "tomorrow", "invalid RFC3339 encoded datetime"),
        (int, None, "expected int, got NoneType"),
    ],
)
def test_a_wrong_type_is_refused_at_submit(
    eb: Everbeat, server: ScriptedServer, annotation: Any, value: Any, message: str
) -> None:
    def build(value: Any) -> None: ...

    build.__annotations__ = {"value": annotation}
    task = eb.task(build)
    with pytest.raises(InvalidArguments, match=message):
        task.submit(value=value)
    with pytest.raises(InvalidArguments, match=message):
        task.options(delay=1).submit(value=value)
    with pytest.raises(InvalidArguments, match=f"build, item 0.*{message.removeprefix('build')}"):
        task.submit_many([{"value": value}])
    assert server.received == []


def test_all_wrong_names_are_in_one_message(eb: Everbeat) -> None:
    @eb.task
    def build(account: int, draft: bool, *, note: str = "") -> None: ...

    submit: Any = build.submit
    with pytest.raises(InvalidArguments) as refused:
        submit(acount=1, nte="x")
    assert str(refused.value) == (
        "build: unknown argument acount (did you mean account?), unknown argument nte (did you mean note?), "
        "missing argument account, missing argument draft; its parameters: account, draft, note"
    )
    with pytest.raises(InvalidArguments, match="two values for the argument account"):
        submit(1, True, account=2)
    with pytest.raises(InvalidArguments, match="3 arguments by position, but it takes 2"):
        submit(1, True, "x")


def test_the_default_value_is_accepted_whatever_the_annotation_says(eb: Everbeat, server: ScriptedServer) -> None:
    @eb.task
    def build(account: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    assert server.tasks[build.submit(account=None).id]["payload"] == {"account": None}  # type: ignore[arg-type]


def test_arguments_without_a_parameter_have_the_type_of_the_rest(eb: Everbeat) -> None:
    @eb.task
    def build(**counts: int) -> None: ...

    with pytest.raises(InvalidArguments, match="the argument b: expected int, got str"):
        build.submit(a=1, b="x")  # type: ignore[arg-type]


def handler(one, two: Any, three: Exotic, four: Unknown, five: str | UUID, ctx_like: object) -> Exotic:  # type: ignore  # noqa
    return Exotic()


def test_other_annotations_are_ignored() -> None:
    definition = define_task(handler, None, {})
    assert set(definition.types.parameters) <= {"five"}
    assert definition.types.result is None
    assert HandlerTypes(len, definition.signature).result is None


def test_a_payload_from_elsewhere_that_does_not_match_is_not_retried() -> None:
    eb = Everbeat("sqlite:///unused.db")

    @eb.task
    def build(account: int, at: datetime) -> None: ...

    with Harness(eb) as harness:
        for payload in ({"account": "x", "at": "2027-01-01T00:00:00Z"}, {"acount": 1}, {"account": 1, "at": "soon"}):
            eb.submit("build", payload)
        runs = harness.run_due()
        assert [run.state for run in runs] == ["dead"] * 3
        assert sorted(str(run.error) for run in runs) == [
            "the payload does not match the handler of build: the argument account: expected int, got str",
            "the payload does not match the handler of build: the argument at: invalid RFC3339 encoded datetime",
            "the payload does not match the handler of build: unknown argument acount (did you mean account?), "
            "missing argument account, missing argument at; its parameters: account, at",
        ]


def test_a_result_that_is_not_what_the_annotation_says_is_an_error() -> None:
    eb = Everbeat("sqlite:///unused.db")

    @eb.task
    def build() -> int:
        return "text"  # type: ignore[return-value]

    @eb.task
    def large() -> list[str]:
        return ["x" * 1000] * 1000

    with Harness(eb) as harness:
        first, second = build.submit(), large.submit()
        harness.run_due()
        with pytest.raises(UnexpectedResult, match="expected int, got str") as unexpected:
            first.wait()
        assert unexpected.value.task.result == "text"
        with pytest.raises(UnexpectedResult, match="was truncated"):
            second.wait()


def test_types_may_be_declared_after_the_task(eb: Everbeat, server: ScriptedServer) -> None:
    names: dict[str, Any] = {"eb": eb}
    exec("@eb.task\ndef build(later: 'Later') -> None: ...\nclass Later(__import__('msgspec').Struct):\n    x: int", names)
    assert server.tasks[names["build"].submit(names["Later"](1)).id]["payload"] == {"later": {"x": 1}}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("delay", r"Task has no attribute delay; to submit it to a worker, use .submit\(…\)"),
        ("apply_async", r"use .options\(delay=…, priority=…, key=…\).submit\(…\)"),
        ("other", "Task has no attribute other$"),
    ],
)
def test_names_of_other_task_queues_give_a_hint(eb: Everbeat, name: str, hint: str) -> None:
    @eb.task
    def build() -> None: ...

    with pytest.raises(AttributeError, match=hint):
        getattr(build, name)
    assert not hasattr(build.options(delay=1), name)
