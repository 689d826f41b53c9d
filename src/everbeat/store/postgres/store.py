"""The PostgreSQL store: each verb runs the block of its name."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Self, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from everbeat.core.access import AuditLogEntry
from everbeat.core.calendars import Calendar
from everbeat.core.changes import ScheduleWrite
from everbeat.core.errors import EverbeatError, StoreError, StoreRefused, StoreUnavailable, StoreUnusable
from everbeat.core.schedules import PastRule, Schedule, Status
from everbeat.core.ticks import Tick
from everbeat.store.base import Observer
from everbeat.store.migrate import Migration, load_migrations, missing_migrations
from everbeat.store.notices import Notices
from everbeat.store.postgres.audit_log import write_audit_log
from everbeat.store.postgres.connections import (
    LOCKED,
    Connection,
    PostgresConnections,
    execute_on,
    fetch_on,
    is_serialization_failure,
    retry_on_serialization_failure,
)
from everbeat.store.postgres.dead_letters import PostgresDeadLetters
from everbeat.store.postgres.hosts import describe_url
from everbeat.store.postgres.keys import PostgresKeys
from everbeat.store.postgres.tenants import PostgresTenants
from everbeat.store.queries import load_numbered
from everbeat.store.rows import (
    SkipColumns,
    calendar_from_row,
    due_from_rows,
    fire_result_from_rows,
    months_of,
    node_from_row,
    past_rule_from_row,
    schedule_from_row,
    schedule_to_row,
    text_of,
    tick_from_row,
    total_from_row,
)
from everbeat.store.tenant_rows import ScheduleQuota
from everbeat.store.values import (
    DueScan,
    FireResult,
    Firing,
    FoundSchedules,
    IdempotentResponse,
    Listener,
    NodeHeartbeat,
    NodeInfo,
    Notice,
    PartitionInfo,
    PartitionRenewal,
    PoolName,
    ScheduleFilter,
    TickTotal,
)

T = TypeVar("T")

_PACKAGE = "everbeat.store.postgres"
_SLICE = 500
_MIGRATION_SECONDS = 3600
_LOCK_TRIES = 5
_PRUNE_LOCK = "300ms"
_NO_MONTH = "no partition of relation"
# The month is gone, or being detached: two nodes may prune when ownership has just changed hands.
_DROPPED_BY_OTHERS = ("42P01", "55000")
_MONTH_TABLE = re.compile(r"(ticks|task_history|attempts|task_log)_(\d{4})_(\d{2})")


class _Rollback(Exception):
    """Raised inside a transaction to roll it back."""


class PostgresStore(PostgresDeadLetters, PostgresTenants, PostgresKeys):
    """All verbs of the Store contract on PostgreSQL 14 and newer."""

    dialect = "postgres"

    def __init__(self, url: str, *, listen: bool = True, observer: Observer | None = None, **options: Any) -> None:
        self.description = describe_url(url)
        self._connections = PostgresConnections(url, observer=observer, **options)
        self._queries = load_numbered(_PACKAGE)
        self._migrations = load_migrations(_PACKAGE)
        self._notices = Notices(self._send_notice)
        self._message_listeners: list[Callable[[str], None]] = []
        self._listen = listen
        self._listening: asyncio.Task[None] | None = None
        self._observer = observer
        self._months: set[datetime] = set()
        self._pool_name: PoolName = "api"

    def pool(self, pool: PoolName) -> Self:
        view = copy.copy(self)
        view._pool_name = pool
        return view

    async def open(self) -> None:
        if self._listen and self._listening is None:
            self._listening = asyncio.create_task(
                self._connections.listen(self._notices.notify_local, self._on_listen_error, self._on_message)
            )

    async def close(self) -> None:
        with contextlib.suppress(EverbeatError):
            await self._notices.close()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            self._listening = None
        await self._connections.close()

    # Migrations

    async def schema_version(self) -> tuple[int, int]:
        needed = self._migrations[-1].number
        async with self._connections.use(self._pool_name, "migration_version") as connection:
            (row,) = await fetch_on(connection, self._queries["migration_exists"])
            if not row["is_there"]:
                return 0, needed
            (row,) = await fetch_on(connection, self._queries["migration_version"])
            return row["version"], needed

    async def migrate(self) -> list[str]:
        """Each migration commits with its number, so a run that dies half-way goes on where it stopped."""
        applied: list[str] = []
        version, needed = await self.schema_version()
        while version != needed:
            try:
                migration = await self._retry_when_locked(self._migrate_one)
            except StoreUnusable as error:
                if not isinstance(error.__cause__, asyncpg.InsufficientPrivilegeError):
                    raise
                raise StoreUnusable(
                    f"the database is at migration {version} of {needed}, and this role may not change it ({error.__cause__}); "
                    "run everbeat migrate as the role that owns the tables"
                ) from error.__cause__
            if migration is None:
                break
            applied.append(migration.name)
            version = migration.number
        return applied

    async def _migrate_one(self) -> Migration | None:
        async with self._connections.transaction(
            self._pool_name, "migrate", heartbeat_timeout_seconds=_MIGRATION_SECONDS, statement_timeout=f"{_MIGRATION_SECONDS}s"
        ) as connection:
            await fetch_on(connection, self._queries["migration_lock"])
            await connection.execute(self._queries["migration_table"].sql)
            (row,) = await fetch_on(connection, self._queries["migration_version"])
            missing = missing_migrations(self._migrations, row["version"])
            if not missing:
                return None
            await connection.execute(missing[0].sql, timeout=_MIGRATION_SECONDS)
            await execute_on(connection, self._queries["migration_insert"], number=missing[0].number, name=missing[0].name)
            return missing[0]

    async def _retry_when_locked(self, work: Callable[[], Awaitable[T]]) -> T:
        """What needs a lock on a table in use gets it between two statements of the others, or tries again."""
        for _ in range(_LOCK_TRIES - 1):
            try:
                return await work()
            except StoreUnavailable as error:
                if getattr(error.__cause__, "sqlstate", None) != LOCKED:
                    raise
            await asyncio.sleep(random.uniform(0.1, 1.0))
        return await work()

    # Clock and notices

    async def clock(self, *, now: datetime | None = None) -> datetime:
        (row,) = await self._fetch("clock", now=now)
        moment: datetime = row["moment"]
        return moment

    def subscribe(self, listener: Listener) -> None:
        self._notices.subscribe(listener)

    def publish(self, notice: Notice) -> None:
        self._notices.publish(notice)

    def _on_listen_error(self, _error: Exception) -> None:
        if self._observer is not None:
            self._observer("listen", 0.0, True)

    async def _send_notice(self, notice: Notice) -> None:
        with contextlib.suppress(StoreUnavailable):  # a notice is a hint; the next scan finds what it hinted at
            await self._fetch("notice_send", payload=f"{notice.value}:{self._connections.identity}")

    def event_stream_listen(self, on_message: Callable[[str], None]) -> bool:
        self._message_listeners.append(on_message)
        return self._listen

    async def event_stream_send(self, message: str) -> None:
        with contextlib.suppress(StoreUnavailable):  # only news of what the database knows
            await self._fetch("event_stream_send", message=message)

    def _on_message(self, message: str) -> None:
        for on_message in self._message_listeners:
            on_message(message)

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
        async with self._connections.use(self._pool_name, "schedule_find") as connection:
            (moment,) = await fetch_on(connection, self._queries["clock"], now=now)
            rows = await fetch_on(
                connection, self._queries["schedule_find"], tenant_id=tenant_id, names=list(names), ids=list(ids)
            )
            answers = (
                await fetch_on(connection, self._queries["idempotent_response_find"], now=now, tenant_id=tenant_id, key=key)
                if key is not None
                else []
            )
        response = IdempotentResponse(**dict(answers[0])) if answers else None
        return FoundSchedules(moment["moment"], [schedule_from_row(row) for row in rows], response)

    async def schedule_write(
        self,
        tenant_id: UUID,
        writes: Sequence[ScheduleWrite],
        *,
        response: IdempotentResponse | None = None,
        max_schedules: int | None = None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> bool:
        async def write() -> bool:
            try:
                async with self._transaction("schedule_write") as connection:
                    remaining = await self._schedule_quota(connection, tenant_id, writes, max_schedules)
                    await self._write_rows(connection, writes)
                    remaining.check()
                    if paused := [write.schedule.id for write in writes if write.schedule.status is Status.PAUSED]:
                        await execute_on(connection, self._queries["task_hold"], tenant_id=tenant_id, ids=paused)
                    await self._write_past(connection, writes, now)
                    if response is not None:
                        await self._write_response(connection, tenant_id, response, now)
                    await write_audit_log(connection, self._queries, audit_log, now)
            except _Rollback:
                return False
            except StoreUnavailable as error:
                if not is_serialization_failure(error):
                    raise
                return False
            return True

        return await self._with_months([skip.first for write in writes for skip in write.skips], write)

    async def _schedule_quota(
        self, connection: Connection, tenant_id: UUID, writes: Sequence[ScheduleWrite], max_schedules: int | None
    ) -> ScheduleQuota:
        """How many schedules fit, with the tenant locked, so that two who fill the last place wait for each other."""
        new = sum(write.expected is None for write in writes)
        if max_schedules is None or not new:
            return ScheduleQuota(0, 0, None)
        await fetch_on(connection, self._queries["tenant_lock"], tenant_id=tenant_id)
        (row,) = await fetch_on(
            connection, self._queries["schedule_quota_count"], tenant_id=tenant_id, max_schedules=max_schedules
        )
        return ScheduleQuota(row["count"], new, max_schedules)

    async def _write_rows(self, connection: Connection, writes: Sequence[ScheduleWrite]) -> None:
        new = [schedule_to_row(write.schedule) for write in writes if write.expected is None]
        if new and await execute_on(connection, self._queries["schedule_insert"], rows=text_of(new)) != len(new):
            raise _Rollback
        old = [write for write in writes if write.expected is not None]
        if not old:
            return
        expected = [write.expected for write in old if write.expected is not None]
        try:
            changed = await execute_on(
                connection,
                self._queries["schedule_replace"],
                rows=text_of([schedule_to_row(write.schedule) for write in old]),
                ids=[schedule.id for schedule in expected],
                revisions=[schedule.revision for schedule in expected],
                next_ticks=[schedule.next_tick_at for schedule in expected],
                statuses=[schedule.status.value for schedule in expected],
            )
        except asyncpg.UniqueViolationError:  # the new name of one is taken
            raise _Rollback from None
        if changed != len(old):
            raise _Rollback

    async def _write_past(self, connection: Connection, writes: Sequence[ScheduleWrite], now: datetime | None) -> None:
        if skips := SkipColumns.of_writes(writes):
            await execute_on(connection, self._queries["tick_skip"], now=now, **skips.columns)
        past = [write.past_rule for write in writes if write.past_rule is not None]
        if past:
            await execute_on(
                connection,
                self._queries["schedule_past_rule_insert"],
                ids=[rule.schedule_id for rule in past],
                since=[rule.since for rule in past],
                until=[rule.until for rule in past],
                rules=[text_of(rule.rule) for rule in past],
            )

    async def _write_response(
        self, connection: Connection, tenant_id: UUID, response: IdempotentResponse, now: datetime | None
    ) -> None:
        values = msgspec.structs.asdict(response)
        if (
            await execute_on(connection, self._queries["idempotent_response_insert"], now=now, tenant_id=tenant_id, **values)
            != 1
        ):
            raise _Rollback

    async def schedule_list(
        self, tenant_id: UUID, filter_: ScheduleFilter, *, after_name: str | None, limit: int
    ) -> list[Schedule]:
        rows = await self._fetch("schedule_list", tenant_id=tenant_id, after_name=after_name, limit=limit, **filter_._asdict())
        return [schedule_from_row(row) for row in rows]

    async def schedule_delete(
        self, tenant_id: UUID, ids: Sequence[UUID], *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> int:
        return await self._change_with_audit_log("schedule_delete", audit_log, now, tenant_id=tenant_id, ids=list(ids))

    async def schedule_count(self, tenant_id: UUID) -> dict[str, int]:
        rows = await self._fetch("schedule_count", tenant_id=tenant_id)
        return {row["status"]: row["count"] for row in rows}

    async def schedule_due(
        self, partitions: Sequence[int], *, horizon_seconds: float, limit: int, now: datetime | None = None
    ) -> DueScan:
        rows = await self._fetch(
            "schedule_due", now=now, partitions=list(partitions), horizon_seconds=horizon_seconds, limit=limit
        )
        scan = DueScan(rows[0]["moment"], [], {})
        for start in range(0, len(rows), _SLICE):
            schedules, faults = due_from_rows(row for row in rows[start : start + _SLICE] if row["id"] is not None)
            scan.schedules.extend(schedules)
            scan.faults.update(faults)
            await asyncio.sleep(0)  # a big scan must not keep what is due from firing
        return scan

    async def schedule_fault(self, faults: Mapping[UUID, str], *, now: datetime | None = None) -> int:
        return await self._execute("schedule_fault", now=now, ids=list(faults), faults=list(faults.values()))

    async def schedule_overdue(self, *, late_seconds: float, limit: int, now: datetime | None = None) -> list[Schedule]:
        rows = await self._fetch("schedule_overdue", now=now, late_seconds=late_seconds, limit=limit)
        return [schedule_from_row(row) for row in rows]

    async def schedule_faulty(self, tenant_id: UUID | None, *, limit: int) -> list[Schedule]:
        rows = await self._fetch("schedule_faulty", tenant_id=tenant_id, limit=limit)
        return [schedule_from_row(row) for row in rows]

    async def schedule_past_rules(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[PastRule]:
        return [past_rule_from_row(row) for row in await self._fetch("schedule_past_rules", tenant_id=tenant_id, ids=list(ids))]

    async def schedule_using_calendar(self, tenant_id: UUID, name: str) -> list[Schedule]:
        rows = await self._fetch("schedule_using_calendar", tenant_id=tenant_id, name=f'"{name}"')
        return [schedule_from_row(row) for row in rows]

    # Ticks

    async def tick_fire(self, node_id: UUID, firings: Sequence[Firing], *, now: datetime | None = None) -> FireResult:
        skips = SkipColumns.of_firings(firings)
        ids, _, partitions, epochs, revisions, expected, fires, task_ids, cursors, next_ticks, dues, _ = (
            map(list, zip(*firings, strict=True)) if firings else ([] for _ in range(12))
        )

        def fire() -> Awaitable[list[asyncpg.Record]]:
            return self._fetch(
                "tick_fire",
                now=now,
                node=node_id,
                ids=ids,
                partitions=partitions,
                epochs=epochs,
                revisions=revisions,
                expected=expected,
                fires=fires,
                task_ids=task_ids,
                cursors=cursors,
                next_ticks=next_ticks,
                dues=dues,
                **skips.columns,
            )

        rows = await self._with_months([*filter(None, fires), *skips.columns["skip_firsts"]], fire)
        return fire_result_from_rows(rows)

    async def tick_list(self, tenant_id: UUID, schedule_id: UUID, *, from_: datetime, to: datetime, limit: int) -> list[Tick]:
        rows = await self._fetch(
            "tick_list", tenant_id=tenant_id, schedule_id=schedule_id, from_at=from_, to_at=to, limit=limit
        )
        return [tick_from_row(row) for row in rows]

    async def tick_totals(self, tenant_id: UUID, ends: Mapping[UUID, datetime], *, from_: datetime) -> list[TickTotal]:
        rows = await self._fetch("tick_totals", tenant_id=tenant_id, ids=list(ends), ends=list(ends.values()), from_at=from_)
        return [total_from_row(row) for row in rows]

    async def tick_ranges(self, tenant_id: UUID, ends: Mapping[UUID, datetime], *, from_: datetime) -> list[Tick]:
        rows = await self._fetch("tick_ranges", tenant_id=tenant_id, ids=list(ends), ends=list(ends.values()), from_at=from_)
        return [tick_from_row(row) for row in rows]

    async def tick_doubled(self, tenant_id: UUID, ids: Sequence[UUID], *, from_: datetime, to: datetime) -> dict[UUID, int]:
        rows = await self._fetch("tick_doubled", tenant_id=tenant_id, ids=list(ids), from_at=from_, to_at=to)
        return {row["schedule_id"]: row["count"] for row in rows}

    # Ownership

    async def partition_renew(
        self, beat: NodeHeartbeat, wanted: frozenset[int], *, now: datetime | None = None
    ) -> PartitionRenewal:
        (row,) = await self._connections.fetch(
            "lease",
            self._queries["partition_renew"],
            now=now,
            node=beat.id,
            name=beat.name,
            roles=",".join(beat.roles),
            version=beat.version,
            lease_seconds=beat.lease_seconds,
            lag_seconds=beat.lag_seconds,
            fired_per_second=beat.fired_per_second,
            wanted=sorted(wanted),
        )
        owned = dict(zip(row["owned"], row["epochs"], strict=True))
        return PartitionRenewal(row["moment"], owned, frozenset(row["live"]), row["clock_back_seconds"])

    async def partition_release(self, node_id: UUID) -> int:
        async with self._connections.transaction("lease", "partition_release") as connection:
            released = await execute_on(connection, self._queries["partition_release"], node=node_id)
            await execute_on(connection, self._queries["node_delete"], node=node_id)
        return released

    async def partition_list(self) -> list[PartitionInfo]:
        return [PartitionInfo(**row) for row in await self._fetch("partition_list")]

    async def node_list(self, *, now: datetime | None = None) -> tuple[datetime, list[NodeInfo]]:
        rows = await self._fetch("node_list", now=now)
        moment = rows[0]["moment"] if rows else await self.clock(now=now)
        return moment, [node_from_row(row) for row in rows]

    async def node_prune(self, *, unseen_seconds: float, now: datetime | None = None) -> int:
        return await self._execute("node_prune", now=now, unseen_seconds=unseen_seconds)

    # Calendars

    async def calendar_list(self, tenant_id: UUID) -> list[Calendar]:
        rows = await self._fetch("calendar_list", tenant_id=tenant_id)
        return [calendar_from_row(row) for row in rows]

    async def calendar_write(
        self, tenant_id: UUID, calendar: Calendar, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> bool:
        values = {
            "now": now,
            "tenant_id": tenant_id,
            "name": calendar.name,
            "revision": calendar.revision,
            "definition": text_of(calendar.to_definition()),
        }
        async with self._transaction("calendar_write") as connection:
            (row,) = await fetch_on(connection, self._queries["calendar_write"], **values)
            await write_audit_log(connection, self._queries, audit_log, now)
        return bool(row["is_new"])

    async def calendar_delete(
        self, tenant_id: UUID, name: str, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> int:
        return await self._change_with_audit_log("calendar_delete", audit_log, now, tenant_id=tenant_id, name=name)

    # Chores

    async def month_ensure(self, months: Sequence[datetime]) -> list[str]:
        rows = await self._fetch("month_ensure", months=sorted(months_of(months)))
        self._months |= months_of(months)
        return [row["name"] for row in rows]

    async def month_prune(self, *, before: datetime, limit: int) -> int:
        dropped = 0
        for row in await self._fetch("month_list"):
            match = _MONTH_TABLE.fullmatch(row["name"])
            if match is None or (int(match[2]), int(match[3])) >= (before.year, before.month) or dropped >= limit:
                continue
            try:
                is_dropped = await (self._drop_month(match, row) if row["is_mine"] else self._drop_month_as_owner(match))
            except StoreError as error:
                if getattr(error.__cause__, "sqlstate", None) not in _DROPPED_BY_OTHERS:
                    raise
                is_dropped = False
            self._months.clear()
            dropped += is_dropped
        return dropped

    async def _drop_month(self, match: re.Match[str], row: asyncpg.Record) -> bool:
        detach = "month_detach_finish" if row["is_pending"] else "month_detach"
        blocks = [detach, "month_drop"] if row["is_attached"] else ["month_drop"]
        async with self._connections.alone(self._pool_name, "month_prune") as connection:
            for block in blocks:
                sql = self._queries[block].sql.replace("parent_table", match[1])
                await connection.execute(sql.replace("month_table", match[0]))
        return True

    async def _drop_month_as_owner(self, match: re.Match[str]) -> bool:
        """By the function of the tables' owner. It needs the whole ledger for a moment: if it does not get it, later."""

        async def drop() -> None:
            async with self._connections.transaction(self._pool_name, "month_prune", lock_timeout=_PRUNE_LOCK) as connection:
                await fetch_on(connection, self._queries["month_drop_as_owner"], parent=match[1], child=match[0])

        try:
            await self._retry_when_locked(drop)
        except StoreUnavailable as error:
            if getattr(error.__cause__, "sqlstate", None) != LOCKED:
                raise
            return False
        return True

    async def task_key_prune(self, *, limit: int, now: datetime | None = None) -> int:
        return await self._execute("task_key_prune", limit=limit, now=now)

    async def idempotent_response_prune(self, *, limit: int, now: datetime | None = None) -> int:
        return await self._execute("idempotent_response_prune", limit=limit, now=now)

    async def blob_unused(self, refs: Sequence[str]) -> list[str]:
        return [row["ref"] for row in await self._fetch("blob_unused", refs=list(refs))]

    async def _month_cover(self, instants: Iterable[datetime]) -> None:
        """A tick may be of a month that has no table yet: a long outage, a stepped clock, a backfill."""
        missing = months_of(instants) - self._months
        if missing:
            await self.month_ensure(sorted(missing))

    async def _with_months(self, instants: Sequence[datetime], write: Callable[[], Awaitable[T]]) -> T:
        """Write ledger rows of these instants; once more if another node's retention removed a month believed in."""
        await self._month_cover(instants)
        try:
            return await write()
        except StoreRefused as error:
            if _NO_MONTH not in str(error):
                raise
        self._months.clear()
        await self._month_cover(instants)
        return await write()

    async def _this_month(self, now: datetime | None, write: Callable[[], Awaitable[T]]) -> T:
        """Write rows of the present month; which one that is, is asked only when its table is found missing."""
        try:
            return await retry_on_serialization_failure(write)
        except StoreRefused as error:
            if _NO_MONTH not in str(error):
                raise
        self._months.clear()
        return await self._with_months([await self.clock(now=now)], write)

    async def _fetch(self, block: str, /, **values: Any) -> list[asyncpg.Record]:
        return await self._connections.fetch(self._pool_name, self._queries[block], **values)

    async def _execute(self, block: str, /, **values: Any) -> int:
        return await self._connections.execute(self._pool_name, self._queries[block], **values)

    def _transaction(self, verb: str) -> contextlib.AbstractAsyncContextManager[Connection]:
        return self._connections.transaction(self._pool_name, verb)

    async def _change_with_audit_log(
        self, block: str, audit_log: Sequence[AuditLogEntry], now: datetime | None, /, **values: Any
    ) -> int:
        """How many rows the statement changed; the trail is written with it, if there are any."""
        async with self._transaction(block) as connection:
            changed = await execute_on(connection, self._queries[block], **values)
            if changed:
                await write_audit_log(connection, self._queries, audit_log, now)
        return changed
