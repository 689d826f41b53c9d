"""When Kubernetes runs a CronJob: the fields as its controller reads them, and the times computed day by day.

This does not use Everbeat's triggers, so that an import can compare the two. It follows the Go package robfig/cron, which
differs from cron: a star with a step greater than 1 restricts a day field (`*/2` does), and every expression follows elapsed
time. Local times in a gap are lost, and those in a fold occur twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from zoneinfo import ZoneInfo

from everbeat.imports.crontab_times import NICKNAMES, InvalidField, LocalTimes

_KUBERNETES_NICKNAMES = {name: text for name, text in NICKNAMES.items() if name != "@every_minute"}

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_STARS = ("*", "?")


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: Mapping[str, int] = MappingProxyType({})


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    _Field("day of week", 0, 6, {name: number for number, name in enumerate(_DAYS)}),
)


class CronJobTimes(LocalTimes):
    """The times of the five fields of a CronJob in a zone."""

    def __init__(self, expression: str, zone: ZoneInfo) -> None:
        texts = _fields_of(expression)
        super().__init__(
            [_values(text, field) for text, field in zip(texts, _FIELDS, strict=True)],
            zone,
            are_days_joined=not _is_star(texts[2]) and not _is_star(texts[4]),
            follows_elapsed_time=True,
        )


def everbeat_expression(expression: str) -> str:
    """Return an expression that Everbeat reads as Kubernetes reads this one."""
    return " ".join(_rewritten(text, field) for text, field in zip(_fields_of(expression), _FIELDS, strict=True))


def _fields_of(expression: str) -> list[str]:
    texts = _KUBERNETES_NICKNAMES.get(expression, expression).split()
    if len(texts) != len(_FIELDS):
        raise InvalidField(f"{expression} has {len(texts)} fields, not {len(_FIELDS)}")
    return texts


def _is_star(text: str) -> bool:
    """Whether a field does not restrict: one of its terms is a star without a step, or with the step 1."""
    spans = [term.partition("/") for term in text.split(",")]
    return any(span in _STARS and (not slash or _step_of(step, text) == 1) for span, slash, step in spans)


def _rewritten(text: str, field: _Field) -> str:
    if _is_star(text):
        return "*"
    return ",".join(_rewritten_term(term, field) for term in text.split(","))


def _rewritten_term(term: str, field: _Field) -> str:
    span, slash, step = term.partition("/")
    if not slash:
        return term
    if span in _STARS:
        span = f"{field.low}-{field.high}"
    elif "-" not in span:
        span = f"{span}-{field.high}"
    return f"{span}/{step}"


def _values(text: str, field: _Field) -> set[int]:
    values: set[int] = set()
    for term in text.split(","):
        span, slash, step_text = term.partition("/")
        step = _step_of(step_text, text) if slash else 1
        low_text, dash, high_text = span.partition("-")
        if span in _STARS:
            low, high = field.low, field.high
        else:
            low = _number(low_text, field)
            high = _number(high_text, field) if dash else field.high if slash else low
        if high < low:
            raise InvalidField(f"{field.name}: the range {span} is reversed; Kubernetes does not accept it")
        values |= set(range(low, high + 1, step))
    return values


def _step_of(text: str, whole: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) == 0:
        raise InvalidField(f"{whole} has no valid step")
    return int(text)


def _number(text: str, field: _Field) -> int:
    number = field.names.get(text.lower(), -1)
    if number < 0 and re.fullmatch(r"[0-9]{1,9}", text):
        number = int(text)
    if not field.low <= number <= field.high:
        raise InvalidField(f"{field.name}: {text or 'an empty entry'} is not a value that Kubernetes accepts")
    return number
