"""What the simulation knows about ticks, independently of the code: rules whose ticks are evenly spaced in UTC.

The oracle never parses an expression. It finds the text of a committed schedule in the table of texts that the plan uses.
"""

from __future__ import annotations

from typing import NamedTuple

SECOND = 1_000_000
_LAST = 2**62


class Rule(NamedTuple):
    """Ticks at `phase + n * period` within [starts, ends], in microseconds since 1970."""

    period: int
    phase: int
    starts: int = 0
    ends: int = _LAST

    def next_after(self, at: int) -> int | None:
        after = max(at, self.starts - 1)
        tick = self.phase + ((after - self.phase) // self.period + 1) * self.period
        return tick if tick <= self.ends else None

    def is_tick(self, at: int) -> bool:
        return (at - self.phase) % self.period == 0 and self.starts <= at <= self.ends

    def count_between(self, after: int, until: int) -> int:
        """The number of ticks in (after, until]."""
        first = self.next_after(after)
        last = min(until, self.ends)
        return 0 if first is None or first > last else (last - first) // self.period + 1


def _minutes(period: float, phase: float = 0) -> Rule:
    return Rule(round(period * 60 * SECOND), round(phase * 60 * SECOND))


# Kind, text and time zone, with the period and phase in minutes. 1970-01-01 was a Thursday.
PERIODIC: dict[tuple[str, str, str], Rule] = {
    ("cron", "* * * * *", "UTC"): _minutes(1),
    ("cron", "*/2 * * * *", "UTC"): _minutes(2),
    ("cron", "*/5 * * * *", "UTC"): _minutes(5),
    ("cron", "*/10 * * * *", "Europe/Berlin"): _minutes(10),
    ("cron", "*/15 * * * *", "UTC"): _minutes(15),
    ("cron", "7 * * * *", "UTC"): _minutes(60, 7),
    ("cron", "0 * * * *", "Asia/Kolkata"): _minutes(60, 30),
    ("cron", "10 */6 * * *", "UTC"): _minutes(360, 10),
    ("cron", "30 5 * * *", "Asia/Kolkata"): _minutes(1440),
    ("cron", "*/20 * * * * *", "UTC"): _minutes(1 / 3),
    ("cron", "15 3 * * THU", "UTC"): _minutes(7 * 1440, 195),
}


def rule_of(kind: str, text: str, zone: str, anchor: int | None, starts: int | None, ends: int | None) -> Rule:
    """The rule of a committed schedule."""
    match kind:
        case "cron":
            rule = PERIODIC[kind, text, zone]
        case "every":
            assert anchor is not None
            rule = Rule(round(float(text) * SECOND), anchor, starts=anchor)
        case "rrule":
            assert anchor is not None
            prefix = "FREQ=MINUTELY;INTERVAL="
            assert text.startswith(prefix), text
            rule = Rule(int(text.removeprefix(prefix)) * 60 * SECOND, anchor, starts=anchor)
        case _:
            at = _parse_instant(text)
            rule = Rule(_LAST, at, at, at)
    return rule._replace(starts=max(rule.starts, starts or 0), ends=min(rule.ends, ends or _LAST))


def _parse_instant(text: str) -> int:
    from datetime import datetime

    at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return round(at.timestamp()) * SECOND + at.microsecond
