"""Makes a database that was restored from a backup safe to start nodes on.

Workers and nodes may still run that were given fences and epochs after the backup was made. The restored database does not know
them, and would give the same numbers to others. So all fences and epochs are raised by more than could have been given, and
every lease ends: what has an older number is refused.

The ledger has no rows for the time after the backup, although ticks have fired then. For each schedule, either its catch-up
policy decides about these ticks when nodes start, or they are all recorded as skipped, with a pause that explains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from everbeat.core.access import Caller
from everbeat.core.audit_log import AuditLogAction
from everbeat.core.calendars import Calendar
from everbeat.core.changes import ScheduleChanges, ScheduleWrite
from everbeat.core.errors import Conflict, InvalidInput
from everbeat.core.pauses import Pause, PauseScope
from everbeat.core.schedules import Schedule, Status
from everbeat.core.ticks import SkipReason
from everbeat.core.timeline import TimelineCache
from everbeat.services.audit_log import new_audit_log_entry
from everbeat.services.ids import new_ids
from everbeat.store.base import Store

Gap = Literal["catch-up", "skip"]

# More claims of one task, or changes of owner of one partition, than there can be between a backup and its restore.
RAISED_BY = 1_000_000_000
_BATCH = 5000
_SCHEDULES = 500
_PAUSE_MARGIN = timedelta(seconds=1)
_NOTE = "the database was restored from a backup; ticks of the time that it does not know are not fired again"


class Restored(NamedTuple):
    """`last_seen_at`: the last heartbeat that the database knows, about when the backup was made. None if there was no node."""

    last_seen_at: datetime | None
    now: datetime
    tasks: int
    skipped_schedules: int


class RestoreService:
    def __init__(self, store: Store, timelines: TimelineCache | None = None) -> None:
        self._store = store
        self._changes = ScheduleChanges(timelines or TimelineCache())

    async def restored(self, gap: Gap, *, by: Caller, now: datetime | None = None) -> Restored:
        """Raise fences and epochs, end all leases, and skip the ticks of the gap if it is chosen. Can be repeated."""
        moment, last_seen_at = await self._check_no_node_lives(now)
        tasks = await self._raise_fences()
        detail: dict[str, Any] = {"gap": gap, "tasks": tasks, "raised_by": RAISED_BY}
        entry = new_audit_log_entry(by, AuditLogAction.DATABASE_RESTORED, "database", **detail)
        skipped = await self._skip_gap(last_seen_at, moment, by, now) if gap == "skip" else 0
        await self._store.database_restored(raised_by=RAISED_BY, audit_log=[entry], now=now)
        return Restored(last_seen_at, moment, tasks, skipped)

    async def _check_no_node_lives(self, now: datetime | None) -> tuple[datetime, datetime | None]:
        moment, nodes = await self._store.node_list(now=now)
        alive = [node.name for node in nodes if (moment - node.seen_at).total_seconds() < node.lease_seconds]
        if alive:
            raise Conflict(f"nodes run on this database ({', '.join(alive[:5])}); stop them first, and try again")
        return moment, max((node.seen_at for node in nodes), default=None)

    async def _raise_fences(self) -> int:
        count, after = 0, None
        while True:
            raised = await self._store.fence_raise(raised_by=RAISED_BY, after=after, limit=_BATCH)
            count += len(raised)
            if len(raised) < _BATCH:
                return count
            after = max(raised)

    async def _skip_gap(self, since: datetime | None, moment: datetime, by: Caller, now: datetime | None) -> int:
        count = 0
        while due := await self._store.schedule_overdue(late_seconds=0.0, limit=_SCHEDULES, now=now):
            for tenant_id in {schedule.tenant_id for schedule in due}:
                own = [schedule for schedule in due if schedule.tenant_id == tenant_id]
                count += await self._skip(tenant_id, own, moment, now)
        if since is not None and count:
            await self._explain(since, by, now)
        return count

    async def _explain(self, since: datetime, by: Caller, now: datetime | None) -> None:
        """Record the gap as a pause of everything that has ended, which explains the skipped ticks."""
        end = await self._store.clock(now=now)
        if any(pause.scope is PauseScope.ALL for pause in await self._store.pause_list(None, now=end)):
            return
        (id_,) = new_ids(1)
        # If this process ends between the two writes, the pause ends by itself.
        pause = Pause(id=id_, note=_NOTE, paused_by=by.actor, since_at=since, until_at=end + _PAUSE_MARGIN)
        await self._store.pause_write(pause, now=since)
        await self._store.pause_end(None, None, by.actor, now=end + _PAUSE_MARGIN / 2)

    async def _skip(self, tenant_id: UUID, schedules: Sequence[Schedule], moment: datetime, now: datetime | None) -> int:
        calendars = {calendar.name: calendar for calendar in await self._store.calendar_list(tenant_id)}
        writes: list[ScheduleWrite] = []
        faults: dict[UUID, str] = {}
        for schedule in schedules:
            try:
                writes.append(self._skipped(schedule, moment, calendars))
            except InvalidInput as error:
                faults[schedule.id] = str(error)
        if faults:
            await self._store.schedule_fault(faults, now=now)
        if writes and not await self._store.schedule_write(tenant_id, writes, now=now):
            raise Conflict("a schedule has changed meanwhile; stop all nodes, and try again")
        return len(writes)

    def _skipped(self, schedule: Schedule, moment: datetime, calendars: dict[str, Calendar]) -> ScheduleWrite:
        write = self._changes.reposition(schedule, moment, calendars, status=Status.ACTIVE, note=schedule.note)
        changed = (SkipReason.MISFIRE, SkipReason.ENDED)
        skips = [replace(one, reason=SkipReason.PAUSED) if one.reason in changed else one for one in write.skips]
        return write._replace(skips=tuple(skips))
