"""The ticks that a rule requires, by trying every second: slow and simple, and without any idea of the code it judges."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

_RANGES = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def ticks_between(rule: dict[str, Any], from_: float, to: float) -> list[float]:
    """Return the ticks of a schedule within [from_, to], as seconds of the epoch."""
    if "every_seconds" in rule:
        return list(_every(rule, from_, to))
    return list(_cron(rule["cron"], ZoneInfo(rule.get("timezone", "UTC")), from_, to))


def _every(rule: dict[str, Any], from_: float, to: float) -> Iterator[float]:
    anchor, interval = datetime.fromisoformat(rule["anchor"]).timestamp(), rule["every_seconds"]
    number = math.ceil((from_ - anchor) / interval)
    while (tick := anchor + number * interval) <= to:
        if number >= 0:
            yield tick
        number += 1


def _cron(expression: str, zone: ZoneInfo, from_: float, to: float) -> Iterator[float]:
    texts = expression.split()
    texts = ["0", *texts] if len(texts) == 5 else texts
    fields = [_values(text, *_RANGES[number]) for number, text in enumerate(texts)]
    any_day, any_weekday = texts[3] == "*", texts[5] == "*"
    at = datetime.fromtimestamp(math.ceil(from_), UTC)
    while at.timestamp() <= to:
        local = at.astimezone(zone)
        parts = (local.second, local.minute, local.hour)
        day, weekday = local.day in fields[3], local.isoweekday() % 7 in fields[5]
        on_day = (day or weekday) if not (any_day or any_weekday) else (day and weekday)
        if on_day and local.month in fields[4] and all(part in field for part, field in zip(parts, fields, strict=False)):
            yield at.timestamp()
        at += timedelta(seconds=1)


def _values(text: str, lowest: int, highest: int) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        if span == "*":
            first, last = lowest, highest
        else:
            begin, _, end = span.partition("-")
            first, last = int(begin), int(end or begin)
        found.update(range(first, last + 1, int(step or 1)))
    return {0 if lowest == 0 and highest == 7 and value == 7 else value for value in found}
