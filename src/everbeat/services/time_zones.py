"""Watches the tz database: when the rules of a zone change, the next ticks of its schedules are computed again.

The files of the zones in use are compared with those that were read. If the rules of a zone differ, all cached zones and
timelines are dropped, and every schedule whose next tick would be at another instant is moved. A write names the revision and
position that it is based on, and a schedule that has already been moved needs no write, so several nodes may do this at once.

The versions of each zone are stored. A node that starts with a new version checks the schedules too, and so does one that
starts within a day after a change, because a node with the former version may have fired ticks meanwhile. A version that
another one has replaced changes nothing: a node that has not been updated yet must not undo the work of the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
import time
import zoneinfo
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from everbeat.core.errors import InvalidInput
from everbeat.core.rules import TriggerKind
from everbeat.core.schedules import Schedule
from everbeat.core.timeline import TimelineCache
from everbeat.core.triggers import cron, rrule
from everbeat.core.zones import fingerprint_of, forget_zones, load_zone
from everbeat.services.events import Emit, ZonesChanged, ZonesOutdated, ignore
from everbeat.services.loops import Periodic
from everbeat.services.schedules import ScheduleService
from everbeat.store.base import Store

_INTERVAL_SECONDS = 30.0
# A pass over all schedules begins every so many iterations. The first one is made at once, the later ones a page at a time, so
# that their cost does not grow with the number of schedules.
_LIST_EVERY = 20
_FIRST_PAGE, _LATER_PAGE = 50_000, 10_000
_MOVED_PAGE = 1_000
# An iteration that moves schedules ends after this time, long before its deadline, and the next one continues.
_MOVE_SECONDS = 60.0
# After a change, nodes with the former version may fire ticks until all are updated.
_ROLLOUT = timedelta(days=1)


class _Zone(NamedTuple):
    """What was read of a zone: the state and content of its file, the fingerprint of its rules, and of those in use before."""

    stat: tuple[int, int, int]
    content: bytes
    fingerprint: str
    former: str


class TimeZoneWatcher(Periodic):
    """Notices changes of the tz database on this node, and moves the affected schedules."""

    name = "time_zones"
    deadline_seconds = 300.0

    def __init__(self, store: Store, schedules: ScheduleService, timelines: TimelineCache, *, emit: Emit = ignore) -> None:
        super().__init__(_INTERVAL_SECONDS)
        self._store = store
        self._schedules = schedules
        self._timelines = timelines
        self._emit = emit
        self._known: dict[str, _Zone] = {}
        self._in_use: set[str] = set()
        self._runs = 0
        self._has_listed_all = False
        self._listed_until: UUID | None = None
        self._moving: frozenset[str] = frozenset()
        self._moved_until: UUID | None = None
        self._outdated: frozenset[str] = frozenset()

    async def run_once(self, now: datetime | None = None) -> bool:
        await self._list_zones()
        self._runs += 1
        read = await asyncio.to_thread(_read_changed, self._in_use, self._known)
        changed = sorted(name for name, zone in read.items() if zone.fingerprint != zone.former)
        if changed:
            forget_zones()
            self._timelines.clear()
        recent = await self._store_versions(read, now)
        if changed or recent:
            # From the start, also for zones whose schedules are being moved: those before may depend on these as well.
            self._moving, self._moved_until = self._moving | {*changed, *recent}, None
        self._known.update(read)  # last, so that everything is tried again after a failure
        moving = sorted(self._moving)
        moved = await self._move(moving, now)
        if changed or moved:
            self._emit(ZonesChanged(moving, moved))
        return bool(self._moving)

    async def _list_zones(self) -> None:
        """Read the zones of the next page of schedules, or of all schedules after a start."""
        if self._listed_until is None and self._runs % _LIST_EVERY:
            return
        while True:
            limit = _LATER_PAGE if self._has_listed_all else _FIRST_PAGE
            end = await self._store.schedule_page_end(after=self._listed_until, limit=limit)
            if end is None:
                self._listed_until, self._has_listed_all = None, True
                return
            self._in_use |= await self._zones_in_use(self._listed_until, end)
            self._listed_until = end
            if self._has_listed_all:
                return

    async def _zones_in_use(self, after: UUID | None, until: UUID) -> set[str]:
        names = set()
        for zone in await self._store.schedule_zones(after=after, until=until):
            name = zone.timezone
            if zone.trigger_text is not None:
                try:
                    module = cron if zone.kind is TriggerKind.CRON else rrule
                    name = module.effective_zone(zone.trigger_text, zone.timezone)
                except InvalidInput:  # a faulty schedule
                    continue
            names.add(name)
        return names

    async def _store_versions(self, read: Mapping[str, _Zone], now: datetime | None) -> set[str]:
        """Store new versions of zones. Return the zones whose current version is new or recent, and is that of this node."""
        if not read and not self._outdated:
            return set()
        names = sorted({*read, *self._outdated})
        known: dict[str, dict[str, datetime]] = {}
        for version in await self._store.zone_list(names):
            known.setdefault(version.name, {})[version.fingerprint] = version.since
        own = {name: (read.get(name) or self._known[name]).fingerprint for name in names}
        new = {name: fingerprint for name, fingerprint in own.items() if fingerprint not in known.get(name, {})}
        if new:
            await self._store.zone_write(new, now=now)
        outdated = frozenset(
            name for name in names if name not in new and own[name] != max(known[name], key=known[name].__getitem__)
        )
        if outdated - self._outdated:
            self._emit(ZonesOutdated(sorted(outdated)))
        self._outdated = outdated
        moment = await self._store.clock(now=now)
        recent = {
            name for name in read if name not in new and len(known[name]) > 1 and moment - known[name][own[name]] < _ROLLOUT
        }
        return {name for name in (*new, *recent) if name not in outdated and name in read}

    async def _move(self, zones: list[str], now: datetime | None) -> int:
        """Move the schedules in these zones whose next tick has changed, for some time. Returns their number."""
        moved, give_up_at = 0, time.monotonic() + _MOVE_SECONDS
        while self._moving and time.monotonic() < give_up_at:
            end = await self._store.schedule_page_end(after=self._moved_until, limit=_MOVED_PAGE)
            if end is None:
                self._moving, self._moved_until = frozenset(), None
                break
            for schedule in await self._store.schedule_in_zones(zones, after=self._moved_until, until=end):
                moved += await self._move_schedule(schedule, now)
            self._moved_until = end
        return moved

    async def _move_schedule(self, schedule: Schedule, now: datetime | None) -> bool:
        await asyncio.sleep(0)  # the tick loop of this process must not wait
        try:
            return await self._schedules.rezone(schedule, now=now)
        except InvalidInput:  # the zone or the rule is no longer valid: the ticker pauses the schedule with this reason
            return False


def _read_changed(names: Iterable[str], known: Mapping[str, _Zone]) -> dict[str, _Zone]:
    """Read the zones whose files are new or have changed. A file that cannot be read, or only in part, is read next time."""
    changed = {}
    for name in sorted(names):
        try:
            path = _path_of(name)
            status = path.stat()
            stat = (status.st_mtime_ns, status.st_size, status.st_ino)
            before = known.get(name)
            if before is not None and before.stat == stat:
                continue
            content = hashlib.blake2b(path.read_bytes()).digest()
            former = fingerprint_of(load_zone(name)) if before is None else before.fingerprint
            is_same = before is not None and before.content == content
            changed[name] = _Zone(stat, content, former if is_same else fingerprint_of(ZoneInfo.no_cache(name)), former)
        except (OSError, ValueError, IndexError, struct.error, InvalidInput):
            continue
    return changed


def _path_of(name: str) -> Path:
    """Return the file from which zoneinfo would load a zone: of the system, or of the tzdata package."""
    for folder in zoneinfo.TZPATH:
        path = Path(folder, name)
        if path.is_file():
            return path
    return Path(str(resources.files("tzdata.zoneinfo").joinpath(name)))
