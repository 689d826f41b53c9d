"""PostgreSQL under test: a separate server with fsync on and its data on disk, with the same settings for raw and Everbeat."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import uuid_utils.compat
from tests.support.postgres import PostgresServer
from tests.support.processes import make_folder

from bench.databases import BATCH, Batch, family_cpu_seconds
from bench.postgres_queue import PostgresQueue
from bench.queues import payload
from bench.rows import Row
from everbeat.store.postgres.store import PostgresStore

_DATABASE = "bench"
_SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB", "checkpoint_timeout": "15min", "log_line_prefix": "%a|"}
_EXECUTED = re.compile(r"(?m)^everbeat[^|\n]*\|LOG:  (?:execute|statement)")

_LEDGER = """
INSERT INTO ticks (schedule_id, scheduled_for, tenant_id, outcome, task_id, fired_at, node, epoch)
SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::uuid[], $4::text[], $5::uuid[], $6::timestamptz[], $7::uuid[],
  $8::bigint[])
"""
_TASKS = """
INSERT INTO tasks (id, tenant_id, partition, queue, type, target, payload, origin, schedule_id, scheduled_for, run_at,
  priority, state, max_attempts, retry, timeout_seconds, labels, created_at)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
  $9::uuid[], $10::timestamptz[], $11::timestamptz[], $12::integer[], $13::text[], $14::integer[], $15::text[],
  $16::double precision[], $17::text[], $18::timestamptz[])
"""
_ADVANCE = """
UPDATE schedules AS s SET next_tick_at = f.next_tick_at, due_at = f.due_at, cursor_at = f.cursor_at,
  last_tick_at = f.last_tick_at
FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[])
  AS f(id, next_tick_at, due_at, cursor_at, last_tick_at)
WHERE s.id = f.id
"""
_PAST_MONTHS = """
SELECT everbeat_month_ensure(at) FROM generate_series(now() - interval '30 days', now(), interval '1 day') AS at
"""
_HISTORY = """
INSERT INTO task_history (id, tenant_id, queue, type, target, payload, origin, run_at, priority, state, attempt, max_attempts,
  labels, worker, fence, outcome, created_at, started_at, finished_at)
SELECT uuidv7(at - now()), '00000000-0000-0000-0000-000000000000', 'bench', 'noop', '{}', $2, 'submit', at, 100, 'completed',
  1, 3, '{}', 'host:1:abcdef', 1, 'completed', at, at, at
FROM (SELECT now() - n * (interval '30 days' / $1::int) AS at FROM generate_series($1::int, 1, -1) AS n) AS past
"""
_BATCHES = """
SELECT min(fired_at) AS fired_at, min(scheduled_for) AS first_due_at, max(scheduled_for) AS last_due_at, count(*) AS count
FROM ticks GROUP BY xmin ORDER BY 1
"""

Columns = list[tuple[Any, ...]]


class PostgresDatabase:
    name = "PostgreSQL"

    def __init__(self, parent: PostgresDatabase | None = None, database: str = _DATABASE) -> None:
        self.folder = make_folder("everbeat-bench-")
        self._database = database
        self._is_branch = parent is not None
        if parent is not None:
            self._server: PostgresServer = parent._server
        else:
            self._server = PostgresServer(fsync=True, in_memory=False, settings=_SETTINGS)
            self._server.start()
        self.raw_queue = PostgresQueue(lambda: self._connect(self._server.url()))

    @property
    def url(self) -> str:
        return self._server.url(self._database)

    def sibling(self, name: str) -> PostgresDatabase:
        return PostgresDatabase(self, f"{_DATABASE}_{name}")

    async def recreate(self) -> None:
        self._server.drop_database(self._database)
        self._server.create_database(self._database)
        store = PostgresStore(self.url, listen=False)
        await store.migrate()
        await store.month_ensure([await self.now(), await self.now() + timedelta(days=31)])
        await store.close()

    async def close(self) -> None:
        if self._is_branch:
            self._server.drop_database(self._database)
        else:
            self._server.remove()
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()

    async def now(self) -> datetime:
        moment: datetime = await self._value("SELECT clock_timestamp()")
        return moment

    async def load(self, rows: Sequence[Row]) -> None:
        connection = await self._connect()
        columns = list(rows[0])
        await connection.copy_records_to_table("schedules", records=[tuple(row.values()) for row in rows], columns=columns)
        await connection.close()

    async def load_daily(self, base: Row, count: int, now: datetime) -> None:
        minute = "(extract(hour FROM at)::int * 60 + extract(minute FROM at)::int)"
        computed = {
            "id": "gen_random_uuid()",
            "name": "'daily-' || n",
            "partition": "floor(random() * 256)::smallint",
            "trigger_text": f"({minute} % 60) || ' ' || ({minute} / 60) || ' * * *'",
            "next_tick_at": "at",
            "due_at": "at",
        }
        copied = [name for name in base if name not in computed]
        types = await self._types()
        values = [*computed.values(), *(f"${number + 3}::{types[name]}" for number, name in enumerate(copied))]
        sql = f"""
            INSERT INTO schedules ({", ".join([*computed, *copied])})
            SELECT {", ".join(values)}
            FROM (
              SELECT n, date_trunc('minute', $1::timestamptz) + interval '1 hour' + (n % 1320) * interval '1 minute' AS at
              FROM generate_series(1, $2::int) AS n) AS days"""
        connection = await self._connect()
        await connection.execute(sql, now, count, *(base[name] for name in copied), timeout=600)
        await connection.close()

    async def checkpoint(self) -> None:
        connection = await self._connect()
        await connection.execute("VACUUM (ANALYZE) schedules", timeout=600)
        await connection.execute("CHECKPOINT", timeout=600)
        await connection.close()

    async def raw_fire(self, tick_for: timedelta) -> float:
        connection = await self._connect()
        schedules = await connection.fetch("SELECT * FROM schedules")
        node, now = uuid_utils.compat.uuid7(), await self.now()
        batches = [
            _raw_batch(schedules[start : start + BATCH], node, now, tick_for) for start in range(0, len(schedules), BATCH)
        ]
        statements = [await connection.prepare(sql) for sql in (_LEDGER, _TASKS, _ADVANCE)]
        started = time.perf_counter()
        for batch in batches:
            async with connection.transaction():
                for statement, columns in zip(statements, batch, strict=True):
                    await statement.fetch(*columns)
        seconds = time.perf_counter() - started
        await connection.close()
        return seconds

    async def rows(self) -> list[Row]:
        connection = await self._connect()
        rows = [dict(row) for row in await connection.fetch("SELECT * FROM schedules")]
        await connection.close()
        return rows

    async def raw_register(self, rows: Sequence[Row], clients: int) -> float:
        types, names = await self._types(), list(rows[0])
        arrays = ", ".join(f"${number + 1}::{types[name]}[]" for number, name in enumerate(names))
        sql = f"INSERT INTO schedules ({', '.join(names)}) SELECT * FROM unnest({arrays})"
        starts = range(0, len(rows), BATCH)
        batches = [list(zip(*(row.values() for row in rows[start : start + BATCH]), strict=True)) for start in starts]
        connections = [await self._connect() for _ in range(clients)]
        statements = [await connection.prepare(sql) for connection in connections]

        async def insert(client: int) -> None:
            for batch in batches[client::clients]:
                await statements[client].fetch(*batch)

        started = time.perf_counter()
        await asyncio.gather(*(insert(client) for client in range(clients)))
        seconds = time.perf_counter() - started
        for connection in connections:
            await connection.close()
        return seconds

    async def count_ticks(self) -> int:
        return int(await self._value("SELECT count(*) FROM ticks"))

    async def batches(self) -> list[Batch]:
        connection = await self._connect()
        found = [Batch(*row) for row in await connection.fetch(_BATCHES)]
        await connection.close()
        return found

    async def lags(self, from_: datetime, to: datetime) -> list[float]:
        connection = await self._connect()
        found = await connection.fetch(
            """SELECT extract(epoch FROM fired_at - scheduled_for)::float8 AS lag FROM ticks
            WHERE outcome = 'fired' AND scheduled_for >= $1 AND scheduled_for < $2""",
            from_,
            to,
        )
        await connection.close()
        return [row["lag"] for row in found]

    async def heartbeat_age(self) -> float:
        return float(await self._value("SELECT extract(epoch FROM clock_timestamp() - max(seen_at)) FROM nodes") or 0)

    async def log_statements(self) -> bool:
        await self._value(f"ALTER DATABASE {self._database} SET log_statement = 'all'")
        return True

    def statements(self) -> int:
        return len(_EXECUTED.findall(self._server.logs()))

    async def count_live(self) -> int:
        return int(await self._value("SELECT count(*) FROM tasks"))

    async def count_completed(self) -> int:
        return int(await self._value("SELECT count(*) FROM task_history WHERE state = 'completed'"))

    async def fill_history(self, count: int) -> None:
        connection = await self._connect()
        await connection.execute(_PAST_MONTHS)
        await connection.execute(_HISTORY, count, json.dumps(payload(0)), timeout=1200)
        await connection.execute("VACUUM (FREEZE, ANALYZE) task_history", timeout=1200)
        await connection.execute("CHECKPOINT", timeout=1200)
        await connection.close()

    def database_cpu_seconds(self) -> float:
        return family_cpu_seconds(self._server.pid)

    async def _types(self) -> dict[str, str]:
        connection = await self._connect()
        found = await connection.fetch(
            """SELECT attname, format_type(atttypid, atttypmod) AS type FROM pg_attribute
            WHERE attrelid = 'schedules'::regclass AND attnum > 0"""
        )
        await connection.close()
        return {row["attname"]: row["type"] for row in found}

    async def _connect(self, url: str | None = None) -> asyncpg.Connection:
        return await asyncpg.connect(url or self.url, server_settings={"application_name": "bench", "jit": "off"})

    async def _value(self, sql: str) -> Any:
        connection = await self._connect()
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()


def _raw_batch(
    schedules: Sequence[asyncpg.Record], node: Any, now: datetime, every: timedelta
) -> tuple[Columns, Columns, Columns]:
    """Return the columns of the three writes, ready to be sent."""
    ledger, tasks, advance = [], [], []
    for row in schedules:
        task, tick = uuid_utils.compat.uuid7(), row["next_tick_at"]
        after = tick + every
        ledger.append((row["id"], tick, row["tenant_id"], "fired", task, now, node, 1))
        head = (task, row["tenant_id"], row["partition"], row["queue"], row["task_type"], row["target"], row["payload"], "tick")
        policy = (row["priority"], "ready", row["max_attempts"], row["retry"], row["timeout_seconds"], row["labels"], now)
        tasks.append((*head, row["id"], tick, tick, *policy))
        advance.append((row["id"], after, after, tick, tick))
    return _columns(ledger), _columns(tasks), _columns(advance)


def _columns(rows: list[tuple[Any, ...]]) -> Columns:
    return list(zip(*rows, strict=True))
