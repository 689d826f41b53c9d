"""Converts patterns of local times to instants, with policies for gaps and folds.

A zone is a sequence of windows, each a span of UTC with one offset. Gaps and folds are at their edges. A pattern is evaluated
window by window, so that instants are in order by construction and no policy can duplicate or reorder ticks. All values are
whole seconds since 1970, either UTC (instants) or local (instant + offset), because integers neither overflow nor need a fold
flag.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, Protocol
from zoneinfo import ZoneInfo

from everbeat.core.rules import DstFold, DstGap
from everbeat.core.zones import transitions

DAY = 86400
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_ORDINAL = EPOCH.toordinal()
FIRST_DAY = date.min.toordinal() - EPOCH_ORDINAL
LAST_DAY = date.max.toordinal() - EPOCH_ORDINAL
MIN_INSTANT = FIRST_DAY * DAY
MAX_INSTANT = (LAST_DAY + 1) * DAY - 1

# Offsets are less than a day in either direction, so a nominal time and its instant never differ by more than this.
_MARGIN = 2 * DAY
_MAX_CACHED_YEARS = 256
# Only rules that count elapsed time need more than a few windows: their filters may match at only one of a zone's offsets.
_MAX_WINDOWS = 512


class Mode(Enum):
    """How a pattern applies to a zone: by elapsed time, or by local time with a choice of repeated times."""

    REAL = "real"
    FIRST = "first"
    SECOND = "second"
    BOTH = "both"

    @classmethod
    def of(cls, fold: DstFold) -> Mode:
        return cls(fold.value)


class Window(NamedTuple):
    """A span of one offset, in which local times in [low, high) are evaluated. `gap_low`: the start of a gap just before it."""

    start: int
    end: int
    offset: int
    low: int
    high: int
    gap_low: int | None
    offset_before: int


class Pattern(Protocol):
    """A set of local times. Patterns that count elapsed time need the current offset for their phase."""

    def first(self, low: int, high: int, offset: int) -> int | None:
        """Return the earliest time in [low, high), or None."""

    def last(self, low: int, high: int, offset: int) -> int | None:
        """Return the latest time in [low, high), or None."""

    def count(self, low: int, high: int, offset: int) -> int:
        """Return the number of times in [low, high)."""

    def none_before(self, low: int) -> int | None:
        """Return a time at or after low before which there is no match at any offset. None: there is no later match."""

    def none_after(self, high: int) -> int | None:
        """Return a time at or before high after which there is no match at any offset. None: there is no earlier match."""


def to_seconds(instant: datetime) -> int:
    elapsed = instant - EPOCH
    return elapsed.days * DAY + elapsed.seconds


def to_instant(seconds: int) -> datetime:
    return EPOCH + timedelta(0, seconds)


class WallClock:
    """The windows of one zone in one mode."""

    def __init__(self, zone: ZoneInfo, mode: Mode) -> None:
        self.zone = zone
        self.mode = mode
        self.fixed = zone.utcoffset(None) is not None
        self._years: dict[int, tuple[Window, ...]] = {}
        self._recent = self._find(0)

    def at(self, instant: int) -> Window:
        window = self._recent
        if not window.start <= instant < window.end:
            self._recent = window = self._find(instant)
        return window

    def _find(self, instant: int) -> Window:
        if self.fixed:
            offset = _offset_at(self.zone, instant)
            start, end = MIN_INSTANT, MAX_INSTANT + 1
            return Window(start, end, offset, start + offset, end + offset, None, offset)
        year = date.fromordinal(instant // DAY + EPOCH_ORDINAL).year
        return next(window for window in self._windows_of(year) if instant < window.end)

    def _windows_of(self, year: int) -> tuple[Window, ...]:
        windows = self._years.get(year)
        if windows is None:
            if len(self._years) >= _MAX_CACHED_YEARS:
                self._years.clear()
            self._years[year] = windows = tuple(self._build(year))
        return windows

    def _build(self, year: int) -> Iterator[Window]:
        """Yield the windows of a year. They also end at the end of the year, which limits the search for transitions."""
        start, end = year_start(year), year_start(year + 1)
        changes = transitions(self.zone, to_instant(max(start - 1, MIN_INSTANT)), to_instant(end - 1))
        edges = [start, *(edge for change in changes if (edge := to_seconds(change.at)) > start), end]
        for low, high in pairwise(edges):
            yield self._window(low, high)

    def _window(self, start: int, end: int) -> Window:
        offset = _offset_at(self.zone, start)
        before, after = _offset_at(self.zone, start - 1), _offset_at(self.zone, end)
        low, high = start + offset, end + offset
        gap_low = start + before if offset > before else None
        if self.mode is Mode.FIRST:
            low = max(low, start + before)
        elif self.mode is Mode.SECOND:
            high = min(high, end + after)
        return Window(start, end, offset, low, high, gap_low, before)


@lru_cache(maxsize=4096)
def wall_clock(zone: ZoneInfo, mode: Mode) -> WallClock:
    """Return the clock that all triggers of a zone share. Zones compare by identity: a new tz database gets new clocks."""
    return WallClock(zone, mode)


class LocalTrigger:
    """A trigger that consists of a pattern and a clock. The base of cron and rrule triggers.

    `loses_ticks_in_gaps`: whether a trigger that follows elapsed time reports the local times in a gap as skipped. The policy
    for gaps applies to other triggers only.
    """

    def __init__(self, pattern: Pattern, clock: WallClock, gap: DstGap, *, loses_ticks_in_gaps: bool = False) -> None:
        self.pattern = pattern
        self.clock = clock
        follows_real_time = clock.mode is Mode.REAL
        self.skips_gaps = not clock.fixed and (loses_ticks_in_gaps if follows_real_time else gap is DstGap.SKIP)
        self._moves_ticks = gap is DstGap.AFTER and not follows_real_time
        self._shifts_ticks = gap is DstGap.SHIFT and not follows_real_time
        # Many schedules share this object and repeat the same call. A single tuple can be replaced without a lock.
        self._memo: tuple[int, int, datetime | None] = (0, 0, None)

    def next_after(self, t: datetime) -> datetime | None:
        after = to_seconds(t)
        since, until, result = self._memo
        if since <= after < until:
            return result
        found = self.search(after)
        result = None if found is None else to_instant(found)
        self._memo = (after, MAX_INSTANT + 1 if found is None else found, result)
        return result

    def search(self, after: int, max_windows: int = _MAX_WINDOWS) -> int | None:
        """Like next_after, but in seconds, and None if there is no tick in `max_windows` windows."""
        if after >= MAX_INSTANT:
            return None
        earliest = after + 1
        window: Window | None = self.clock.at(earliest)
        while window is not None and max_windows > 0:
            if self._moves_ticks and earliest <= window.start and self._skips_nominal_time(window):
                return window.start
            found = self.pattern.first(max(window.low, earliest + window.offset), window.high, window.offset)
            instant = None if found is None else found - window.offset
            if self._shifts_ticks and window.gap_low is not None:
                instant = self._first_of(instant, window, earliest)
            if instant is not None:
                return instant
            window = self._following(window)
            max_windows -= 1
        return None

    def last_until(self, t: datetime) -> datetime | None:
        until = to_seconds(t)
        window: Window | None = self.clock.at(until)
        while window is not None:
            high = min(window.high, until + 1 + window.offset)
            found = self.pattern.last(window.low, high, window.offset)
            instant = None if found is None else found - window.offset
            if self._shifts_ticks and window.gap_low is not None:
                instant = self._last_of(instant, window, until)
            if instant is not None:
                return to_instant(instant)
            if self._moves_ticks and window.start <= until and self._skips_nominal_time(window):
                return to_instant(window.start)
            window = self._preceding(window)
        return None

    def count_between(self, after: datetime, until: datetime) -> int:
        low, high = to_seconds(after), to_seconds(until)
        total = 0
        for window in self._windows(low, high):
            first = max(window.low, low + 1 + window.offset)
            last = min(window.high, high + 1 + window.offset)
            if first < last:
                total += self.pattern.count(first, last, window.offset)
            if self._moves_ticks and low < window.start <= high and self._lost_in_gap(window):
                total += 1
            if self._shifts_ticks and window.gap_low is not None:
                total += self._count_shifted(window, low, high)
        return total

    def gaps_between(self, after: datetime, until: datetime) -> list[datetime]:
        if not self.skips_gaps:
            return []
        low, high = to_seconds(after), to_seconds(until)
        return [
            to_instant(window.start)
            for window in self._windows(low, high)
            if low < window.start <= high and self._lost_in_gap(window)
        ]

    def _windows(self, low: int, high: int) -> Iterator[Window]:
        """Yield the windows that may have a tick or a gap in (low, high]."""
        if low >= min(high, MAX_INSTANT):
            return
        window: Window | None = self.clock.at(low + 1)
        while window is not None and window.start <= high:
            yield window
            window = self._following(window) if window.end <= high else None

    def _following(self, window: Window) -> Window | None:
        """Return the next window that may have a tick. There may be none for decades, and a fold may repeat earlier times."""
        hint = self.pattern.none_before(window.end + window.offset - _MARGIN)
        if hint is None or window.end > MAX_INSTANT:
            return None
        target = max(window.end, hint - _MARGIN)
        return self.clock.at(target) if target <= MAX_INSTANT else None

    def _preceding(self, window: Window) -> Window | None:
        hint = self.pattern.none_after(window.start + window.offset + _MARGIN)
        if hint is None or window.start <= MIN_INSTANT:
            return None
        target = min(window.start - 1, hint + _MARGIN)
        return self.clock.at(target) if target >= MIN_INSTANT else None

    # With gap = shift, a local time in a gap keeps the offset from before the gap, and so becomes a later local time. The
    # shifted ticks lie in the window that begins with the gap, and may coincide with other ticks of that window.

    def _first_of(self, instant: int | None, window: Window, earliest: int) -> int | None:
        low, high = _gap_times(window)
        before = window.offset_before
        shifted = self.pattern.first(max(low, earliest + before), high, before)
        if shifted is None:
            return instant
        return shifted - before if instant is None else min(instant, shifted - before)

    def _last_of(self, instant: int | None, window: Window, until: int) -> int | None:
        low, high = _gap_times(window)
        before = window.offset_before
        shifted = self.pattern.last(low, min(high, until + 1 + before), before)
        if shifted is None:
            return instant
        return shifted - before if instant is None else max(instant, shifted - before)

    def _count_shifted(self, window: Window, after: int, until: int) -> int:
        """Return the number of shifted ticks in (after, until] that do not coincide with another tick."""
        low, high = _gap_times(window)
        before, total = window.offset_before, 0
        low, high = max(low, after + 1 + before), min(high, until + 1 + before)
        while (found := self.pattern.first(low, high, before)) is not None:
            local = found - before + window.offset
            if self.pattern.first(max(local, window.low), min(local + 1, window.high), window.offset) is None:
                total += 1
            low = found + 1
        return total

    def _skips_nominal_time(self, window: Window) -> bool:
        """Whether the gap before this window skips a nominal time."""
        if window.gap_low is None:
            return False
        return self.pattern.first(window.gap_low, window.start + window.offset, window.offset_before) is not None

    def _lost_in_gap(self, window: Window) -> bool:
        """Like _skips_nominal_time, but False if the pattern has a tick exactly at the end of the gap."""
        if not self._skips_nominal_time(window):
            return False
        end = window.start + window.offset
        return self.pattern.first(end, end + 1, window.offset) is None


def _gap_times(window: Window) -> tuple[int, int]:
    """Return the range of local times in the gap before a window, without those that would be shifted beyond its end."""
    assert window.gap_low is not None
    return window.gap_low, min(window.start + window.offset, window.end + window.offset_before)


def year_start(year: int) -> int:
    if year > date.max.year:
        return MAX_INSTANT + 1
    return (date(year, 1, 1).toordinal() - EPOCH_ORDINAL) * DAY


def _offset_at(zone: ZoneInfo, instant: int) -> int:
    """Return the offset at an instant. Near the limits of datetime, use that of an earlier or later day to avoid overflow."""
    clamped = min(max(instant, MIN_INSTANT + _MARGIN), MAX_INSTANT - _MARGIN)
    offset = to_instant(clamped).astimezone(zone).utcoffset()
    assert offset is not None
    return offset.days * DAY + offset.seconds
