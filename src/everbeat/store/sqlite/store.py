"""The SQLite store: each verb runs the block of its name, writes in one immediate transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import msgspec

from everbeat.core.access import AuditLogEntry
from everbeat.core.calendars import Calendar
from everbeat.core.changes import ScheduleWrite
from everbeat.core.errors import StoreRefused
from everbeat.core.schedules import PastRule, Schedule, Status
from everbeat.core.ticks import Outcome, Skip, SkipReason, Tick
from everbeat.store.base import Observer
from everbeat.store.migrate import load_migrations, missing_migrations
from everbeat.store.notices import Notices
from everbeat.store.queries import load_blocks
from everbeat.store.rows import (
    calendar_from_row,
    due_from_rows,
    node_from_row,
    past_rule_from_row,
    schedule_from_row,
    schedule_to_row,
    text_of,
    tick_from_row,
    total_from_row,
)
from everbeat.store.sqlite.audit_log import write_audit_log
from everbeat.store.sqlite.connections import (
    Row,
    SqliteConnections,
    SqliteSession,
    from_microseconds,
    hex_text,
    to_microseconds,
)
from everbeat.store.sqlite.dead_letters import SqliteDeadLetters
from everbeat.store.sqlite.keys import SqliteKeys
from everbeat.store.sqlite.tenants import SqliteTenants
from everbeat.store.tenant_rows import ScheduleQuota
from everbeat.store.values import (
    DueScan,
    Fired,
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

_PACKAGE = "everbeat.store.sqlite"
_NAME_TAKEN = "UNIQUE constraint failed: schedules.tenant_id, schedules.name"


# What became of a firing: outcome, reason and moment of its ledger row; none if the ledger held it already.
_FATES: dict[str, Callable[[datetime], tuple[Outcome | None, SkipReason | None, datetime | None]]] = {
    "ready": lambda moment: (Outcome.FIRED, None, moment),
    "held": lambda moment: (Outcome.FIRED, None, moment),
    "overlap": lambda moment: (Outcome.SKIPPED, SkipReason.OVERLAP, moment),
    "known": lambda _moment: (None, None, None),
}


class _Rollback(Exception):
    """Raised inside a transaction to roll it back."""


def _hex_ends(ends: Mapping[UUID, datetime]) -> str:
    return text_of([[id_.hex, to_microseconds(end)] for id_, end in ends.items()])


class SqliteStore(SqliteDeadLetters, SqliteTenants, SqliteKeys):
    """All verbs of the Store contract on one SQLite file. Its clock is the machine's."""

    dialect = "sqlite"

    def __init__(self, path: str | Path, *, observer: Observer | None = None) -> None:
        self.description = str(path)
        self._path = Path(path)
        self._sql = load_blocks(_PACKAGE)
        self._migrations = load_migrations(_PACKAGE)
        self._connections = SqliteConnections(Path(path), on_writer=self._sql["tick_fire_table"], observer=observer)
        self._notices = Notices()

    async def open(self) -> None:
        if self._path.exists():
            await self._connections.read("open", lambda session: session.rows(self._sql["migration_exists"]))

    async def close(self) -> None:
        await self._notices.close()
        await self._connections.close()

    # Migrations

    async def schema_version(self) -> tuple[int, int]:
        if not self._path.exists():
            return 0, self._migrations[-1].number

        def work(session: SqliteSession) -> int:
            if not session.rows(self._sql["migration_exists"])[0]["is_there"]:
                return 0
            return int(session.rows(self._sql["migration_version"])[0]["version"])

        return await self._connections.read("migration_version", work), self._migrations[-1].number

    async def migrate(self) -> list[str]:
        def work(session: SqliteSession) -> list[str]:
            session.script(self._sql["migration_table"])
            version = int(session.rows(self._sql["migration_version"])[0]["version"])
            missing = missing_migrations(self._migrations, version)
            for migration in missing:
                session.script(migration.sql)
                noted = {"number": migration.number, "name": migration.name, "now": self._moment(None)}
                session.change(self._sql["migration_insert"], noted)
            return [migration.name for migration in missing]

        return await self._connections.write("migrate", work)

    # Clock and notices

    def _moment(self, now: datetime | None) -> datetime:
        return now if now is not None else from_microseconds(time.time_ns() // 1000)

    async def clock(self, *, now: datetime | None = None) -> datetime:
        return self._moment(now)

    def subscribe(self, listener: Listener) -> None:
        self._notices.subscribe(listener)

    def publish(self, notice: Notice) -> None:
        self._notices.publish(notice)

    def pool(self, pool: PoolName) -> Self:
        """One writer is all that there is."""
        return self

    def event_stream_listen(self, _on_message: Callable[[str], None]) -> bool:
        return False

    async def event_stream_send(self, _message: str) -> None:
        """Nobody could hear it."""

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
        moment = self._moment(now)

        def work(session: SqliteSession) -> tuple[list[Row], list[Row]]:
            wanted = {"tenant_id": tenant_id, "names": text_of(list(names)), "ids": hex_text(ids)}
            found = session.rows(self._sql["schedule_find"], wanted)
            if key is None:
                return found, []
            return found, session.rows(
                self._sql["idempotent_response_find"], {"tenant_id": tenant_id, "key": key, "now": moment}
            )

        rows, answers = await self._connections.read("schedule_find", work)
        response = IdempotentResponse(**answers[0]) if answers else None
        return FoundSchedules(moment, [schedule_from_row(row) for row in rows], response)

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
        def work(session: SqliteSession) -> None:
            moment = self._moment(now)
            remaining = self._schedule_quota(session, tenant_id, writes, max_schedules)
            self._write_rows(session, writes)
            remaining.check()
            if paused := [write.schedule.id for write in writes if write.schedule.status is Status.PAUSED]:
                session.change(self._sql["task_hold"], {"tenant_id": tenant_id, "ids": hex_text(paused)})
            self._write_past(session, writes, moment)
            if response is not None:
                values = {**msgspec.structs.asdict(response), "tenant_id": tenant_id, "now": moment}
                if session.change(self._sql["idempotent_response_insert"], values) != 1:
                    raise _Rollback
            write_audit_log(session, self._sql, audit_log, moment)

        try:
            await self._connections.write("schedule_write", work)
        except _Rollback:
            return False
        except StoreRefused as error:
            if _NAME_TAKEN not in str(error):
                raise
            return False
        return True

    def _schedule_quota(
        self, session: SqliteSession, tenant_id: UUID, writes: Sequence[ScheduleWrite], max_schedules: int | None
    ) -> ScheduleQuota:
        new = sum(write.expected is None for write in writes)
        if max_schedules is None or not new:
            return ScheduleQuota(0, 0, None)
        (row,) = session.rows(self._sql["schedule_quota_count"], {"tenant_id": tenant_id, "max_schedules": max_schedules})
        return ScheduleQuota(row["count"], new, max_schedules)

    def _write_rows(self, session: SqliteSession, writes: Sequence[ScheduleWrite]) -> None:
        new = [schedule_to_row(write.schedule) for write in writes if write.expected is None]
        if session.change_many(self._sql["schedule_insert"], new) != len(new):
            raise _Rollback
        old = [
            {
                **schedule_to_row(write.schedule),
                "expected_revision": write.expected.revision,
                "expected_status": write.expected.status.value,
                "expected_next_tick_at": write.expected.next_tick_at,
            }
            for write in writes
            if write.expected is not None
        ]
        if session.change_many(self._sql["schedule_replace"], old) != len(old):
            raise _Rollback

    def _write_past(self, session: SqliteSession, writes: Sequence[ScheduleWrite], moment: datetime) -> None:
        for write in writes:
            self._skip(session, write.schedule.id, write.skips, moment, None, None)
        past = [
            {
                "schedule_id": write.past_rule.schedule_id,
                "since": write.past_rule.since,
                "until": write.past_rule.until,
                "rule": text_of(write.past_rule.rule),
            }
            for write in writes
            if write.past_rule is not None
        ]
        session.change_many(self._sql["schedule_past_rule_insert"], past)

    def _skip(
        self,
        session: SqliteSession,
        schedule_id: UUID,
        skips: Sequence[Skip],
        moment: datetime,
        node: UUID | None,
        epoch: int | None,
    ) -> None:
        beside = {"schedule_id": schedule_id, "now": moment, "node": node, "epoch": epoch}
        if skips:
            session.change_many(self._sql["tick_skip"], [{**msgspec.structs.asdict(skip), **beside} for skip in skips])

    async def schedule_list(
        self, tenant_id: UUID, filter_: ScheduleFilter, *, after_name: str | None, limit: int
    ) -> list[Schedule]:
        rows = await self._read("schedule_list", tenant_id=tenant_id, after_name=after_name, limit=limit, **filter_._asdict())
        return [schedule_from_row(row) for row in rows]

    async def schedule_delete(
        self, tenant_id: UUID, ids: Sequence[UUID], *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> int:
        return await self._change_with_audit_log("schedule_delete", audit_log, now, tenant_id=tenant_id, ids=hex_text(ids))

    async def schedule_count(self, tenant_id: UUID) -> dict[str, int]:
        rows = await self._read("schedule_count", tenant_id=tenant_id)
        return {row["status"]: row["count"] for row in rows}

    async def schedule_due(
        self, partitions: Sequence[int], *, horizon_seconds: float, limit: int, now: datetime | None = None
    ) -> DueScan:
        moment = self._moment(now)

        def work(session: SqliteSession) -> DueScan:
            scan = DueScan(moment, [], {})
            values = {"now": moment, "horizon_seconds": horizon_seconds, "limit": limit}
            for partition in partitions:
                rows = session.rows(self._sql["schedule_due"], {**values, "partition": partition})
                schedules, faults = due_from_rows(rows)
                scan.schedules.extend(schedules)
                scan.faults.update(faults)
            return scan

        return await self._connections.read("schedule_due", work)

    async def schedule_fault(self, faults: Mapping[UUID, str], *, now: datetime | None = None) -> int:
        values = [{"id": id_, "fault": fault, "now": self._moment(now)} for id_, fault in faults.items()]
        return await self._connections.write(
            "schedule_fault", lambda session: session.change_many(self._sql["schedule_fault"], values)
        )

    async def schedule_overdue(self, *, late_seconds: float, limit: int, now: datetime | None = None) -> list[Schedule]:
        rows = await self._read("schedule_overdue", now=self._moment(now), late_seconds=late_seconds, limit=limit)
        return [schedule_from_row(row) for row in rows]

    async def schedule_faulty(self, tenant_id: UUID | None, *, limit: int) -> list[Schedule]:
        rows = await self._read("schedule_faulty", tenant_id=tenant_id, limit=limit)
        return [schedule_from_row(row) for row in rows]

    async def schedule_past_rules(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[PastRule]:
        return [
            past_rule_from_row(row) for row in await self._read("schedule_past_rules", tenant_id=tenant_id, ids=hex_text(ids))
        ]

    async def schedule_using_calendar(self, tenant_id: UUID, name: str) -> list[Schedule]:
        rows = await self._read("schedule_using_calendar", tenant_id=tenant_id, name=f'"{name}"')
        return [schedule_from_row(row) for row in rows]

    # Ticks

    async def tick_fire(self, node_id: UUID, firings: Sequence[Firing], *, now: datetime | None = None) -> FireResult:
        by_key = {one.schedule_id.bytes: one for one in firings}

        def work(session: SqliteSession) -> tuple[datetime, list[tuple[Any, ...]], list[tuple[Any, ...]]]:
            moment = self._moment(now)
            at = {"now": moment, "node": node_id}
            session.change(self._sql["tick_fire_clear"])
            session.change_many(
                self._sql["tick_fire_input"],
                [
                    (key, one.partition, one.epoch, one.revision, one.expected, one.fires, one.task_id.bytes)
                    for key, one in by_key.items()
                ],
            )
            session.change(self._sql["tick_fire_guard"], at)
            session.change(self._sql["tick_fire_decide"])
            session.change(self._sql["tick_fire_ledger"], at)
            session.change(self._sql["tick_fire_tasks"], at)
            results = session.tuples(self._sql["tick_fire_result"])
            queues = session.tuples(self._sql["tick_fire_queues"])
            self._advance(session, [(key, by_key[key]) for key, _ in results], moment, node_id)
            return moment, results, queues

        moment, results, queues = await self._connections.write("tick_fire", work)
        return FireResult(
            moment,
            [Fired(by_key[key].schedule_id, *_FATES[fate](moment)) for key, fate in results],
            frozenset(queue for (queue,) in queues),
            frozenset(by_key[key].schedule_id for key, fate in results if fate == "held"),
        )

    def _advance(self, session: SqliteSession, moved: list[tuple[bytes, Firing]], moment: datetime, node_id: UUID) -> None:
        """Move the schedules on by key: an UPDATE joined with the batch costs five times as much."""
        session.change_many(
            self._sql["tick_fire"], [(one.next_tick_at, one.due_at, one.cursor_at, one.fires, key) for key, one in moved]
        )
        for _, one in moved:
            self._skip(session, one.schedule_id, one.skips, moment, node_id, one.epoch)

    async def tick_list(self, tenant_id: UUID, schedule_id: UUID, *, from_: datetime, to: datetime, limit: int) -> list[Tick]:
        rows = await self._read("tick_list", tenant_id=tenant_id, schedule_id=schedule_id, from_at=from_, to_at=to, limit=limit)
        return [tick_from_row(row) for row in rows]

    async def tick_totals(self, tenant_id: UUID, ends: Mapping[UUID, datetime], *, from_: datetime) -> list[TickTotal]:
        rows = await self._read("tick_totals", tenant_id=tenant_id, ends=_hex_ends(ends), from_at=from_)
        return [total_from_row(row) for row in rows]

    async def tick_ranges(self, tenant_id: UUID, ends: Mapping[UUID, datetime], *, from_: datetime) -> list[Tick]:
        rows = await self._read("tick_ranges", tenant_id=tenant_id, ends=_hex_ends(ends), from_at=from_)
        return [tick_from_row(row) for row in rows]

    async def tick_doubled(self, tenant_id: UUID, ids: Sequence[UUID], *, from_: datetime, to: datetime) -> dict[UUID, int]:
        rows = await self._read("tick_doubled", tenant_id=tenant_id, ids=hex_text(ids), from_at=from_, to_at=to)
        return {row["schedule_id"]: row["count"] for row in rows}

    # Ownership

    async def partition_renew(
        self, beat: NodeHeartbeat, wanted: frozenset[int], *, now: datetime | None = None
    ) -> PartitionRenewal:
        def work(session: SqliteSession) -> PartitionRenewal:
            moment = self._moment(now)
            values = {
                "now": moment,
                "node": beat.id,
                "name": beat.name,
                "roles": ",".join(beat.roles),
                "version": beat.version,
                "lease_seconds": beat.lease_seconds,
                "lag_seconds": beat.lag_seconds,
                "fired_per_second": beat.fired_per_second,
                "wanted": text_of(sorted(wanted)),
            }
            newest = session.rows(self._sql["partition_renew_newest"])[0]["newest_at"]
            session.change(self._sql["partition_renew_heartbeat"], values)
            changed = session.rows(self._sql["partition_renew"], values)
            live = session.rows(self._sql["partition_renew_live"], values)
            return PartitionRenewal(
                now=moment,
                owned={row["partition"]: row["epoch"] for row in changed if row["owner"] is not None},
                live=frozenset(row["id"] for row in live),
                clock_back_seconds=0.0 if newest is None else (newest - moment).total_seconds(),
            )

        return await self._connections.write("partition_renew", work)

    async def partition_release(self, node_id: UUID) -> int:
        def work(session: SqliteSession) -> int:
            session.change(self._sql["node_delete"], {"node": node_id})
            return session.change(self._sql["partition_release"], {"node": node_id})

        return await self._connections.write("partition_release", work)

    async def partition_list(self) -> list[PartitionInfo]:
        return [PartitionInfo(**row) for row in await self._read("partition_list")]

    async def node_list(self, *, now: datetime | None = None) -> tuple[datetime, list[NodeInfo]]:
        return self._moment(now), [node_from_row(row) for row in await self._read("node_list")]

    async def node_prune(self, *, unseen_seconds: float, now: datetime | None = None) -> int:
        return await self._change("node_prune", now=self._moment(now), unseen_seconds=unseen_seconds)

    # Calendars

    async def calendar_list(self, tenant_id: UUID) -> list[Calendar]:
        return [calendar_from_row(row) for row in await self._read("calendar_list", tenant_id=tenant_id)]

    async def calendar_write(
        self, tenant_id: UUID, calendar: Calendar, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> bool:
        values = {
            "tenant_id": tenant_id,
            "name": calendar.name,
            "revision": calendar.revision,
            "definition": text_of(calendar.to_definition()),
            "now": self._moment(now),
        }

        def work(session: SqliteSession) -> bool:
            is_new = not session.rows(self._sql["calendar_exists"], values)
            session.change(self._sql["calendar_write"], values)
            write_audit_log(session, self._sql, audit_log, self._moment(now))
            return is_new

        return await self._connections.write("calendar_write", work)

    async def calendar_delete(
        self, tenant_id: UUID, name: str, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> int:
        return await self._change_with_audit_log("calendar_delete", audit_log, now, tenant_id=tenant_id, name=name)

    # Chores

    async def month_ensure(self, months: Sequence[datetime]) -> list[str]:
        return []

    async def month_prune(self, *, before: datetime, limit: int) -> int:
        values = {"before_at": before, "limit": limit}

        def work(session: SqliteSession) -> int:
            blocks = ("month_prune_ticks", "month_prune_history", "month_prune_attempts", "month_prune_log")
            return sum(session.change(self._sql[block], values) for block in blocks)

        return await self._connections.write("month_prune", work)

    async def task_key_prune(self, *, limit: int, now: datetime | None = None) -> int:
        return await self._change("task_key_prune", limit=limit, now=self._moment(now))

    async def idempotent_response_prune(self, *, limit: int, now: datetime | None = None) -> int:
        return await self._change("idempotent_response_prune", limit=limit, now=self._moment(now))

    async def blob_unused(self, refs: Sequence[str]) -> list[str]:
        return [row["ref"] for row in await self._read("blob_unused", refs=text_of(list(refs)))]

    async def _read(self, block: str, /, **values: Any) -> list[Row]:
        return await self._connections.read(block, lambda session: session.rows(self._sql[block], values))

    async def _change(self, block: str, /, **values: Any) -> int:
        return await self._connections.write(block, lambda session: session.change(self._sql[block], values))

    async def _change_with_audit_log(
        self, block: str, audit_log: Sequence[AuditLogEntry], now: datetime | None, /, **values: Any
    ) -> int:
        """How many rows the statement changed; the trail is written with it, if there are any."""

        def work(session: SqliteSession) -> int:
            changed = session.change(self._sql[block], values)
            if changed:
                write_audit_log(session, self._sql, audit_log, self._moment(now))
            return changed

        return await self._connections.write(block, work)
