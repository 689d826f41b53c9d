"""Arguments of tasks: bound to the handler's signature, converted to JSON, or refused with the argument and a fix."""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections import namedtuple
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everbeat.client.arguments import bind, to_json_value
from everbeat.client.errors import InvalidArguments

Point = namedtuple("Point", "x y")


class Color(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    SMALL = 1


class Shape(enum.Enum):
    ROUND = "round"


@dataclasses.dataclass
class Account:
    number: int


class Struct(msgspec.Struct):
    number: int


class Text(str):
    __slots__ = ()


def report(account: int, sections: Any = (), *, draft: bool = False) -> None: ...


SIGNATURE = inspect.signature(report)


def test_it_names_arguments_and_omits_defaults() -> None:
    assert bind("report", SIGNATURE, (7,), {}) == {"account": 7}
    assert bind("report", SIGNATURE, (), {"account": 7, "sections": ("a", "b")}) == {"account": 7, "sections": ["a", "b"]}


def test_it_passes_arbitrary_keyword_arguments() -> None:
    def handler(account: int, **rest: Any) -> None: ...

    assert bind("h", inspect.signature(handler), (), {"account": 1, "more": [2]}) == {"account": 1, "more": [2]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "report: missing argument account; its parameters: account, sections, draft"),
        ({"account": 1, "acount": 2}, "report: unknown argument acount (did you mean account?)"),
    ],
)
def test_it_refuses_arguments_that_do_not_match(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        bind("report", SIGNATURE, (), arguments)
    assert message in str(refused.value)
    assert isinstance(refused.value, TypeError)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            datetime(2026, 1, 1, tzinfo=UTC),
            "is a datetime, which JSON cannot represent; annotate the parameter as datetime",
        ),
        (date(2026, 1, 1), "is a date, which JSON cannot represent; annotate the parameter as date, or pass value.isoformat()"),
        (timedelta(1), "pass value.total_seconds()"),
        ({1, 2}, "is a set, which JSON cannot represent; pass a list"),
        (frozenset(), "pass a list"),
        (UUID(int=1), "pass str(value)"),
        (Decimal(1), "pass str(value) to keep it exact"),
        (b"x", "is a bytes, which JSON cannot represent; pass a string"),
        (Path("x"), "pass str(value)"),
        (Shape.ROUND, "pass value.value"),
        (Account(1), "pass dataclasses.asdict(value)"),
        (Struct(1), "pass msgspec.to_builtins(value)"),
        (Point(1, 2), "pass value._asdict()"),
        (float("nan"), "is nan, which JSON cannot represent; pass None"),
        (float("-inf"), "is -inf, which JSON cannot represent"),
        (2**64, "more than 64 bits"),
        ("\ud800", "surrogate"),
        ({1: "x"}, "has the key 1 (int); JSON keys are strings"),
        (object(), "an id instead of an object"),
        ((number for number in [1]), "pass list(value)"),
    ],
)
def test_it_refuses_values_that_json_cannot_represent_and_suggests_a_fix(value: Any, message: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        bind("report", SIGNATURE, (), {"account": value})
    assert str(refused.value).startswith(("report: the argument account", "a key of report: the argument account"))
    assert message in str(refused.value)


def test_it_names_the_position_inside_an_argument() -> None:
    with pytest.raises(InvalidArguments, match=r"the argument account\['rows'\]\[1\] is a datetime"):
        bind("report", SIGNATURE, (), {"account": {"rows": [1, datetime(2026, 1, 1, tzinfo=UTC)]}})


def test_it_refuses_a_value_that_contains_itself() -> None:
    recursive: list[Any] = []
    recursive.append(recursive)
    with pytest.raises(InvalidArguments, match="contains itself"):
        to_json_value(recursive, "x")


@pytest.mark.parametrize(
    ("value", "kept"),
    [(Color.RED, "red"), (Size.SMALL, 1), (Text("x"), "x"), ((1, (2,)), [1, [2]]), ({"a": None}, {"a": None})],
)
def test_it_converts_values_that_are_almost_json(value: Any, kept: Any) -> None:
    made = to_json_value(value, "x")
    assert made == kept
    assert type(made) is type(kept)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_json_values_are_unchanged(value: Any) -> None:
    assert to_json_value(value, "x") == value
    assert msgspec.json.decode(msgspec.json.encode(to_json_value(value, "x"))) == value
