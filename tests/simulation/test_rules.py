"""The arithmetic of the oracle, against ticks that are listed one by one."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.simulation.rules import PERIODIC, SECOND, Rule, rule_of


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


@pytest.mark.parametrize(
    ("text", "zone", "ticks"),
    [
        ("*/15 * * * *", "UTC", ["2026-03-02T12:00", "2026-03-02T12:15", "2026-03-02T12:30"]),
        ("7 * * * *", "UTC", ["2026-03-02T12:07", "2026-03-02T13:07", "2026-03-02T14:07"]),
        ("0 * * * *", "Asia/Kolkata", ["2026-03-02T12:30", "2026-03-02T13:30", "2026-03-02T14:30"]),
        ("10 */6 * * *", "UTC", ["2026-03-02T12:10", "2026-03-02T18:10", "2026-03-03T00:10"]),
        ("30 5 * * *", "Asia/Kolkata", ["2026-03-03T00:00", "2026-03-04T00:00", "2026-03-05T00:00"]),
        ("15 3 * * THU", "UTC", ["2026-03-05T03:15", "2026-03-12T03:15", "2026-03-19T03:15"]),
    ],
)
def test_the_ticks_of_an_expression(text: str, zone: str, ticks: list[str]) -> None:
    rule, found, after = PERIODIC["cron", text, zone], list[int](), at("2026-03-02T11:59")
    for _ in ticks:
        following = rule.next_after(after)
        assert following is not None
        found.append(after := following)
    assert found == [at(one) for one in ticks]
    assert rule.count_between(at("2026-03-02T11:59"), found[-1]) == len(ticks)
    assert rule.count_between(at("2026-03-02T11:59"), found[-1] - 1) == len(ticks) - 1
    assert all(rule.is_tick(one) for one in found)
    assert not rule.is_tick(found[0] + SECOND)


def test_the_bounds_of_a_rule() -> None:
    rule = Rule(period=10, phase=3, starts=20, ends=45)
    assert [rule.next_after(one) for one in (0, 22, 23, 33, 43)] == [23, 23, 33, 43, None]
    assert [rule.count_between(0, one) for one in (22, 23, 42, 43, 1000)] == [0, 1, 2, 3, 3]
    assert not rule.is_tick(13)
    assert not rule.is_tick(53)


def test_a_single_instant_and_an_anchor() -> None:
    once = rule_of("at", "2026-03-02T12:00:00.000000Z", "UTC", None, None, None)
    assert once.next_after(0) == at("2026-03-02T12:00")
    assert once.next_after(at("2026-03-02T12:00")) is None
    every = rule_of("every", "90", "UTC", at("2026-03-02T12:00"), None, None)
    assert every.next_after(0) == at("2026-03-02T12:00"), "the anchor is a tick"
    assert every.next_after(at("2026-03-02T12:00")) == at("2026-03-02T12:01") + 30 * SECOND
