"""The ticker: fires the ticks of this node's partitions, on time and only once.

It keeps the schedules that are due soon in a time index, which is filled by scans of the horizon; a notice triggers a scan.
It sleeps until the next schedule is due, and fires due schedules in batches: one statement writes the ledger, the tasks and
the next positions of the schedules. The ticker only decides when this statement is executed. Guards in the database decide
whether a tick fires.

Failures handled here: a schedule whose row another transaction has locked is put off, alone, and tried again after a short
time; a batch with an unknown outcome is dropped and scanned again (schedules that fired have moved on); a
batch that the database rejects is halved until the faulty schedule is alone and can be paused; a schedule that cannot be
computed is paused when it is loaded.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import uuid_utils.compat

from everbeat.clock import DatabaseClock
from everbeat.core.calendars import Calendar
from everbeat.core.errors import InvalidInput, StoreLocked, StoreRefused
from everbeat.core.firing_lag import FiringLag
from everbeat.core.jitter import jitter_of
from everbeat.core.lock_retries import LockRetries
from everbeat.core.misfire import FiringInput, Lateness, plan_firing
from everbeat.core.ticks import Outcome, Skip, SkipReason
from everbeat.core.time_index import TimeIndex
from everbeat.core.timeline import Timeline, TimelineCache
from everbeat.services.event_stream import EventStream
from everbeat.services.events import (
    Emit,
    LagHigh,
    RowsLocked,
    ScheduleFaulted,
    TicksAlreadyRecorded,
    TicksFired,
    TicksRefused,
    TicksSkipped,
    ignore,
)
from everbeat.services.loops import wait_for_event
from everbeat.services.ownership import Ownership
from everbeat.services.publisher import ChangePublisher
from everbeat.services.quotas import QuotaReservation, QuotaService
from everbeat.store.base import Store
from everbeat.store.values import DueScan, DueSchedule, Fired, FireResult, Firing, Notice

_LOAD_SLICE = 200
_BEHIND_SECONDS = 1.0
_MIN_SCAN_INTERVAL_SECONDS = 0.05
_ALERT_INTERVAL_SECONDS = 10.0
# A burst begins with a small batch, so that its first tasks start while the rest is being fired.
_FIRST_BATCH_SIZE = 64


class TickerSettings(NamedTuple):
    horizon_seconds: float = 5.0
    scan_seconds: float = 2.0
    batch_size: int = 1000
    parallel_batches: int = 3
    index_size: int = 32_768
    lag_alert_seconds: float = 5.0
    lateness: Lateness = Lateness()


DEFAULT_SETTINGS = TickerSettings()


class _Entry(NamedTuple):
    """A schedule that is due soon. `generation`: that of the timeline cache when the timeline was read."""

    due: DueSchedule
    timeline: Timeline
    generation: int

    @property
    def id(self) -> UUID:
        return self.due.id

    @property
    def due_at(self) -> datetime:
        return self.due.due_at


class Ticker:
    name = "ticker"
    deadline_seconds = 30.0

    def __init__(
        self,
        store: Store,
        ownership: Ownership,
        clock: DatabaseClock,
        timelines: TimelineCache,
        publisher: ChangePublisher,
        *,
        settings: TickerSettings = DEFAULT_SETTINGS,
        emit: Emit = ignore,
        event_stream: EventStream | None = None,
        quotas: QuotaService | None = None,
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._clock = clock
        self._timelines = timelines
        self._settings = settings
        self._emit = emit
        self._event_stream = event_stream or EventStream()
        self._publisher = publisher
        self._quotas = quotas or QuotaService(store)
        self._index: TimeIndex[_Entry] = TimeIndex()
        self._locked: LockRetries[_Entry] = LockRetries()
        self._woken = asyncio.Event()
        self._scanned: frozenset[tuple[int, int]] = frozenset()
        self._scanned_at = float("-inf")
        self._scanning: asyncio.Task[None] | None = None
        self._taken_ids: set[UUID] | None = None
        self._complete_until: datetime | None = None
        self._fire_lock = asyncio.Lock()
        self._is_stale = True
        self._alerted_at = float("-inf")
        self._owned_since = datetime.max.replace(tzinfo=UTC)
        self._lag = FiringLag()
        self._loaded_at: float | None = None
        self._owned_at: float | None = None
        store.subscribe(self._on_notice)

    async def run_once(self, now: datetime | None = None) -> bool:
        owned = self._ownership.current()
        if not owned:
            self._index.clear()
            self._locked.clear()
            self._lag.clear()
            self._loaded_at = self._owned_at = None
            self._is_stale = True
            return False
        self._owned_at = self._clock.monotonic() if self._owned_at is None else self._owned_at
        if now is not None:  # a test that steps the clock: everything in sequence
            await self._scan(owned, now)
        elif self._should_scan(owned):
            self._taken_ids = set()  # before entries are taken: the scan only starts at the first await of this iteration
            self._scanning = asyncio.create_task(self._scan(owned, None))
        moment = now if now is not None else self._clock.now()
        entries, locked = self._take(moment), self._take_locked(now)
        if entries:
            self._watch_lag(entries[0], moment)
        batches = _batches(entries, self._settings.batch_size) + ([locked] if locked else [])
        if entries:
            self._lag.note_due(max(entries[0].due_at, min(self._owned_since, moment)))
        results = await asyncio.gather(*(self._fire(batch, owned, moment, now) for batch in batches), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        self._lag.note_fired(now if now is not None else self._clock.now())
        return bool(entries)

    def take_lag(self, now: datetime | None) -> float | None:
        """Return the worst lag since the last call. Schedules that cannot be loaded are late as well."""
        lag = self._lag.take(now if now is not None else self._clock.now())
        if self._loaded_at is None or now is not None:
            return lag
        return max(lag or 0.0, self._clock.monotonic() - self._loaded_at - self._settings.horizon_seconds)

    def evaluation_lag(self) -> float:
        """Return how late the loop is now: with the oldest tick that it has not fired, or with loading schedules."""
        if self._owned_at is None or not self._ownership.current():
            return 0.0
        dues = [due for due in (self._lag.since(), self._index.next_due_at()) if due is not None]
        late = -self._clock.seconds_until(max(min(dues), self._owned_since)) if dues else 0.0
        loaded_at = self._owned_at if self._loaded_at is None else self._loaded_at
        return max(0.0, late, self._clock.monotonic() - loaded_at - self._settings.horizon_seconds)

    async def wait(self) -> None:
        if not self._ownership.current():
            await wait_for_event(self._woken, 0.2)
            return
        seconds = self._settings.scan_seconds
        if self._scanning is None:
            gap = _MIN_SCAN_INTERVAL_SECONDS if self._is_stale else self._settings.scan_seconds
            seconds = self._scanned_at + gap - self._clock.monotonic()
        due_at = self._index.next_due_at()
        if due_at is not None and (self._complete_until is None or due_at <= self._complete_until):
            seconds = min(seconds, self._clock.seconds_until(due_at))
        if (retry_at := self._locked.next_at()) is not None:
            seconds = min(seconds, retry_at - self._clock.monotonic())
        await wait_for_event(self._woken, seconds)

    async def close(self) -> None:
        if self._scanning is not None:
            self._scanning.cancel()
            await asyncio.gather(self._scanning, return_exceptions=True)

    def _take(self, moment: datetime) -> list[_Entry]:
        """Take the due entries, oldest first.

        Entries after `_complete_until` stay: the last scan reached its limit, and earlier ones may not be loaded yet.
        """
        until = moment if self._complete_until is None else min(moment, self._complete_until)
        entries = self._index.take_due(until, self._settings.batch_size * self._settings.parallel_batches)
        if self._taken_ids is not None:
            self._taken_ids.update(entry.id for entry in entries)
        return entries

    def _take_locked(self, now: datetime | None) -> list[_Entry]:
        """Take the entries that were found locked and are to be tried again; all of them in a test that steps the clock."""
        entries = self._locked.take(None if now is not None else self._clock.monotonic())
        if self._taken_ids is not None:
            self._taken_ids.update(entry.id for entry in entries)
        return entries

    # Loading

    def _on_notice(self, notice: Notice) -> None:
        if notice in (Notice.SCHEDULES, Notice.OWNERSHIP, Notice.CALENDARS):
            self._is_stale = True
            self._woken.set()

    def _should_scan(self, owned: Mapping[int, int]) -> bool:
        """Return whether to scan, concurrently with firing.

        While the loaded entries are well overdue, firing them comes first. But a busy node is always slightly behind, and
        must scan nevertheless, because otherwise it would run out of entries.
        """
        if self._scanning is not None:
            if not self._scanning.done():
                return False
            finished, self._scanning = self._scanning, None
            finished.result()
        if self._scanned != frozenset(owned.items()):
            return True
        due_at = self._index.next_due_at()
        if self._complete_until is not None and (due_at is None or due_at > self._complete_until):
            return True
        if self._complete_until is not None and due_at is not None and due_at <= self._clock.now():
            # The last scan reached its limit. Scan again before the loaded entries run out.
            return len(self._index) <= self._settings.index_size // 4
        if due_at is not None and self._clock.seconds_until(due_at) < -_BEHIND_SECONDS:
            return False
        age = self._clock.monotonic() - self._scanned_at
        return age >= self._settings.scan_seconds or (self._is_stale and age >= _MIN_SCAN_INTERVAL_SECONDS)

    async def _scan(self, owned: Mapping[int, int], now: datetime | None) -> None:
        self._is_stale = False
        limit = max(16, self._settings.index_size // len(owned))
        sent = self._clock.monotonic()
        try:
            scan = await self._store.schedule_due(
                list(owned), horizon_seconds=self._settings.horizon_seconds, limit=limit, now=now
            )
            self._clock.observe(sent, scan.now)
            if self._scanned != frozenset(owned.items()):
                self._index.clear()
                self._locked.clear()
                self._owned_since = scan.now
            self._scanned = frozenset(owned.items())
            await self._load_all(scan, now)
            self._complete_until = _loaded_until(scan.schedules, limit)
            self._loaded_at = self._clock.monotonic()
        except BaseException:
            self._is_stale = True
            raise
        finally:
            self._scanned_at, self._taken_ids = self._clock.monotonic(), None
            self._woken.set()

    async def _load_all(self, scan: DueScan, now: datetime | None) -> None:
        faults = dict(scan.faults)
        calendars = await self._calendars(scan.schedules)
        for start in range(0, len(scan.schedules), _LOAD_SLICE):
            for schedule in scan.schedules[start : start + _LOAD_SLICE]:
                # A schedule that was taken for firing since the scan was sent has moved on, or the next scan finds it.
                if self._taken_ids is None or schedule.id not in self._taken_ids:
                    self._load(schedule, calendars.get(schedule.tenant_id, {}), faults)
            await asyncio.sleep(0)
        await self._mark_faulty(faults, now)

    async def _calendars(self, schedules: Iterable[DueSchedule]) -> dict[UUID, dict[str, Calendar]]:
        """Read the calendars with every scan that needs them: a stale calendar would silently yield wrong ticks."""
        tenants = {schedule.tenant_id for schedule in schedules if schedule.rule.exclude or schedule.rule.only}
        return {tenant: {calendar.name: calendar for calendar in await self._store.calendar_list(tenant)} for tenant in tenants}

    def _load(self, schedule: DueSchedule, calendars: Mapping[str, Calendar], faults: dict[UUID, str]) -> None:
        known = self._index.get(schedule.id)
        generation = self._timelines.generation
        is_known = known is not None and known.due == schedule and known.generation == generation
        if is_known and not (schedule.rule.exclude or schedule.rule.only):
            return
        try:
            timeline = self._timelines.get(schedule.rule, schedule.id, calendars)
            # Computed now, so that it is cached when the tick is due.
            timeline.next_tick(schedule.next_tick_at)
        except (InvalidInput, ValueError, ArithmeticError) as error:
            faults[schedule.id] = str(error)
            return
        if schedule.id in self._locked:
            self._locked.replace(_Entry(schedule, timeline, generation))
        else:
            self._index.put(_Entry(schedule, timeline, generation))

    # Firing

    async def _fire(self, entries: list[_Entry], owned: Mapping[int, int], moment: datetime, now: datetime | None) -> None:
        planned: dict[UUID, tuple[_Entry, Firing]] = {}
        faults: dict[UUID, str] = {}
        for entry in entries:
            epoch = owned.get(entry.due.partition)
            if epoch is None:
                continue
            if entry.generation != self._timelines.generation:
                self._is_stale = True  # the tz database has changed: the next scan loads the schedule again
                continue
            try:
                planned[entry.id] = (entry, self._plan(entry, epoch, moment))
            except (InvalidInput, ValueError, ArithmeticError) as error:
                faults[entry.id] = str(error)
        await self._mark_faulty(faults, now)
        sent = self._clock.monotonic()
        try:
            # Batches are fired in order. The next one is planned while the database executes this one.
            async with self._fire_lock:
                result = await self._fire_within_quotas(planned, now)
        except StoreRefused as error:
            await self._fire_halves([entry for entry, _ in planned.values()], owned, moment, now, error)
            return
        except StoreLocked:  # not a row, but a whole table is locked: the database responds, so nothing is unknown
            self._put_off([entry for entry, _ in planned.values()])
            return
        except BaseException:
            self._is_stale, self._scanned_at = True, float("-inf")
            raise
        self._publisher.publish(result.changes)
        self._clock.observe(sent, result.now)
        self._apply_result(planned, result)

    async def _fire_within_quotas(self, planned: dict[UUID, tuple[_Entry, Firing]], now: datetime | None) -> FireResult:
        reservations = await self._reserve_quota(planned, now) if await self._quotas.has_ready_limits() else []
        try:
            return await self._store.tick_fire(self._ownership.node_id, [firing for _, firing in planned.values()], now=now)
        finally:
            for reservation in reservations:
                reservation.done()

    async def _reserve_quota(self, planned: dict[UUID, tuple[_Entry, Firing]], now: datetime | None) -> list[QuotaReservation]:
        """Reserve quota for the planned ticks. Ticks of tenants that have reached max_ready are changed to skips."""
        wanted = Counter(firing.tenant_id for _, firing in planned.values() if firing.fires is not None)
        remaining_ready = await self._quotas.remaining_ready(wanted, now=now)
        taken: Counter[UUID] = Counter()
        for id_, (entry, firing) in planned.items():
            if firing.fires is None or firing.tenant_id not in remaining_ready:
                continue
            if taken[firing.tenant_id] < remaining_ready[firing.tenant_id]:
                taken[firing.tenant_id] += 1
            else:
                skip = Skip(firing.fires, firing.fires, 1, SkipReason.QUOTA)
                planned[id_] = (entry, firing._replace(fires=None, skips=(*firing.skips, skip)))
        return self._quotas.reserve_ticks(taken)

    async def _fire_halves(
        self,
        entries: list[_Entry],
        owned: Mapping[int, int],
        moment: datetime,
        now: datetime | None,
        error: StoreRefused,
    ) -> None:
        if len(entries) == 1:
            await self._mark_faulty({entries[0].id: str(error)}, now)
            return
        middle = len(entries) // 2
        await self._fire(entries[:middle], owned, moment, now)
        await self._fire(entries[middle:], owned, moment, now)

    def _plan(self, entry: _Entry, epoch: int, moment: datetime) -> Firing:
        schedule = entry.due
        due = FiringInput(
            schedule.cursor_at,
            schedule.next_tick_at,
            schedule.catch_up,
            schedule.misfire_grace_seconds,
            _jitter(entry),
            schedule.moved_tick_at,
        )
        plan = plan_firing(due, entry.timeline, moment, self._settings.lateness)
        return Firing(
            schedule_id=schedule.id,
            tenant_id=schedule.tenant_id,
            partition=schedule.partition,
            epoch=epoch,
            revision=schedule.revision,
            expected=schedule.next_tick_at,
            fires=plan.fires,
            task_id=uuid_utils.compat.uuid7(),
            cursor_at=plan.cursor_at,
            next_tick_at=plan.next_tick_at,
            due_at=plan.due_at,
            skips=plan.skips,
        )

    def _apply_result(self, planned: dict[UUID, tuple[_Entry, Firing]], result: FireResult) -> None:
        """Update the index after a batch. Schedules that did not fire are dropped, and the next scan loads them."""
        horizon = self._settings.horizon_seconds
        for fired in result.fired:
            entry, firing = planned[fired.schedule_id]
            if firing.due_at is None or firing.next_tick_at is None:
                continue
            if (firing.due_at - result.now).total_seconds() <= horizon:
                due = entry.due._replace(cursor_at=firing.cursor_at, next_tick_at=firing.next_tick_at, due_at=firing.due_at)
                self._index.put(entry._replace(due=due))
        self._put_off([entry for id_, (entry, _) in planned.items() if id_ in result.locked_ids])
        done = {fired.schedule_id for fired in result.fired}
        refused = 0
        for id_, (entry, _) in planned.items():
            if id_ in done or id_ in result.locked_ids:
                continue
            if entry.due_at > result.now:  # not yet due by the database's clock
                self._index.put(entry)
            else:
                refused += 1
        if refused:
            self._is_stale = True
            self._emit(TicksRefused(refused))
        jitters = {id_: _jitter(entry).total_seconds() for id_, (entry, _) in planned.items() if entry.due.jitter_seconds}
        self._publish([firing for _, firing in planned.values() if firing.schedule_id in done], result.fired, jitters)

    def _put_off(self, entries: list[_Entry]) -> None:
        """Try these schedules again soon: another transaction has locked them."""
        monotonic = self._clock.monotonic()
        for entry in entries:
            self._locked.add(entry, monotonic)
        if entries:
            longest, id_ = self._locked.longest(monotonic) or (0.0, entries[0].id)
            self._emit(RowsLocked("tick_fire", len(entries), longest, id_))

    def _publish(self, firings: list[Firing], fired: list[Fired], jitters: Mapping[UUID, float]) -> None:
        expected = {firing.schedule_id: firing.fires for firing in firings}
        lags, skews, already_recorded = [], [], 0
        skipped: Counter[str] = Counter()
        for one in fired:
            tick = expected[one.schedule_id]
            if one.outcome is Outcome.FIRED and tick is not None and one.fired_at is not None:
                lags.append((one.fired_at - tick).total_seconds())
                skews.append(lags[-1] - jitters.get(one.schedule_id, 0.0))
            elif one.reason is not None:
                skipped[one.reason.value] += 1
            elif tick is not None:
                already_recorded += 1
        for firing in firings:
            for skip in firing.skips:
                skipped[skip.reason.value] += skip.count
        if self._event_stream.has_subscribers:
            self._event_stream.publish_ticks(firings, fired)
        self._ownership.fired += len(lags)
        if lags:
            self._emit(TicksFired(lags, skews))
        if skipped:
            self._emit(TicksSkipped(skipped))
        if already_recorded:
            self._emit(TicksAlreadyRecorded(already_recorded))

    async def _mark_faulty(self, faults: Mapping[UUID, str], now: datetime | None) -> None:
        if not faults:
            return
        await self._store.schedule_fault(faults, now=now)
        for schedule_id, reason in faults.items():
            self._emit(ScheduleFaulted(schedule_id, reason))

    def _watch_lag(self, oldest: _Entry, moment: datetime) -> None:
        # A tick that became due while its partition had no owner is a misfire, not lag of this node.
        lag = max(0.0, (moment - max(oldest.due_at, self._owned_since)).total_seconds())
        monotonic = self._clock.monotonic()
        if lag > self._settings.lag_alert_seconds and monotonic - self._alerted_at > _ALERT_INTERVAL_SECONDS:
            self._alerted_at = monotonic
            self._emit(LagHigh(lag, len(self._index)))


def _jitter(entry: _Entry) -> timedelta:
    return jitter_of(entry.id, entry.due.jitter_seconds)


def _batches(entries: list[_Entry], size: int) -> list[list[_Entry]]:
    """Batches of at most `size`. If there are many entries, the first batch is small."""
    first = min(_FIRST_BATCH_SIZE, size) if len(entries) > 2 * _FIRST_BATCH_SIZE else 0
    starts = [*range(first, len(entries), size)]
    return ([entries[:first]] if first else []) + [entries[start : start + size] for start in starts]


def _loaded_until(schedules: list[DueSchedule], limit: int) -> datetime | None:
    """Return the time up to which all due schedules are loaded. None if no partition reached the limit of the scan."""
    loaded: dict[int, list[datetime]] = {}
    for schedule in schedules:
        loaded.setdefault(schedule.partition, []).append(schedule.due_at)
    return min((dues[-1] for dues in loaded.values() if len(dues) >= limit), default=None)
