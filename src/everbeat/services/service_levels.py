"""Service levels: counts good and bad events of this node, writes them, and reports what is left of the error budgets.

Failures handled here: a write with an unknown outcome is repeated, with totals and not increments; an unavailable database
makes the minutes unavailable, and the counts are written when it is back; a node that is killed loses the counts since its last
write.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from everbeat.clock import DatabaseClock, Monotonic
from everbeat.config import Settings
from everbeat.core.errors import EverbeatError
from everbeat.core.service_levels import (
    BUDGET_WINDOW,
    Level,
    LevelBucket,
    Objective,
    Sli,
    bucket_of,
    levels,
    minute_bit,
    recent_since,
)
from everbeat.services.events import (
    AttemptEnded,
    Emit,
    Event,
    LevelsReported,
    TasksClaimed,
    TasksFinished,
    TicksFired,
    TicksSkipped,
    ignore,
)
from everbeat.services.loops import Periodic
from everbeat.store.base import Store

RETENTION = timedelta(days=90)
# Buckets that could not be written yet: a day of them.
_MAX_PENDING = 288
_CACHE_SECONDS = 5.0
# How often what is left of the budgets is reported to metrics. The database adds up a month of buckets.
_REPORT_SECONDS = 60.0


class SliCounts(NamedTuple):
    """Events since this node was started."""

    good: int
    total: int


class LevelReport(NamedTuple):
    """`since`: the oldest bucket of the last 30 days, None if there is none."""

    now: datetime
    since: datetime | None
    levels: list[Level]


def objectives_of(settings: Settings) -> list[Objective]:
    return [
        Objective(Sli.FIRE, settings.slo_fire_target, settings.slo_fire_seconds),
        Objective(Sli.PICKUP, settings.slo_pickup_target, settings.slo_pickup_seconds),
        Objective(Sli.AVAILABILITY, settings.slo_availability_target),
        Objective(Sli.SUCCESS, settings.slo_success_target),
    ]


class SliCounter:
    """Counts the events of this node that the objectives are about. It is called for every event, and must be fast."""

    def __init__(self, settings: Settings, emit: Emit) -> None:
        self.objectives = objectives_of(settings)
        self._fire_seconds = settings.slo_fire_seconds
        self._pickup_seconds = settings.slo_pickup_seconds
        self._emit = emit
        self.good = dict.fromkeys(Sli, 0)
        self.total = dict.fromkeys(Sli, 0)

    def emit(self, event: Event) -> None:
        """Count an event, and pass it on."""
        if isinstance(event, TicksFired):
            self._count(Sli.FIRE, sum(skew <= self._fire_seconds for skew in event.skews_seconds), len(event.skews_seconds))
        elif isinstance(event, TicksSkipped):
            self._count(Sli.FIRE, 0, event.counts.get("misfire", 0))
        elif isinstance(event, TasksClaimed):
            waited = event.waited_seconds
            self._count(Sli.PICKUP, sum(seconds <= self._pickup_seconds for seconds in waited), len(waited))
        elif isinstance(event, TasksFinished):
            if event.state == "completed":
                self._count(Sli.SUCCESS, event.count, event.count)
        elif isinstance(event, AttemptEnded) and event.state in ("failed", "dead"):
            self._count(Sli.SUCCESS, 0, 1)
        self._emit(event)

    def mark_minute(self, is_available: bool) -> None:
        """Count a check of the availability. The durable counts are of minutes."""
        self._count(Sli.AVAILABILITY, int(is_available), 1)

    def counts(self) -> dict[Sli, SliCounts]:
        return {sli: SliCounts(self.good[sli], self.total[sli]) for sli in Sli}

    def _count(self, sli: Sli, good: int, total: int) -> None:
        self.good[sli] += good
        self.total[sli] += total


class ServiceLevels(Periodic):
    """Writes the counts of this node every few seconds, and checks the availability on nodes with the role `scheduler`."""

    name = "service_levels"
    deadline_seconds = 15.0

    def __init__(
        self,
        store: Store,
        node_id: UUID,
        counter: SliCounter,
        clock: DatabaseClock,
        *,
        is_scheduler: bool,
        emit: Emit = ignore,
        interval_seconds: float = 10.0,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        super().__init__(interval_seconds)
        self._store = store
        self._node_id = node_id
        self._counter = counter
        self._clock = clock
        self._is_scheduler = is_scheduler
        self._emit = emit
        self._reported_at = float("-inf")
        self._monotonic = monotonic
        self._before = counter.counts()
        self._buckets: dict[datetime, LevelBucket] = {}
        self._has_started = False
        self._report: tuple[float, LevelReport] | None = None

    async def run_once(self, now: datetime | None = None) -> bool:
        if now is None and not self._has_started:  # a node that has just started owns nothing yet
            self._has_started = True
            return False
        try:
            moment = await self._store.clock(now=now)
            is_available = not self._is_scheduler or await self._is_available(moment)
        except (EverbeatError, TimeoutError):
            self._add(now or self._clock.now(), False)
            raise
        self._add(moment, is_available if self._is_scheduler else None)
        await self._write(bucket_of(moment))
        if self._monotonic() - self._reported_at >= _REPORT_SECONDS:
            self._reported_at = self._monotonic()
            self._emit(LevelsReported((await self.report(now)).levels, 3 * _REPORT_SECONDS))
        return False

    async def report(self, now: datetime | None = None) -> LevelReport:
        """Return how the objectives are met, including what this node has counted and not written yet. Cached for a moment."""
        monotonic = self._monotonic()
        if now is None and self._report is not None and monotonic - self._report[0] < _CACHE_SECONDS:
            return self._report[1]
        moment = await self._store.clock(now=now)
        recent_at = recent_since(moment)
        total = await self._store.service_level_total(bucket_of(moment - BUDGET_WINDOW), recent_at)
        recent = await self._store.service_level_list(recent_at)
        since = total.first_at if total is not None else recent[0].at if recent else None
        found = LevelReport(moment, since, levels(total, recent, self._counter.objectives, moment))
        self._report = (monotonic, found)
        return found

    async def _is_available(self, moment: datetime) -> bool:
        partitions = await self._store.partition_list()
        return all(one.owner is not None and one.lease_until is not None and one.lease_until > moment for one in partitions)

    def _add(self, moment: datetime, is_available: bool | None) -> None:
        """Add the events since the last call to the current bucket, and mark the minute."""
        if is_available is not None:
            self._counter.mark_minute(is_available)
        at, counts, before = bucket_of(moment), self._counter.counts(), self._before
        self._before = counts
        added = {sli: SliCounts(counts[sli].good - before[sli].good, counts[sli].total - before[sli].total) for sli in Sli}
        old, bit = self._buckets.get(at, LevelBucket(at)), minute_bit(moment)
        self._buckets[at] = LevelBucket(
            at,
            old.fire_good + added[Sli.FIRE].good,
            old.fire_total + added[Sli.FIRE].total,
            old.pickup_good + added[Sli.PICKUP].good,
            old.pickup_total + added[Sli.PICKUP].total,
            old.success_good + added[Sli.SUCCESS].good,
            old.success_total + added[Sli.SUCCESS].total,
            old.available_minutes | (bit if is_available is True else 0),
            old.unavailable_minutes | (bit if is_available is False else 0),
        )
        _keep_newest(self._buckets, _MAX_PENDING)

    async def _write(self, current: datetime) -> None:
        """Write the buckets. The current one is kept, because it will be written again."""
        buckets = [self._buckets[at] for at in sorted(self._buckets)]
        if not any(_has_counts(one) for one in buckets):
            return
        await self._store.service_level_write(self._node_id, [one for one in buckets if _has_counts(one)])
        self._forget(one.at for one in buckets if one.at != current)

    def _forget(self, ats: Iterable[datetime]) -> None:
        for at in ats:
            self._buckets.pop(at, None)


def _has_counts(bucket: LevelBucket) -> bool:
    return any(bucket[1:])


def _keep_newest(buckets: dict[datetime, LevelBucket], limit: int) -> None:
    for at in sorted(buckets)[:-limit]:
        del buckets[at]
