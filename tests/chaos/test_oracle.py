"""The checker's own oracle of ticks, against instants written down by hand and against another cron library."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter

from tests.chaos.checker.oracle import ticks_between
from tests.chaos.rules import make_rules

_START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def _ticks(rule: dict[str, Any], seconds: float) -> list[str]:
    found = ticks_between(rule, _START.timestamp() + 0.5, _START.timestamp() + seconds + 0.5)
    return [f"{datetime.fromtimestamp(at, UTC):%H:%M:%S.%f}"[:-5] for at in found]


@pytest.mark.parametrize(
    ("rule", "seconds", "expected"),
    [
        ({"cron": "*/20 * * * * *"}, 60, ["12:00:20.0", "12:00:40.0", "12:01:00.0"]),
        ({"cron": "* * * * *"}, 130, ["12:01:00.0", "12:02:00.0"]),
        ({"cron": "5,8-9 0 * * * *"}, 3600, ["12:00:05.0", "12:00:08.0", "12:00:09.0"]),
        ({"cron": "0 46 17 * * *", "timezone": "Asia/Kathmandu"}, 120, ["12:01:00.0"]),
        ({"cron": "0 1 12 2 3 *"}, 120, []),
        ({"cron": "0 1 12 2 3 0"}, 120, ["12:01:00.0"]),  # a Sunday, although not the second
        ({"cron": "0 1 12 * * 7"}, 120, ["12:01:00.0"]),
        ({"every_seconds": 2.5, "anchor": "2026-03-01T11:59:59.5+00:00"}, 6, ["12:00:02.0", "12:00:04.5"]),
        ({"every_seconds": 60, "anchor": "2026-03-01T12:01:00Z"}, 61, ["12:01:00.0"]),
    ],
)
def test_ticks_by_hand(rule: dict[str, Any], seconds: float, expected: list[str]) -> None:
    assert _ticks(rule, seconds) == expected


def test_the_rules_of_a_run_have_the_same_ticks_in_another_library() -> None:
    first, last = _START.timestamp() + 0.5, _START.timestamp() + 120.5
    rules = [rule for rule in make_rules(first, last, "http://127.0.0.1/") if "cron" in rule]
    for rule in {rule["cron"] + rule["timezone"]: rule for rule in rules}.values():
        fields = rule["cron"].split()
        # That library takes the seconds as the last field.
        at = croniter(" ".join([*fields[1:], fields[0]]), datetime.fromtimestamp(first, ZoneInfo(rule["timezone"])))
        expected = []
        while (tick := at.get_next(datetime)) <= _START + timedelta(seconds=120.5):
            expected.append(tick.timestamp())
        assert ticks_between(rule, first, last) == expected, rule
