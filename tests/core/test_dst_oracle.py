"""Cron compared with a brute-force oracle that checks every minute around real transitions of every zone."""

from __future__ import annotations

from calendar import monthrange
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise, product
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

import pytest

from everbeat.core.errors import InvalidInput
from everbeat.core.rules import DstFold, DstGap
from everbeat.core.triggers.cron import parse_cron
from everbeat.core.zones import load_zone

MINUTE = timedelta(minutes=1)
WALKED = timedelta(hours=28)
COMPARED = timedelta(hours=25)
POLICIES = list(product(DstGap, DstFold))


class Case(NamedTuple):
    """An expression, an independent predicate for what it matches, and whether it names wall-clock times, or only hours."""

    expression: str
    matches: Callable[[datetime], bool]
    is_wall: bool
    names_hours: bool = False


CASES = [
    Case("30 2 * * *", lambda at: (at.hour, at.minute) == (2, 30), True),
    Case("0 0 * * *", lambda at: (at.hour, at.minute) == (0, 0), True),
    Case("15,45 0-3 * * *", lambda at: at.hour <= 3 and at.minute in (15, 45), True),
    Case("*/20 * * * *", lambda at: at.minute % 20 == 0, False),
    Case("0 3 * * *", lambda at: (at.hour, at.minute) == (3, 0), True),
    Case("30 * * * *", lambda at: at.minute == 30, False),
    Case("0-59 0-23 * * *", lambda at: True, True),
    Case("* 2 * * *", lambda at: at.hour == 2, False, True),
    Case("45 23 * * *", lambda at: (at.hour, at.minute) == (23, 45), True),
    Case("0 0,30 1,2 * * *", lambda at: at.hour in (1, 2) and at.minute in (0, 30), True),
    Case("0 0 * * SUN", lambda at: (at.hour, at.minute, at.weekday()) == (0, 0, 6), True),
    Case("10 */2 * * *", lambda at: at.hour % 2 == 0 and at.minute == 10, False, True),
    Case("0 */5 1 * * *", lambda at: at.hour == 1 and at.minute % 5 == 0, False, True),
    Case("0 0 1 * *", lambda at: (at.day, at.hour, at.minute) == (1, 0, 0), True),
    Case("59 0,1,2,3,4 * * *", lambda at: at.hour <= 4 and at.minute == 59, True),
    Case("*/30 22-2 * * *", lambda at: at.hour in (22, 23, 0, 1, 2) and at.minute in (0, 30), False, True),
    Case("20-50/15 23-3/2 * OCT-APR SAT-MON", lambda at: _is_in_wrapped_ranges(at), True),
    Case("0 30 0-3 ? * * 2010-2030", lambda at: at.hour <= 3 and at.minute == 30 and 2010 <= at.year <= 2030, True),
    Case("45 0-23/2 1W,15W,L-6,L-2W * *", lambda at: at.hour % 2 == 0 and at.minute == 45 and _is_special_day(at), True),
]


def _is_in_wrapped_ranges(at: datetime) -> bool:
    is_time = at.hour in (23, 1, 3) and at.minute in (20, 35, 50)
    return is_time and at.month not in range(5, 10) and at.weekday() in (5, 6, 0)


def _is_special_day(at: datetime) -> bool:
    """Whether a day is the weekday nearest to the 1st, to the 15th or to the third to last day, or the seventh to last day."""
    days = [at.replace(day=day) for day in range(1, monthrange(at.year, at.month)[1] + 1)]
    weekdays = [day for day in days if day.weekday() < 5]
    nearest = [min(weekdays, key=lambda each: abs(each - wanted)) for wanted in (days[0], days[14], days[-3])]
    return at.day == days[-7].day or at.day in {each.day for each in nearest}


DIFFICULT_ZONES = [
    "America/Santiago",
    "Africa/Cairo",
    "Asia/Beirut",
    "America/Nuuk",
    "Australia/Lord_Howe",
    "Antarctica/Troll",
    "Africa/Casablanca",
    "Europe/Dublin",
    "Asia/Kathmandu",
    "Pacific/Chatham",
    "Asia/Gaza",
    "America/Havana",
    "Asia/Tehran",
]
DATE_LINE = [
    ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),
    ("Pacific/Kwajalein", datetime(1993, 8, 21, 12, tzinfo=UTC)),
    ("Pacific/Kiritimati", datetime(1994, 12, 31, 10, 0, tzinfo=UTC)),
    ("Asia/Pyongyang", datetime(2018, 5, 4, 15, 0, tzinfo=UTC)),
    ("America/Caracas", datetime(2007, 12, 9, 7, 0, tzinfo=UTC)),
    ("Africa/Freetown", datetime(1939, 9, 5, 0, 40, tzinfo=UTC)),
]
PARTS = 12


def offset_at(zone: ZoneInfo, at: datetime) -> timedelta:
    offset = at.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def changes(zone: ZoneInfo, start: datetime, days: int) -> Iterator[datetime]:
    """Yield the instants at which the offset changes, by bisection between samples three days apart."""
    samples = [(at, offset_at(zone, at)) for day in range(0, days, 3) if (at := start + timedelta(days=day))]
    for (low, before), (high, after) in pairwise(samples):
        if before == after:
            continue
        while high - low > timedelta(seconds=1):
            middle = (low + (high - low) / 2).replace(microsecond=0)
            low, high = (middle, high) if offset_at(zone, middle) == before else (low, middle)
        yield high


class Walk:
    """Every minute around an instant: the wall-clock times that occur, their instants, and the ones that are skipped."""

    def __init__(self, zone: ZoneInfo, around: datetime) -> None:
        start = (around - WALKED).replace(second=0, microsecond=0)
        minutes = [start + MINUTE * number for number in range(2 * WALKED // MINUTE)]
        self.shown = [(at, at.astimezone(zone).replace(tzinfo=None, fold=0)) for at in minutes]
        self.instants: dict[datetime, list[datetime]] = defaultdict(list)
        for at, local in self.shown:
            self.instants[local].append(at)
        self.jumps = [
            (at, [before + MINUTE * number for number in range(1, (local - before) // MINUTE)])
            for (_, before), (at, local) in pairwise(self.shown)
            if local - before > MINUTE
        ]

    def ticks(self, case: Case, gap: DstGap, fold: DstFold) -> tuple[list[datetime], list[datetime]]:
        """Return the ticks, and the instants of gaps that skip a tick."""
        if not case.is_wall:
            found = [at for at, local in self.shown if case.matches(local)]
            lost = [at for at, missing in self.jumps if case.names_hours and any(map(case.matches, missing))]
            return found, [at for at in lost if at not in found]
        ticks: set[datetime] = set()
        for local, instants in self.instants.items():
            if case.matches(local):
                chosen = {DstFold.FIRST: instants[:1], DstFold.SECOND: instants[-1:], DstFold.BOTH: instants}
                ticks.update(chosen[fold])
        skipped = [at for at, missing in self.jumps if any(map(case.matches, missing))]
        if gap is DstGap.AFTER:
            return sorted(ticks.union(skipped)), []
        if gap is DstGap.SHIFT:
            # The missing times are one minute apart and begin one minute after the last time before the jump.
            shifted = (
                at + MINUTE * index for at, missing in self.jumps for index, each in enumerate(missing) if case.matches(each)
            )
            return sorted(ticks.union(shifted)), []
        return sorted(ticks), [at for at in skipped if at not in ticks]


def compare(name: str, around: datetime, walk: Walk, case: Case, gap: DstGap, fold: DstFold) -> None:
    low, high = around - COMPARED, around + COMPARED
    expected, skipped = ([at for at in each if low < at <= high] for each in walk.ticks(case, gap, fold))
    trigger = parse_cron(case.expression, name, gap, fold, None)
    found: list[datetime] = []
    cursor = low
    while (tick := trigger.next_after(cursor)) is not None and tick <= high:
        assert tick > cursor
        found.append(tick)
        cursor = tick
    label = (name, around, case.expression, gap, fold)
    assert found == expected, label
    assert list(trigger.gaps_between(low, high)) == skipped, label
    assert trigger.count_between(low, high) == len(expected), label
    for before, tick in pairwise(expected[:: max(1, len(expected) // 20)]):
        assert trigger.last_until(tick) == tick, label
        assert trigger.count_between(before, tick) == expected.index(tick) - expected.index(before), label
    for index in range(1, len(expected), max(1, len(expected) // 20)):
        assert trigger.last_until(expected[index] - timedelta(microseconds=1)) == expected[index - 1], label


@cache
def zone_names() -> list[str]:
    names = []
    for name in sorted(available_timezones()):
        try:
            load_zone(name)
        except InvalidInput:
            continue
        names.append(name)
    return names


def sampled_changes(zone: ZoneInfo, index: int) -> list[datetime]:
    """Return one gap and one fold of 2020–2030, chosen by `index`; if there is none, the last earlier change, or any day."""
    start = datetime(2020, 1, 1, tzinfo=UTC)
    found = list(changes(zone, start, 365 * 11))
    if not found:
        found = list(changes(zone, datetime(1970, 1, 2, tzinfo=UTC), 365 * 50))[-1:]
    # The walk by minutes cannot handle offsets with seconds (Monrovia until 1972).
    found = [at for at in found if at.second == 0]
    gaps = [at for at in found if offset_at(zone, at) > offset_at(zone, at - MINUTE)]
    folds = [at for at in found if at not in gaps]
    chosen = [each[index % len(each)] for each in (gaps, folds) if each]
    return chosen or [start + timedelta(days=index)]


@pytest.mark.parametrize("part", range(PARTS))
def test_every_zone_agrees_with_the_oracle(part: int) -> None:
    for index, name in enumerate(zone_names()):
        if index % PARTS != part:
            continue
        zone = load_zone(name)
        for number, around in enumerate(sampled_changes(zone, index)):
            walk = Walk(zone, around)
            for extra in range(2):
                case_number = index * 3 + number * 7 + extra * 5
                gap, fold = POLICIES[case_number % len(POLICIES)]
                compare(name, around, walk, CASES[case_number % len(CASES)], gap, fold)


@pytest.mark.parametrize("name", DIFFICULT_ZONES)
def test_difficult_zones_agree_for_every_expression_and_policy(name: str) -> None:
    zone = load_zone(name)
    for around in sampled_changes(zone, 3):
        walk = Walk(zone, around)
        for case, (gap, fold) in product(CASES, POLICIES):
            compare(name, around, walk, case, gap, fold)


@pytest.mark.parametrize(("name", "around"), DATE_LINE)
def test_skipped_days_and_unusual_offsets_agree(name: str, around: datetime) -> None:
    zone = load_zone(name)
    assert offset_at(zone, around) != offset_at(zone, around - MINUTE), "not a transition"
    walk = Walk(zone, around)
    for case, (gap, fold) in product(CASES, POLICIES):
        # A window ends at the end of the year. That of Kiritimati is shorter than the gap of a day.
        if gap is not DstGap.SHIFT or name != "Pacific/Kiritimati":
            compare(name, around, walk, case, gap, fold)


def test_offsets_with_seconds_keep_ticks_ordered_and_on_the_wall_clock() -> None:
    """Before about 1900, zones used local mean time, so minutes of the wall clock are not minutes of UTC."""
    for name in ("Europe/Amsterdam", "America/New_York", "Asia/Manila", "America/Juneau", "Africa/Monrovia"):
        zone = ZoneInfo(name)
        for around in changes(zone, datetime(1840, 1, 1, tzinfo=UTC), 365 * 135):
            for case, (gap, fold) in product(CASES[:4], POLICIES[:3]):
                trigger = parse_cron(case.expression, name, gap, fold, None)
                cursor = around - timedelta(hours=30)
                while (tick := trigger.next_after(cursor)) is not None and tick < around + timedelta(hours=30):
                    assert tick > cursor
                    local = tick.astimezone(zone).replace(tzinfo=None)
                    assert (case.matches(local) and local.second == 0) or tick == around
                    assert trigger.last_until(tick) == tick
                    cursor = tick
