"""The PostgreSQL store: each verb runs the block of its name."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from everbeat.core.calendars import Calendar
from everbeat.core.changes import ScheduleWrite
from everbeat.core.errors import EverbeatError, StoreRefused, StoreUnavailable
from everbeat.core.schedules import PastRule, Schedule, Status
from everbeat.core.ticks import Tick
from everbeat.store.base import (
    DueScan,
    FireResult,
    Firing,
    Found,
    IdempotentAnswer,
    Listener,
    NodeBeat,
    NodeInfo,
    Notice,
    Observer,
    PartitionInfo,
    Renewal,
    ScheduleFilter,
    TickTotal,
)
from everbeat.store.migrate import load_migrations, missing_migrations
from everbeat.store.notices import Notices
from everbeat.store.postgres.connections import (
    Connection,
    Connections,
    describe_url,
    execute_on,
    fetch_on,
    lost_a_race,
    retrying,
)
from everbeat.store.postgres.tasks import PostgresTasks
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

T = TypeVar("T")

_PACKAGE = "everbeat.store.postgres"
_SLICE = 500
_NO_MONTH = "no partition of relation"
_MONTH_TABLE = re.compile(r"(ticks|task_history|attempts|task_log)_(\d{4})_(\d{2})")


class _Undo(Exception):
    """Raised inside a transaction to roll it back."""


class PostgresStore(PostgresTasks):
    """All verbs of the Store contract on PostgreSQL 14 and newer."""

    dialect = "postgres"

    def __init__(self, url: str, *, listen: bool = True, observer: Observer | None = None, **options: Any) -> None:
        self.description = describe_url(url)
        self._connections = Connections(url, observer=observer, **options)
        self._queries = load_numbered(_PACKAGE)
        self._migrations = load_migrations(_PACKAGE)
        self._notices = Notices(self._send_notice)
        self._listen = listen
        self._listening: asyncio.Task[None] | None = None
        self._observer = observer
        self._months: set[datetime] = set()

    async def open(self) -> None:
        if self._listen and self._listening is None:
            self._listening = asyncio.create_task(self._connections.listen(self._notices.tell, self._on_deaf))

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
        async with self._connections.use("api", "migration_version") as connection:
            (row,) = await fetch_on(connection, self._queries["migration_exists"])
            if not row["is_there"]:
                return 0, needed
            (row,) = await fetch_on(connection, self._queries["migration_version"])
            return row["version"], needed

    async def migrate(self) -> list[str]:
        """Each migration commits with its number, so a run that dies half-way goes on where it stopped."""
        applied: list[str] = []
        while True:
            async with self._connections.use("api", "migrate") as connection, connection.transaction():
                await fetch_on(connection, self._queries["migration_lock"])
                await connection.execute(self._queries["migration_table"].sql)
                (row,) = await fetch_on(connection, self._queries["migration_version"])
                missing = missing_migrations(self._migrations, row["version"])
                if not missing:
                    return applied
                await connection.execute(missing[0].sql)
                await execute_on(connection, self._queries["migration_insert"], number=missing[0].number, name=missing[0].name)
                applied.append(missing[0].name)

    # Clock and notices

    async def clock(self, *, now: datetime | None = None) -> datetime:
        (row,) = await self._fetch("clock", now=now)
        moment: datetime = row["moment"]
        return moment

    def subscribe(self, listener: Listener) -> None:
        self._notices.subscribe(listener)

    def publish(self, notice: Notice) -> None:
        self._notices.publish(notice)

    def _on_deaf(self, _error: Exception) -> None:
        if self._observer is not None:
            self._observer("listen", 0.0, True)

    async def _send_notice(self, notice: Notice) -> None:
        with contextlib.suppress(StoreUnavailable):  # a notice is a hint; the next scan finds what it hinted at
            await self._fetch("notice_send", payload=f"{notice.value}:{self._connections.identity}")

    # Schedules

    async def schedule_find(
        self,
        tenant_id: UUID,
        *,
        names: Sequence[str] = (),
        ids: Sequence[UUID] = (),
        key: str | None = None,
        now: datetime | None = None,
    ) -> Found:
        async with self._connections.use("api", "schedule_find") as connection:
            (moment,) = await fetch_on(connection, self._queries["clock"], now=now)
            rows = await fetch_on(
                connection, self._queries["schedule_find"], tenant_id=tenant_id, names=list(names), ids=list(ids)
            )
            answers = (
                await fetch_on(connection, self._queries["answer_find"], now=now, tenant_id=tenant_id, key=key)
                if key is not None
                else []
            )
        answer = IdempotentAnswer(**dict(answers[0])) if answers else None
        return Found(moment["moment"], [schedule_from_row(row) for row in rows], answer)

    async def schedule_write(
        self,
        tenant_id: UUID,
        writes: Sequence[ScheduleWrite],
        *,
        answer: IdempotentAnswer | None = None,
        now: datetime | None = None,
    ) -> bool:
        async def write() -> bool:
            try:
                async with self._connections.use("api", "schedule_write") as connection, connection.transaction():
                    await self._write_rows(connection, writes)
                    if paused := [write.schedule.id for write in writes if write.schedule.status is Status.PAUSED]:
                        await execute_on(connection, self._queries["task_hold"], ids=paused)
                    await self._write_past(connection, writes, now)
                    if answer is not None:
                        await self._write_answer(connection, tenant_id, answer, now)
            except _Undo:
                return False
            except StoreUnavailable as error:
                if not lost_a_race(error):
                    raise
                return False
            return True

        return await self._with_months([skip.first for write in writes for skip in write.skips], write)

    async def _write_rows(self, connection: Connection, writes: Sequence[ScheduleWrite]) -> None:
        new = [schedule_to_row(write.schedule) for write in writes if write.expected is None]
        if new and await execute_on(connection, self._queries["schedule_insert"], rows=text_of(new)) != len(new):
            raise _Undo
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
            raise _Undo from None
        if changed != len(old):
            raise _Undo

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

    async def _write_answer(
        self, connection: Connection, tenant_id: UUID, answer: IdempotentAnswer, now: datetime | None
    ) -> None:
        values = msgspec.structs.asdict(answer)
        if await execute_on(connection, self._queries["answer_insert"], now=now, tenant_id=tenant_id, **values) != 1:
            raise _Undo

    async def schedule_list(
        self, tenant_id: UUID, filter_: ScheduleFilter, *, after_name: str | None, limit: int
    ) -> list[Schedule]:
        rows = await self._fetch("schedule_list", tenant_id=tenant_id, after_name=after_name, limit=limit, **filter_._asdict())
        return [schedule_from_row(row) for row in rows]

    async def schedule_delete(self, tenant_id: UUID, ids: Sequence[UUID]) -> int:
        return await self._execute("schedule_delete", tenant_id=tenant_id, ids=list(ids))

    async def schedule_count(self, tenant_id: UUID) -> dict[str, int]:
        rows = await self._fetch("schedule_count", tenant_id=tenant_id)
        return {row["status"]: row["count"] for row in rows}

    async def schedule_due(
        self, partitions: Sequence[int], *, horizon_seconds: float, limit: int, now: datetime | None = None
    ) -> DueScan:
        rows = await self._connections.fetch(
            "engine",
            self._queries["schedule_due"],
            now=now,
            partitions=list(partitions),
            horizon_seconds=horizon_seconds,
            limit=limit,
        )
        scan = DueScan(rows[0]["moment"], [], {})
        for start in range(0, len(rows), _SLICE):
            schedules, faults = due_from_rows(row for row in rows[start : start + _SLICE] if row["id"] is not None)
            scan.schedules.extend(schedules)
            scan.faults.update(faults)
            await asyncio.sleep(0)  # a big scan must not keep what is due from firing
        return scan

    async def schedule_fault(self, faults: Mapping[UUID, str], *, now: datetime | None = None) -> int:
        return await self._connections.execute(
            "engine", self._queries["schedule_fault"], now=now, ids=list(faults), faults=list(faults.values())
        )

    async def schedule_overdue(self, *, late_seconds: float, limit: int, now: datetime | None = None) -> list[Schedule]:
        rows = await self._fetch("schedule_overdue", now=now, late_seconds=late_seconds, limit=limit)
        return [schedule_from_row(row) for row in rows]

    async def schedule_faulty(self, tenant_id: UUID | None, *, limit: int) -> list[Schedule]:
        rows = await self._fetch("schedule_faulty", tenant_id=tenant_id, limit=limit)
        return [schedule_from_row(row) for row in rows]

    async def schedule_past_rules(self, ids: Sequence[UUID]) -> list[PastRule]:
        return [past_rule_from_row(row) for row in await self._fetch("schedule_past_rules", ids=list(ids))]

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
            return self._connections.fetch(
                "engine",
                self._queries["tick_fire"],
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

    async def tick_list(self, schedule_id: UUID, *, from_: datetime, to: datetime, limit: int) -> list[Tick]:
        rows = await self._fetch("tick_list", schedule_id=schedule_id, from_at=from_, to_at=to, limit=limit)
        return [tick_from_row(row) for row in rows]

    async def tick_totals(self, ends: Mapping[UUID, datetime], *, from_: datetime) -> list[TickTotal]:
        rows = await self._fetch("tick_totals", ids=list(ends), ends=list(ends.values()), from_at=from_)
        return [total_from_row(row) for row in rows]

    async def tick_ranges(self, ends: Mapping[UUID, datetime], *, from_: datetime) -> list[Tick]:
        rows = await self._fetch("tick_ranges", ids=list(ends), ends=list(ends.values()), from_at=from_)
        return [tick_from_row(row) for row in rows]

    async def tick_doubled(self, ids: Sequence[UUID], *, from_: datetime, to: datetime) -> dict[UUID, int]:
        rows = await self._fetch("tick_doubled", ids=list(ids), from_at=from_, to_at=to)
        return {row["schedule_id"]: row["count"] for row in rows}

    # Ownership

    async def partition_renew(self, beat: NodeBeat, wanted: frozenset[int], *, now: datetime | None = None) -> Renewal:
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
        return Renewal(row["moment"], owned, frozenset(row["live"]), row["clock_back_seconds"])

    async def partition_release(self, node_id: UUID) -> int:
        async with self._connections.use("lease", "partition_release") as connection, connection.transaction():
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

    async def calendar_write(self, tenant_id: UUID, calendar: Calendar, *, now: datetime | None = None) -> bool:
        (row,) = await self._fetch(
            "calendar_write",
            now=now,
            tenant_id=tenant_id,
            name=calendar.name,
            revision=calendar.revision,
            definition=text_of(calendar.to_definition()),
        )
        return bool(row["is_new"])

    async def calendar_delete(self, tenant_id: UUID, name: str) -> int:
        return await self._execute("calendar_delete", tenant_id=tenant_id, name=name)

    # Chores

    async def month_ensure(self, months: Sequence[datetime]) -> list[str]:
        rows = await self._connections.fetch("engine", self._queries["month_ensure"], months=sorted(months_of(months)))
        self._months |= months_of(months)
        return [row["name"] for row in rows]

    async def month_prune(self, *, before: datetime, limit: int) -> int:
        dropped = 0
        for row in await self._fetch("month_list"):
            match = _MONTH_TABLE.fullmatch(row["name"])
            if match is None or (int(match[2]), int(match[3])) >= (before.year, before.month) or dropped >= limit:
                continue
            detach = "month_detach_finish" if row["is_pending"] else "month_detach"
            blocks = [detach, "month_drop"] if row["is_attached"] else ["month_drop"]
            async with self._connections.use("api", "month_prune") as connection:
                for block in blocks:
                    sql = self._queries[block].sql.replace("parent_table", match[1])
                    await connection.execute(sql.replace("month_table", match[0]))
            self._months.clear()
            dropped += 1
        return dropped

    async def key_prune(self, *, limit: int, now: datetime | None = None) -> int:
        return await self._execute("key_prune", limit=limit, now=now)

    async def answer_prune(self, *, limit: int, now: datetime | None = None) -> int:
        return await self._execute("answer_prune", limit=limit, now=now)

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
            return await retrying(write)
        except StoreRefused as error:
            if _NO_MONTH not in str(error):
                raise
        self._months.clear()
        return await self._with_months([await self.clock(now=now)], write)

    async def _fetch(self, block: str, /, **values: Any) -> list[asyncpg.Record]:
        return await self._connections.fetch("api", self._queries[block], **values)

    async def _execute(self, block: str, /, **values: Any) -> int:
        return await self._connections.execute("api", self._queries[block], **values)
