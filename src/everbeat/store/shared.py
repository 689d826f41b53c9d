"""Verbs that are the same in both dialects: each runs the block with its name. Also the exception that rolls back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from everbeat.core.access import AuditLogEntry
from everbeat.core.archives import ArchiveSegment
from everbeat.core.audit_findings import AuditFinding
from everbeat.core.bulk import BulkOperation
from everbeat.core.calendars import Calendar
from everbeat.core.keys import ApiKey
from everbeat.core.ledger_days import DayCounts, LedgerDay, day_of
from everbeat.core.pauses import Pause
from everbeat.core.retention import RetentionPeriods
from everbeat.core.rules import TriggerKind
from everbeat.core.schedules import PastRule, Schedule
from everbeat.core.service_levels import LevelBucket, LevelTotal
from everbeat.core.tasks import Attempt, DeadLetter, LeasedTask, LogLine, TaskRecord, TaskState
from everbeat.core.tenants import Tenant
from everbeat.core.ticks import Tick
from everbeat.core.workers import SILENT_SECONDS, WorkerInfo
from everbeat.store.archive_rows import segment_key
from everbeat.store.day_rows import counts_from_row, day_from_row
from everbeat.store.finding_rows import finding_filter_values, finding_from_row
from everbeat.store.key_rows import key_from_row
from everbeat.store.rows import (
    EARLIEST,
    FIRST_ID,
    LAST_ID,
    LATEST,
    MAX_SCANNED,
    Row,
    attempt_from_row,
    audited_from_rows,
    bulk_from_row,
    bulk_to_row,
    calendar_from_row,
    day_total_from_row,
    dead_letter_from_row,
    past_rule_from_row,
    pause_from_row,
    running_from_row,
    schedule_from_row,
    task_from_row,
    tick_from_row,
    total_from_row,
    worker_from_row,
)
from everbeat.store.samples import RunningSample
from everbeat.store.tenant_rows import audit_log_entry_from_row, audit_log_window, tenant_from_row
from everbeat.store.values import (
    AuditedSchedule,
    AuditLogFilter,
    DatabaseFinding,
    DayTotal,
    DeadError,
    DeadFilter,
    FindingFilter,
    FinishedRun,
    IdempotentResponse,
    IncompleteDay,
    LoopLeaseInfo,
    PartitionInfo,
    QueueDepth,
    QueueTasks,
    ScheduleFilter,
    SuspectTick,
    TaskFilter,
    TaskIds,
    TaskMatch,
    TaskScan,
    TickAudit,
    TickTotal,
    WorkerQueue,
    ZoneInUse,
    ZoneVersion,
)

_MAX_NAMES_SEARCHED = 200_000
_TASK_LISTS = {
    True: ("task_list", "task_list_of_schedule", "task_list_floor"),
    False: ("task_list_past", "task_list_past_of_schedule", "task_list_past_floor"),
}


class Rollback(Exception):
    """Raised inside a transaction to roll it back. `result`: the return value of the verb."""

    def __init__(self, result: Any = None) -> None:
        super().__init__()
        self.result = result


class SharedVerbs(ABC):
    """Implements verbs with four operations of the dialect. Lists are passed as lists, and times as datetimes."""

    @abstractmethod
    async def clock(self, *, now: datetime | None = None) -> datetime: ...

    @abstractmethod
    async def _read(self, block: str, /, **values: Any) -> Sequence[Row]:
        """Run a block and return its rows."""

    @abstractmethod
    async def _change(self, block: str, /, **values: Any) -> int:
        """Run a block and return the number of rows that it changed."""

    @abstractmethod
    async def _change_with_audit_log(
        self, block: str, audit_log: Sequence[AuditLogEntry], now: datetime | None, /, **values: Any
    ) -> int:
        """Like `_change`. If the block changes any row, the audit log is written in the same transaction."""

    # Schedules

    async def schedule_list(
        self, tenant_id: UUID, filter_: ScheduleFilter, *, after_name: str | None, limit: int
    ) -> list[Schedule]:
        rows = await self._read("schedule_list", tenant_id=tenant_id, after_name=after_name, limit=limit, **filter_._asdict())
        return [schedule_from_row(row) for row in rows]

    async def schedule_match_count(self, tenant_id: UUID, filter_: ScheduleFilter, *, limit: int) -> int:
        rows = await self._read("schedule_match_count", tenant_id=tenant_id, limit=limit, **filter_._asdict())
        return int(rows[0]["count"])

    async def schedule_search(self, tenant_id: UUID, text: str, *, limit: int) -> list[str]:
        rows = await self._read("schedule_search", tenant_id=tenant_id, text=text, scan=_MAX_NAMES_SEARCHED, limit=limit)
        return [row["name"] for row in rows]

    async def schedule_delete(
        self, tenant_id: UUID, ids: Sequence[UUID], *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> int:
        return await self._change_with_audit_log("schedule_delete", audit_log, now, tenant_id=tenant_id, ids=list(ids))

    async def schedule_count(self, tenant_id: UUID) -> dict[str, int]:
        rows = await self._read("schedule_count", tenant_id=tenant_id)
        return {row["status"]: row["count"] for row in rows}

    async def schedule_overdue(self, *, late_seconds: float, limit: int, now: datetime | None = None) -> list[Schedule]:
        rows = await self._read("schedule_overdue", now=now, late_seconds=late_seconds, limit=limit)
        return [schedule_from_row(row) for row in rows]

    async def schedule_faulty(self, tenant_id: UUID | None, *, limit: int) -> list[Schedule]:
        rows = await self._read("schedule_faulty", tenant_id=tenant_id, limit=limit)
        return [schedule_from_row(row) for row in rows]

    async def schedule_is_many(self, tenant_id: UUID, *, than: int) -> bool:
        return bool((await self._read("schedule_is_many", tenant_id=tenant_id, than=than))[0]["is_many"])

    async def schedule_audit(self, *, after: UUID | None, limit: int) -> list[AuditedSchedule]:
        return audited_from_rows(await self._read("schedule_audit", after=after or FIRST_ID, limit=limit))

    async def schedule_audit_find(self, ids: Sequence[UUID]) -> list[AuditedSchedule]:
        return audited_from_rows(await self._read("schedule_audit_find", ids=list(ids)))

    async def schedule_past_rules(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[PastRule]:
        rows = await self._read("schedule_past_rules", tenant_id=tenant_id, ids=list(ids))
        return [past_rule_from_row(row) for row in rows]

    async def schedule_using_calendar(self, tenant_id: UUID, name: str) -> list[Schedule]:
        rows = await self._read("schedule_using_calendar", tenant_id=tenant_id, name=f'"{name}"')
        return [schedule_from_row(row) for row in rows]

    # Time zones

    async def schedule_page_end(self, *, after: UUID | None, limit: int) -> UUID | None:
        rows = await self._read("schedule_page_end", after=after or FIRST_ID, limit=limit)
        return rows[0]["id"] if rows else None

    async def schedule_zones(self, *, after: UUID | None, until: UUID) -> list[ZoneInUse]:
        rows = await self._read("schedule_zones", after=after or FIRST_ID, until=until)
        return [ZoneInUse(row["timezone"], TriggerKind(row["trigger_kind"]), row["trigger_text"]) for row in rows]

    async def schedule_in_zones(self, zones: Sequence[str], *, after: UUID | None, until: UUID) -> list[Schedule]:
        rows = await self._read("schedule_in_zones", zones=list(zones), after=after or FIRST_ID, until=until)
        return [schedule_from_row(row) for row in rows]

    async def zone_list(self, names: Sequence[str]) -> list[ZoneVersion]:
        rows = await self._read("zone_list", names=list(names))
        return [ZoneVersion(row["name"], row["fingerprint"], row["since"]) for row in rows]

    async def zone_write(self, fingerprints: Mapping[str, str], *, now: datetime | None = None) -> int:
        values = {"names": list(fingerprints), "fingerprints": list(fingerprints.values())}
        return await self._change("zone_write", now=now, **values)

    # Ticks

    async def tick_list(self, tenant_id: UUID, schedule_id: UUID, *, from_: datetime, to: datetime, limit: int) -> list[Tick]:
        values = {"tenant_id": tenant_id, "schedule_id": schedule_id, "from_at": from_, "to_at": to, "limit": limit}
        return [tick_from_row(row) for row in await self._read("tick_list", **values)]

    async def tick_recent(self, tenant_id: UUID, ids: Sequence[UUID], *, from_: datetime, limit: int) -> list[Tick]:
        rows = await self._read("tick_recent", tenant_id=tenant_id, ids=list(ids), from_at=from_, limit=limit)
        return [tick_from_row(row) for row in rows]

    async def tick_totals(self, tenant_id: UUID, ends: Mapping[UUID, datetime], *, from_: datetime) -> list[TickTotal]:
        values = {"tenant_id": tenant_id, "ids": list(ends), "ends": list(ends.values()), "from_at": from_}
        return [total_from_row(row) for row in await self._read("tick_totals", **values)]

    async def tick_ranges(self, tenant_id: UUID, ends: Mapping[UUID, datetime], *, from_: datetime) -> list[Tick]:
        values = {"tenant_id": tenant_id, "ids": list(ends), "ends": list(ends.values()), "from_at": from_}
        return [tick_from_row(row) for row in await self._read("tick_ranges", **values)]

    async def tick_audit(self, ends: Mapping[UUID, datetime], *, from_: datetime) -> dict[UUID, TickAudit]:
        rows = await self._read("tick_audit", ids=list(ends), ends=list(ends.values()), from_at=from_)
        return {row["schedule_id"]: TickAudit(row["recorded"], row["lag_seconds"]) for row in rows}

    async def tick_suspect(self, *, since: datetime, late_seconds: float, limit: int) -> list[SuspectTick]:
        first = UUID(int=int(since.timestamp() * 1000) << 80)
        rows = await self._read("tick_suspect", since=first, late_seconds=late_seconds, limit=limit)
        return [SuspectTick(**row) for row in rows]

    async def tick_day_totals(self, ids: Sequence[UUID], *, from_: datetime, to: datetime) -> list[DayTotal]:
        return [day_total_from_row(row) for row in await self._read("tick_day_totals", ids=list(ids), from_at=from_, to_at=to)]

    async def tick_day_ranges(self, ids: Sequence[UUID], *, from_: datetime, to: datetime) -> list[Tick]:
        values = {"ids": list(ids), "from_at": from_, "to_at": to, "month_at": day_of(from_).replace(day=1)}
        return [tick_from_row(row) for row in await self._read("tick_day_ranges", **values)]

    async def tick_day_doubled(self, ids: Sequence[UUID], *, from_: datetime, to: datetime) -> dict[UUID, int]:
        rows = await self._read("tick_day_doubled", ids=list(ids), from_at=from_, to_at=to)
        return {row["schedule_id"]: row["count"] for row in rows}

    async def tick_window_totals(self, tenant_id: UUID, *, from_: datetime, to: datetime) -> dict[str, int]:
        rows = await self._read("tick_window_totals", tenant_id=tenant_id, from_at=from_, to_at=to)
        return {row["reason"] or row["outcome"]: row["count"] for row in rows}

    async def tick_doubled(self, tenant_id: UUID, ids: Sequence[UUID], *, from_: datetime, to: datetime) -> dict[UUID, int]:
        rows = await self._read("tick_doubled", tenant_id=tenant_id, ids=list(ids), from_at=from_, to_at=to)
        return {row["schedule_id"]: row["count"] for row in rows}

    # The daily roll-up of the ledger

    async def ledger_day_list(self, tenant_id: UUID, ids: Sequence[UUID], days: Sequence[datetime]) -> dict[UUID, DayCounts]:
        rows = await self._read("ledger_day_list", tenant_id=tenant_id, ids=list(ids), days=list(days))
        return {row["schedule_id"]: counts_from_row(row) for row in rows}

    async def ledger_day_find(self, day: datetime, ids: Sequence[UUID]) -> list[LedgerDay]:
        return [day_from_row(row) for row in await self._read("ledger_day_find", day=day, ids=list(ids))]

    async def ledger_day_total(self, tenant_id: UUID, *, from_: datetime, to: datetime) -> DayCounts:
        (row,) = await self._read("ledger_day_total", tenant_id=tenant_id, from_at=from_, to_at=to)
        return counts_from_row(row)

    async def ledger_day_incomplete(self, *, limit: int) -> list[IncompleteDay]:
        return [IncompleteDay(**row) for row in await self._read("ledger_day_incomplete", limit=limit)]

    # Findings of the auditor, and leases of loops

    async def finding_list(self, tenant_id: UUID | None, filter_: FindingFilter, *, limit: int) -> list[AuditFinding]:
        values = {**finding_filter_values(filter_), "limit": limit}
        if tenant_id is None:
            rows = await self._read("finding_list_all", **values)
        else:
            rows = await self._read("finding_list", tenant_id=tenant_id, **values)
        return [finding_from_row(row) for row in rows]

    async def finding_open(self, *, after: UUID | None, limit: int) -> list[AuditFinding]:
        return [finding_from_row(row) for row in await self._read("finding_open", after=after or FIRST_ID, limit=limit)]

    async def finding_count(self, *, limit: int) -> dict[str, int]:
        return {row["kind"]: row["count"] for row in await self._read("finding_count", limit=limit)}

    async def finding_prune(self, *, age_seconds: float, limit: int, now: datetime | None = None) -> int:
        return await self._change("finding_prune", age_seconds=age_seconds, limit=limit, now=now)

    async def loop_lease_end(
        self, name: str, holder: UUID, *, position: str, interval_seconds: float, now: datetime | None = None
    ) -> bool:
        values = {"position": position, "interval_seconds": interval_seconds, "now": now}
        return await self._change("loop_lease_end", name=name, holder=holder, **values) == 1

    async def loop_lease_list(self) -> list[LoopLeaseInfo]:
        return [LoopLeaseInfo(**row) for row in await self._read("loop_lease_list")]

    # Tasks

    async def task_find(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[TaskRecord]:
        return [task_from_row(row) for row in await self._read("task_find", tenant_id=tenant_id, ids=list(ids))]

    async def task_list(self, tenant_id: UUID, filter_: TaskFilter, *, before: UUID | None, limit: int, live: bool) -> TaskScan:
        block, schedule_block, floor_block = _TASK_LISTS[live]
        values = {**filter_._asdict(), "tenant_id": tenant_id, "before": before or LAST_ID, "limit": limit}
        if filter_.schedule_id is not None:
            return TaskScan([task_from_row(row) for row in await self._read(schedule_block, **values)], None)
        floor = None
        if any(value is not None for value in filter_):
            floor_rows = await self._read(floor_block, scan=max(MAX_SCANNED, limit), **values)
            floor = floor_rows[0]["id"] if floor_rows else None
        rows = await self._read(block, floor=floor or FIRST_ID, **values)
        return TaskScan([task_from_row(row) for row in rows], floor if len(rows) < limit else None)

    async def task_attempts(self, tenant_id: UUID, id_: UUID) -> list[Attempt]:
        return [attempt_from_row(row) for row in await self._read("task_attempts", tenant_id=tenant_id, id=id_)]

    async def task_log(self, tenant_id: UUID, id_: UUID, *, after: UUID | None, limit: int) -> list[LogLine]:
        rows = await self._read("task_log", tenant_id=tenant_id, id=id_, after=after or FIRST_ID, limit=limit)
        return [LogLine(**row) for row in rows]

    async def task_ticks(self, tenant_id: UUID, schedule_id: UUID, *, from_: datetime, to: datetime) -> list[datetime]:
        rows = await self._read("task_ticks", tenant_id=tenant_id, schedule_id=schedule_id, from_at=from_, to_at=to)
        return [row["scheduled_for"] for row in rows]

    async def task_runs(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[FinishedRun]:
        rows = await self._read("task_runs", tenant_id=tenant_id, ids=list(ids))
        return [FinishedRun(**{**row, "state": TaskState(row["state"])}) for row in rows]

    async def task_ready_count(
        self, tenant_id: UUID, *, limit: int, soon_seconds: float = 0.0, now: datetime | None = None
    ) -> int:
        (row,) = await self._read("task_ready_count", tenant_id=tenant_id, limit=limit, soon_seconds=soon_seconds, now=now)
        return int(row["count"])

    async def task_position(
        self, tenant_id: UUID, queue: str, *, priority: int, run_at: datetime, id_: UUID, limit: int
    ) -> tuple[int, int]:
        (row,) = await self._read(
            "task_position", tenant_id=tenant_id, queue=queue, priority=priority, run_at=run_at, id=id_, limit=limit
        )
        return int(row["ahead"]), int(row["examined"])

    async def database_findings(self) -> list[DatabaseFinding]:
        return [DatabaseFinding(**row) for row in await self._read("database_findings")]

    async def task_depths(self, tenant_id: UUID | None = None) -> list[QueueDepth]:
        return [QueueDepth(**row) for row in await self._read("task_depths", tenant_id=tenant_id)]

    async def task_queue_list(self, tenant_id: UUID) -> list[QueueTasks]:
        return [QueueTasks(**row) for row in await self._read("task_queue_list", tenant_id=tenant_id)]

    async def task_queues(self, ids: Sequence[UUID]) -> dict[UUID, str]:
        return {row["id"]: row["queue"] for row in await self._read("task_queues", ids=list(ids))}

    async def task_targets(self, ids: Sequence[UUID]) -> dict[UUID, str]:
        return {row["id"]: row["target"] for row in await self._read("task_targets", ids=list(ids))}

    async def task_expired(self, *, limit: int, now: datetime | None = None) -> tuple[datetime, list[LeasedTask]]:
        moment = await self.clock(now=now)
        return moment, [running_from_row(row) for row in await self._read("task_expired", limit=limit, now=now)]

    async def task_shorten_leases(self, *, limit: int, now: datetime | None = None) -> int:
        # A read first: it almost never finds anything, and should not keep the writer of SQLite busy.
        ids = [row["id"] for row in await self._read("task_leases_ahead", limit=limit, now=now)]
        return await self._change("task_shorten_leases", ids=ids, now=now) if ids else 0

    # Dead letters

    async def dead_find(self, tenant_id: UUID, task_ids: Sequence[UUID]) -> list[DeadLetter]:
        rows = await self._read("dead_find", tenant_id=tenant_id, task_ids=list(task_ids))
        return [dead_letter_from_row(row) for row in rows]

    async def dead_list(
        self,
        tenant_id: UUID,
        filter_: DeadFilter,
        *,
        before: tuple[datetime, UUID] | None,
        limit: int,
        only_never_replayed: bool = False,
    ) -> list[DeadLetter]:
        before_at, before_id = before or (LATEST, LAST_ID)
        rows = await self._read(
            "dead_list",
            **_dead_filter(filter_),
            tenant_id=tenant_id,
            before_at=before_at,
            before_id=before_id,
            limit=limit,
            only_never_replayed=only_never_replayed,
        )
        return [dead_letter_from_row(row) for row in rows]

    async def dead_errors(self, tenant_id: UUID, filter_: DeadFilter, *, limit: int) -> list[DeadError]:
        rows = await self._read("dead_errors", **_dead_filter(filter_), tenant_id=tenant_id, limit=limit)
        return [DeadError(**{**row, "is_replayed": bool(row["is_replayed"])}) for row in rows]

    async def dead_purge(
        self,
        tenant_id: UUID,
        filter_: DeadFilter,
        *,
        limit: int,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> int:
        values = {**_dead_filter(filter_), "tenant_id": tenant_id, "limit": limit, "now": now}
        return await self._change_with_audit_log("dead_purge", audit_log, now, **values)

    # Partitions, calendars, tenants, keys

    async def partition_list(self) -> list[PartitionInfo]:
        return [PartitionInfo(**row) for row in await self._read("partition_list")]

    async def node_prune(self, *, unseen_seconds: float, now: datetime | None = None) -> int:
        return await self._change("node_prune", now=now, unseen_seconds=unseen_seconds)

    async def worker_list(
        self, tenant_id: UUID, *, queue: str | None = None, before: tuple[datetime, UUID] | None = None, limit: int
    ) -> list[WorkerInfo]:
        before_at, before_id = before or (LATEST, LAST_ID)
        values = {"queue": queue, "before_at": before_at, "before_id": before_id, "limit": limit}
        return [worker_from_row(row) for row in await self._read("worker_list", tenant_id=tenant_id, **values)]

    async def worker_queues(self, tenant_id: UUID, *, now: datetime | None = None) -> list[WorkerQueue]:
        rows = await self._read("worker_queues", tenant_id=tenant_id, silent_seconds=SILENT_SECONDS, now=now)
        return [WorkerQueue(**row) for row in rows]

    async def worker_running(self, tenant_id: UUID, workers: Sequence[str]) -> dict[str, int]:
        rows = await self._read("worker_running", tenant_id=tenant_id, workers=list(workers))
        return {row["worker"]: row["count"] for row in rows}

    async def worker_prune(self, *, unseen_seconds: float, keep: int, limit: int, now: datetime | None = None) -> int:
        return await self._change("worker_prune", unseen_seconds=unseen_seconds, keep=keep, limit=limit, now=now)

    async def bulk_write(
        self, operation: BulkOperation, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> bool:
        return await self._change_with_audit_log("bulk_write", audit_log, now, **bulk_to_row(operation), now=now) == 1

    async def bulk_find(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[BulkOperation]:
        return [bulk_from_row(row) for row in await self._read("bulk_find", tenant_id=tenant_id, ids=list(ids))]

    async def bulk_list(
        self, tenant_id: UUID, *, before: tuple[datetime, UUID] | None = None, limit: int
    ) -> list[BulkOperation]:
        before_at, before_id = before or (LATEST, LAST_ID)
        values = {"before_at": before_at, "before_id": before_id, "limit": limit}
        return [bulk_from_row(row) for row in await self._read("bulk_list", tenant_id=tenant_id, **values)]

    async def bulk_cancel(
        self, tenant_id: UUID, id_: UUID, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> bool:
        return await self._change_with_audit_log("bulk_cancel", audit_log, now, tenant_id=tenant_id, id=id_, now=now) == 1

    async def bulk_prune(self, *, finished_seconds: float, limit: int, now: datetime | None = None) -> int:
        return await self._change("bulk_prune", finished_seconds=finished_seconds, limit=limit, now=now)

    async def task_match(self, tenant_id: UUID, filter_: TaskMatch, *, before: UUID | None, limit: int, live: bool) -> TaskIds:
        block, floor_block = ("task_match", "task_list_floor") if live else ("task_match_past", "task_list_past_floor")
        values = {**filter_._asdict(), "tenant_id": tenant_id, "before": before or LAST_ID, "limit": limit}
        values |= {"from_at": filter_.from_at or EARLIEST, "to_at": filter_.to_at or LATEST}
        floor_rows = await self._read(floor_block, scan=max(MAX_SCANNED, limit), **values)
        floor = floor_rows[0]["id"] if floor_rows else None
        ids = [row["id"] for row in await self._read(block, floor=floor or FIRST_ID, **values)]
        return TaskIds(ids, ids[-1] if len(ids) == limit else floor)

    async def pause_list(self, tenant_id: UUID | None, *, now: datetime | None = None) -> list[Pause]:
        return [pause_from_row(row) for row in await self._read("pause_list", tenant_id=tenant_id, now=now)]

    async def pause_find(self, tenant_id: UUID, queue: str, at: datetime) -> list[Pause]:
        return [pause_from_row(row) for row in await self._read("pause_find", tenant_id=tenant_id, queue=queue, at=at)]

    async def pause_prune(self, *, ended_seconds: float, limit: int, now: datetime | None = None) -> int:
        return await self._change("pause_prune", ended_seconds=ended_seconds, limit=limit, now=now)

    async def calendar_list(self, tenant_id: UUID) -> list[Calendar]:
        return [calendar_from_row(row) for row in await self._read("calendar_list", tenant_id=tenant_id)]

    async def calendar_delete(
        self, tenant_id: UUID, name: str, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> int:
        return await self._change_with_audit_log("calendar_delete", audit_log, now, tenant_id=tenant_id, name=name)

    async def tenant_list(self, *, after_name: str | None, limit: int) -> list[Tenant]:
        return [tenant_from_row(row) for row in await self._read("tenant_list", after_name=after_name or "", limit=limit)]

    async def tenant_find(self, *, ids: Sequence[UUID] = (), names: Sequence[str] = ()) -> list[Tenant]:
        return [tenant_from_row(row) for row in await self._read("tenant_find", ids=list(ids), names=list(names))]

    async def archive_finish(
        self,
        segment: ArchiveSegment,
        *,
        rows: int,
        first_at: datetime | None,
        last_at: datetime | None,
        file_bytes: int,
        now: datetime | None = None,
    ) -> bool:
        changed = await self._change(
            "archive_finish",
            **segment_key(segment),
            claim=segment.claim,
            row_count=rows,
            first_at=first_at,
            last_at=last_at,
            file=segment.file,
            file_bytes=file_bytes,
            now=now,
        )
        return changed == 1

    async def rollback_obstacles(self) -> dict[str, int]:
        return {row["name"]: row["count"] for row in await self._read("rollback_obstacles") if row["count"]}

    async def past_rule_prune(self, *, before: datetime, limit: int) -> int:
        return await self._change("past_rule_prune", before_at=before, limit=limit)

    async def dead_prune(self, *, before: datetime, limit: int) -> int:
        return await self._change("dead_prune", before_at=before, limit=limit)

    async def prune_count(
        self,
        *,
        periods: RetentionPeriods,
        workers_unseen_seconds: float,
        service_levels: timedelta,
        now: datetime | None = None,
    ) -> dict[str, int]:
        moment = await self.clock(now=now)
        rows = await self._read(
            "prune_count",
            now=moment,
            ledger_before=moment - periods.ledger,
            history_before=moment - periods.history,
            audit_before=moment - periods.audit_log,
            dead_before=EARLIEST if periods.dead_letters is None else moment - periods.dead_letters,
            workers_before=moment - timedelta(seconds=workers_unseen_seconds),
            levels_before=moment - service_levels,
        )
        return {row["name"]: row["count"] for row in rows}

    async def audit_log_list(
        self, tenant_id: UUID | None, filter_: AuditLogFilter, *, before: tuple[datetime, UUID] | None, limit: int
    ) -> list[AuditLogEntry]:
        window = audit_log_window(filter_, before)
        if tenant_id is None:
            rows = await self._read("audit_log_list_all", limit=limit, **window)
        else:
            rows = await self._read("audit_log_list", tenant_id=tenant_id, limit=limit, **window)
        return [audit_log_entry_from_row(row) for row in rows]

    async def key_exists(self, *, now: datetime | None = None) -> bool:
        return bool((await self._read("key_exists", now=now))[0]["is_there"])

    async def key_list(self, tenant_id: UUID | None, *, after: UUID | None, limit: int) -> list[ApiKey]:
        rows = await self._read("key_list", tenant_id=tenant_id, after=after or FIRST_ID, limit=limit)
        return [key_from_row(row) for row in rows]

    async def session_prune(self, *, limit: int, now: datetime | None = None) -> int:
        return await self._change("session_prune", limit=limit, now=now)

    async def key_touch(self, ids: Sequence[UUID], *, now: datetime | None = None) -> int:
        return await self._change("key_touch", ids=list(ids), now=now)

    # Samples for metrics

    async def _read_sample(self, block: str, /, **values: Any) -> Sequence[Any]:
        return await self._read(block, **values)

    async def sample_waiting(self, *, limit: int) -> dict[str, int]:
        return {row["state"]: row["count"] for row in await self._read_sample("sample_waiting", limit=limit)}

    async def sample_running(self, *, near_ratio: float, limit: int, now: datetime | None = None) -> list[RunningSample]:
        rows = await self._read_sample("sample_running", near_ratio=near_ratio, limit=limit, now=now)
        return [RunningSample(**row) for row in rows]

    async def sample_workers(self, *, limit: int, now: datetime | None = None) -> dict[str, int]:
        rows = await self._read("sample_workers", silent_seconds=SILENT_SECONDS, limit=limit, now=now)
        return {row["queue"]: row["workers"] for row in rows}

    # Service levels

    async def service_level_list(self, from_at: datetime) -> list[LevelBucket]:
        return [LevelBucket(**row) for row in await self._read("service_level_list", from_at=from_at)]

    async def service_level_total(self, from_at: datetime, before_at: datetime) -> LevelTotal | None:
        (row,) = await self._read("service_level_total", from_at=from_at, before_at=before_at)
        return None if row["first_at"] is None else LevelTotal(**row)

    async def service_level_prune(self, *, before: datetime, limit: int) -> int:
        return await self._change("service_level_prune", before_at=before, limit=limit)

    # Maintenance

    async def idempotent_response_find(
        self, tenant_id: UUID, key: str, *, now: datetime | None = None
    ) -> IdempotentResponse | None:
        rows = await self._read("idempotent_response_find", tenant_id=tenant_id, key=key, now=now)
        return IdempotentResponse(**dict(rows[0])) if rows else None

    async def idempotent_response_keep(
        self, tenant_id: UUID, response: IdempotentResponse, *, now: datetime | None = None
    ) -> bool:
        values = {**msgspec.structs.asdict(response), "tenant_id": tenant_id, "now": now}
        return await self._change("idempotent_response_keep", **values) == 1

    async def idempotent_response_prune(self, *, limit: int, now: datetime | None = None) -> int:
        return await self._change("idempotent_response_prune", limit=limit, now=now)

    async def task_key_prune(self, *, limit: int, now: datetime | None = None) -> int:
        return await self._change("task_key_prune", limit=limit, now=now)

    async def blob_unused(self, refs: Sequence[str]) -> list[str]:
        return [row["ref"] for row in await self._read("blob_unused", refs=list(refs))]


def _dead_filter(filter_: DeadFilter) -> dict[str, Any]:
    task_ids = None if filter_.task_ids is None else list(filter_.task_ids)
    from_at, to_at = filter_.from_at or EARLIEST, filter_.to_at or LATEST
    return {**filter_._asdict(), "from_at": from_at, "to_at": to_at, "task_ids": task_ids}
