"""The verbs of the Store contract for tenants, keys and maintenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.archives import ArchivePage, ArchiveSegment
from everbeat.core.keys import ApiKey
from everbeat.core.retention import MONTH_TABLES, RetentionPeriods, TenantPeriods
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tenants import Tenant
from everbeat.store.values import (
    AuditLogFilter,
    DatabaseFinding,
    IdempotentResponse,
    KeyChange,
    MonthSize,
    TenantPruneStep,
    TenantWrite,
)


class AdministrationVerbs(Protocol):
    """See `Store`."""

    # Tenants

    async def tenant_list(self, *, after_name: str | None, limit: int) -> list[Tenant]:
        """All tenants in order of name, after the given name."""

    async def tenant_find(self, *, ids: Sequence[UUID] = (), names: Sequence[str] = ()) -> list[Tenant]:
        """The tenants with these ids or names."""

    async def tenant_write(
        self,
        writes: Sequence[TenantWrite],
        *,
        response_tenant_id: UUID = DEFAULT_TENANT,
        response: IdempotentResponse | None = None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> bool:
        """Write all tenants or none. Returns whether they were written.

        Nothing is written if a row is not as expected, a name is taken or the idempotency key has been used.
        `response_tenant_id`: the tenant under which the response is stored.
        """

    async def audit_log_list(
        self, tenant_id: UUID | None, filter_: AuditLogFilter, *, before: tuple[datetime, UUID] | None, limit: int
    ) -> list[AuditLogEntry]:
        """Audit log entries of a tenant, or of all (None), newest first."""

    async def audit_log_prune(self, *, before: datetime, limit: int) -> int:
        """Delete audit log entries before that time, the oldest first. Entries of the last 30 days are kept in any case."""

    async def idempotent_response_find(
        self, tenant_id: UUID, key: str, *, now: datetime | None = None
    ) -> IdempotentResponse | None:
        """The response stored under an idempotency key."""

    # API keys

    async def key_find(
        self, *, hashes: Sequence[bytes] = (), ids: Sequence[UUID] = (), now: datetime | None = None
    ) -> tuple[datetime, list[ApiKey]]:
        """The keys with these hashes or ids, including expired and revoked ones, and the current time."""

    async def key_exists(self, *, now: datetime | None = None) -> bool:
        """Whether any usable key exists, other than those of browser sessions."""

    async def key_list(self, tenant_id: UUID | None, *, after: UUID | None, limit: int) -> list[ApiKey]:
        """The keys of a tenant, or of all (None), without browser sessions, in the order of their creation."""

    async def key_create(
        self,
        keys: Sequence[ApiKey],
        *,
        only_first: bool = False,
        response_tenant_id: UUID | None = None,
        response: IdempotentResponse | None = None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> KeyChange:
        """Store all new keys or none. `only_first`: only if no usable key exists yet."""

    async def key_revoke(
        self,
        tenant_id: UUID | None,
        ids: Sequence[UUID],
        *,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> KeyChange:
        """Revoke all of these keys or none, with their browser sessions, of one tenant or of any (None).

        The last usable admin key, and the last one that does not expire, cannot be revoked.
        """

    async def session_prune(self, *, limit: int, now: datetime | None = None) -> int:
        """Delete browser sessions that have expired. Returns their number."""

    async def key_touch(self, ids: Sequence[UUID], *, now: datetime | None = None) -> int:
        """Record that these keys have just been used."""

    # Maintenance

    async def database_findings(self) -> list[DatabaseFinding]:
        """What an operator should know about the tables and indexes: invalid indexes, dead rows, free pages."""

    async def month_ensure(self, months: Sequence[datetime]) -> list[str]:
        """Create the missing tables for rows of these months. Returns the names of the new tables."""

    async def month_prune(self, *, before: datetime, limit: int, tables: Sequence[str] = tuple(MONTH_TABLES)) -> int:
        """Delete a limited part of these tables before that time. Returns the number of deleted months, or rows on SQLite."""

    async def month_sizes(self, *, before: Mapping[str, datetime]) -> list[MonthSize]:
        """What month_prune would delete: the months of tables before these times, with the numbers of rows and bytes."""

    async def tenant_prune(
        self,
        periods: Mapping[UUID, TenantPeriods],
        *,
        position: str | None,
        limit: int,
        now: datetime,
        is_dry_run: bool = False,
    ) -> TenantPruneStep:
        """Read the next part of the ledger and history, about `limit` rows, and delete the old rows of these tenants in it."""

    async def rollback_obstacles(self) -> dict[str, int]:
        """What nodes of 0.1.0 cannot read, with the number of rows; empty if there is nothing."""

    async def fence_raise(self, *, raised_by: int, after: UUID | None, limit: int) -> list[UUID]:
        """Raise the fences of the next live tasks in order of their ids, so that leases from before are refused."""

    async def database_restored(
        self, *, raised_by: int, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> None:
        """Raise the epochs of all partitions, and end the leases of all nodes and loops."""

    async def archive_begin(self, table: str, month: str, claim: UUID, *, now: datetime | None = None) -> ArchiveSegment | None:
        """Claim the part of a month that is archived next. If it has `archived_at`, only its rows are left to be removed.

        None if there is nothing to archive, or if it cannot be claimed now. Rows that are written later are not in the segment.
        """

    async def archive_read(self, segment: ArchiveSegment, *, position: str | None, limit: int) -> ArchivePage | None:
        """The next rows of a segment, about `limit`. None if another process has claimed the segment."""

    async def archive_count(self, segment: ArchiveSegment) -> int:
        """The number of rows of a segment."""

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
        """Record that the file of a segment is complete. False if another process has claimed the segment."""

    async def archive_remove(self, segment: ArchiveSegment, *, limit: int, now: datetime | None = None) -> int:
        """Remove a limited part of an archived segment. Returns a number other than 0 if there may be more."""

    async def past_rule_prune(self, *, before: datetime, limit: int) -> int:
        """Delete former rules of schedules that ended before that time."""

    async def dead_prune(self, *, before: datetime, limit: int) -> int:
        """Delete dead letters of tasks that died before that time."""

    async def prune_count(
        self,
        *,
        periods: RetentionPeriods,
        workers_unseen_seconds: float,
        service_levels: timedelta,
        now: datetime | None = None,
    ) -> dict[str, int]:
        """The number of rows past their retention in the tables that are not kept by month, by table."""

    async def task_key_prune(self, *, limit: int, now: datetime | None = None) -> int:
        """Delete expired idempotency keys of tasks."""

    async def idempotent_response_keep(
        self, tenant_id: UUID, response: IdempotentResponse, *, now: datetime | None = None
    ) -> bool:
        """Store a response under its idempotency key for 24 hours. Returns False if the key has another response."""

    async def idempotent_response_prune(self, *, limit: int, now: datetime | None = None) -> int:
        """Delete expired idempotent responses."""

    async def blob_unused(self, refs: Sequence[str]) -> list[str]:
        """The references among `refs` that no task, finished task or dead letter contains."""
