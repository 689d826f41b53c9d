"""The verbs of the Store contract for schedules, their ticks, the ownership of partitions, calendars and time zones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.audit_findings import AuditFinding, Resolution
from everbeat.core.calendars import Calendar
from everbeat.core.changes import ScheduleWrite
from everbeat.core.ledger_days import DayCounts, LedgerDay
from everbeat.core.schedules import PastRule, Schedule
from everbeat.core.ticks import Tick
from everbeat.store.values import (
    AuditedSchedule,
    DayTotal,
    DueScan,
    FindingFilter,
    FireResult,
    Firing,
    FoundSchedules,
    IdempotentResponse,
    IncompleteDay,
    LoopLease,
    LoopLeaseInfo,
    NodeHeartbeat,
    NodeInfo,
    PartitionInfo,
    PartitionRenewal,
    ScheduleFilter,
    ScheduleWriteResult,
    SuspectTick,
    TickAudit,
    TickTotal,
    ZoneInUse,
    ZoneVersion,
)


class ScheduleVerbs(Protocol):
    """See `Store`."""

    # Schedules

    async def schedule_find(
        self,
        tenant_id: UUID,
        *,
        names: Sequence[str] = (),
        ids: Sequence[UUID] = (),
        key: str | None = None,
        now: datetime | None = None,
    ) -> FoundSchedules:
        """The tenant's schedules with these names or ids, and the response stored under the idempotency key."""

    async def schedule_write(
        self,
        tenant_id: UUID,
        writes: Sequence[ScheduleWrite],
        *,
        response: IdempotentResponse | None = None,
        max_schedules: int | None = None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> ScheduleWriteResult:
        """Write all schedules or none.

        Nothing is written if a row is not as expected, a name is taken or the idempotency key has been used. Raises
        QuotaExceeded if the tenant would have more than `max_schedules`; replaced rows do not count as new.
        """

    async def schedule_list(
        self, tenant_id: UUID, filter_: ScheduleFilter, *, after_name: str | None, limit: int
    ) -> list[Schedule]:
        """The tenant's schedules in order of name, after the given name."""

    async def schedule_match_count(self, tenant_id: UUID, filter_: ScheduleFilter, *, limit: int) -> int:
        """The number of the tenant's schedules that match a filter, up to a limit."""

    async def schedule_search(self, tenant_id: UUID, text: str, *, limit: int) -> list[str]:
        """The names that contain a text, in any case, in order of name. It searches a limited number of names."""

    async def schedule_delete(
        self, tenant_id: UUID, ids: Sequence[UUID], *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> int:
        """Delete schedules. Their ledger is kept."""

    async def schedule_count(self, tenant_id: UUID) -> dict[str, int]:
        """The number of the tenant's schedules by status."""

    async def schedule_due(
        self, partitions: Sequence[int], *, horizon_seconds: float, limit: int, now: datetime | None = None
    ) -> DueScan:
        """Active schedules that are due within the horizon: of each partition the `limit` earliest, in order of due time."""

    async def schedule_fault(self, faults: Mapping[UUID, str], *, now: datetime | None = None) -> int:
        """Pause schedules that cannot be computed or fired, so that they do not affect others, and store the reason."""

    async def schedule_overdue(self, *, late_seconds: float, limit: int, now: datetime | None = None) -> list[Schedule]:
        """Active schedules with a tick that should have fired more than `late_seconds` ago."""

    async def schedule_faulty(self, tenant_id: UUID | None, *, limit: int) -> list[Schedule]:
        """Schedules that were paused because of a fault."""

    async def schedule_is_many(self, tenant_id: UUID, *, than: int) -> bool:
        """Whether the tenant has more than this number of schedules. Reads no more than that."""

    async def schedule_audit(self, *, after: UUID | None, limit: int) -> list[AuditedSchedule]:
        """The rules and cursors of schedules of all tenants in order of id, after the given one."""

    async def schedule_audit_find(self, ids: Sequence[UUID]) -> list[AuditedSchedule]:
        """The same for the schedules with these ids, of any tenant."""

    async def schedule_past_rules(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[PastRule]:
        """The former rules of these schedules, oldest first."""

    # Ticks

    async def tick_fire(self, node_id: UUID, firings: Sequence[Firing], *, now: datetime | None = None) -> FireResult:
        """Fire a batch in one transaction: write ledger rows and tasks, and advance the schedules. One firing per schedule."""

    async def tick_list(self, tenant_id: UUID, schedule_id: UUID, *, from_: datetime, to: datetime, limit: int) -> list[Tick]:
        """Ledger rows of a schedule that overlap [from, to), oldest first."""

    async def tick_recent(self, tenant_id: UUID, ids: Sequence[UUID], *, from_: datetime, limit: int) -> list[Tick]:
        """The `limit` newest ledger rows since `from_` of each of these schedules; the rows of a schedule are oldest first."""

    async def tick_totals(self, tenant_id: UUID, ends: Mapping[UUID, datetime], *, from_: datetime) -> list[TickTotal]:
        """Totals of ledger rows that begin in [from, end), by schedule, outcome and reason. Each schedule has its own end."""

    async def tick_ranges(self, tenant_id: UUID, ends: Mapping[UUID, datetime], *, from_: datetime) -> list[Tick]:
        """Skipped ranges that cross a boundary of [from, end). Each schedule has its own end."""

    async def tick_audit(self, ends: Mapping[UUID, datetime], *, from_: datetime) -> dict[UUID, TickAudit]:
        """What the ledger has in [from, end) of each of these schedules of any tenant. Each schedule has its own end."""

    async def tick_suspect(self, *, since: datetime, late_seconds: float, limit: int) -> list[SuspectTick]:
        """Ticks whose tasks were created since a time, and that are missing in the ledger, doubled or late; the newest first.

        The time is that in the ids of the tasks, from the clocks of the nodes.
        """

    async def tick_day_totals(self, ids: Sequence[UUID], *, from_: datetime, to: datetime) -> list[DayTotal]:
        """Totals of the ledger rows that begin in [from, to) of schedules of any tenant, by outcome and reason."""

    async def tick_day_ranges(self, ids: Sequence[UUID], *, from_: datetime, to: datetime) -> list[Tick]:
        """Skipped ranges that cross a boundary of [from, to), which is within a month, of schedules of any tenant."""

    async def tick_day_doubled(self, ids: Sequence[UUID], *, from_: datetime, to: datetime) -> dict[UUID, int]:
        """The number of ticks in [from, to) with more than one task, of schedules of any tenant."""

    async def tick_window_totals(self, tenant_id: UUID, *, from_: datetime, to: datetime) -> dict[str, int]:
        """The number of ticks in the tenant's ledger rows that begin in [from, to): `fired`, or the reason of a skip."""

    async def tick_doubled(self, tenant_id: UUID, ids: Sequence[UUID], *, from_: datetime, to: datetime) -> dict[UUID, int]:
        """The number of ticks in [from, to) with more than one task, by schedule. There should be none."""

    # The daily roll-up of the ledger

    async def ledger_day_write(self, days: Sequence[LedgerDay]) -> None:
        """Insert or replace rows of the roll-up, and change the sums of the tenants accordingly."""

    async def ledger_day_list(self, tenant_id: UUID, ids: Sequence[UUID], days: Sequence[datetime]) -> dict[UUID, DayCounts]:
        """The sums of each of these schedules over these days. Schedules without ticks are absent."""

    async def ledger_day_find(self, day: datetime, ids: Sequence[UUID]) -> list[LedgerDay]:
        """The rows of schedules of any tenant on a day."""

    async def ledger_day_total(self, tenant_id: UUID, *, from_: datetime, to: datetime) -> DayCounts:
        """The sums of a tenant over the days in [from, to)."""

    async def ledger_day_incomplete(self, *, limit: int) -> list[IncompleteDay]:
        """Days that were not complete when they were counted, of schedules whose cursor has moved since; the oldest first."""

    async def ledger_day_prune(self, *, before: datetime, limit: int) -> int:
        """Delete a limited number of rows of days before a time."""

    # Findings of the auditor, and leases of loops

    async def finding_record(self, findings: Sequence[AuditFinding]) -> list[AuditFinding]:
        """Store findings that are not open yet. Returns the stored ones. A resolved finding is opened again."""

    async def finding_resolve(
        self, resolutions: Mapping[UUID, Resolution], *, now: datetime | None = None
    ) -> list[AuditFinding]:
        """Resolve open findings. Returns those that were open."""

    async def finding_list(self, tenant_id: UUID | None, filter_: FindingFilter, *, limit: int) -> list[AuditFinding]:
        """Findings of a tenant and those of the cluster, or of all tenants (None), newest first."""

    async def finding_open(self, *, after: UUID | None, limit: int) -> list[AuditFinding]:
        """Open findings of all tenants, oldest first, after the given one."""

    async def finding_count(self, *, limit: int) -> dict[str, int]:
        """The number of open findings of all tenants by kind. At most `limit` are counted."""

    async def finding_prune(self, *, age_seconds: float, limit: int, now: datetime | None = None) -> int:
        """Delete findings that were found more than `age_seconds` ago."""

    async def loop_lease_take(
        self, name: str, holder: UUID, *, lease_seconds: float, interval_seconds: float, now: datetime | None = None
    ) -> LoopLease | None:
        """Take the lease of a loop. None if the loop is not due, or if another node has the lease."""

    async def loop_lease_end(
        self, name: str, holder: UUID, *, position: str, interval_seconds: float, now: datetime | None = None
    ) -> bool:
        """End the lease of a loop and store the position. The loop is due again after the interval. False if it was lost."""

    async def loop_lease_list(self) -> list[LoopLeaseInfo]:
        """All loops that have run."""

    # Ownership

    async def partition_renew(
        self, heartbeat: NodeHeartbeat, wanted: frozenset[int], *, now: datetime | None = None
    ) -> PartitionRenewal:
        """Record a heartbeat. Renew wanted partitions, release unwanted ones, and take wanted ones that are free or expired.

        A node whose version is older than the schema gets none.
        """

    async def partition_release(self, node_id: UUID) -> int:
        """Release all partitions of a node, and delete the node."""

    async def partition_list(self) -> list[PartitionInfo]:
        """All partitions with their owners."""

    async def node_list(self, *, now: datetime | None = None) -> tuple[datetime, list[NodeInfo]]:
        """All nodes, and the current time."""

    async def node_prune(self, *, unseen_seconds: float, now: datetime | None = None) -> int:
        """Delete nodes without a heartbeat for `unseen_seconds`."""

    # Calendars

    async def calendar_list(self, tenant_id: UUID) -> list[Calendar]:
        """The tenant's calendars in order of name."""

    async def calendar_write(
        self, tenant_id: UUID, calendar: Calendar, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> bool:
        """Create or replace a calendar. Returns whether it is new."""

    async def calendar_delete(
        self, tenant_id: UUID, name: str, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> int:
        """Delete a calendar."""

    async def schedule_using_calendar(self, tenant_id: UUID, name: str) -> list[Schedule]:
        """Schedules whose rule may refer to the calendar. The caller checks this."""

    # Time zones

    async def schedule_page_end(self, *, after: UUID | None, limit: int) -> UUID | None:
        """The id of the last of the `limit` schedules after the given id, or None if there are none."""

    async def schedule_zones(self, *, after: UUID | None, until: UUID) -> list[ZoneInUse]:
        """The zones of the active schedules after one id and up to another."""

    async def schedule_in_zones(self, zones: Sequence[str], *, after: UUID | None, until: UUID) -> list[Schedule]:
        """Active schedules in a range of ids whose rule may depend on these zones. The caller checks this."""

    async def zone_list(self, names: Sequence[str]) -> list[ZoneVersion]:
        """The versions of these zones that nodes have used, the oldest of each zone first."""

    async def zone_write(self, fingerprints: Mapping[str, str], *, now: datetime | None = None) -> int:
        """Store versions of zones by name, unless they are known. Returns how many are new."""
