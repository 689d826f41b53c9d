"""The database of the scale run: a PostgreSQL server with the settings of the documentation, filled by INSERT … SELECT."""

from __future__ import annotations

import asyncio
import json
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
from tests.support.postgres import PostgresServer

from bench.databases import family_cpu_seconds
from bench.queues import payload
from bench.report import print_progress
from bench.rows import template
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.zones import fingerprint_of, load_zone
from everbeat.store.postgres.store import PostgresStore

QUEUE = "reports"
# Those of docs/howto/production.md, for a machine with 24 GB that the nodes share.
SETTINGS = {
    "shared_buffers": "4GB",
    "effective_cache_size": "12GB",
    "maintenance_work_mem": "1GB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "15min",
    "checkpoint_completion_target": "0.9",
    "wal_compression": "on",
    "random_page_cost": "1.1",
    "autovacuum_naptime": "15s",
    "autovacuum_vacuum_cost_limit": "2000",
}
_CHUNK = 500_000
_HISTORY_CHUNK = 1_000_000
_TIMEOUT_SECONDS = 3600

# The id, the partition and the tick of row n. The multiplier spreads rows that are due one after the other over the table.
_DAILY = """
SELECT uuidv7() AS id, 'daily-' || n AS name, floor(random() * 256)::smallint AS partition,
  extract(minute FROM at)::int || ' ' || extract(hour FROM at)::int || ' * * *' AS trigger_text, NULL::timestamptz AS anchor,
  at AS next_tick_at
FROM (
  SELECT n, date_trunc('minute', $1::timestamptz) + interval '2 hours' + (n * 7919 % 1260) * interval '1 minute' AS at
  FROM generate_series($2::bigint, $3::bigint) AS n) AS days
"""
_EVERY = """
SELECT uuidv7() AS id, $5 || n AS name, floor(random() * 256)::smallint AS partition, $6 AS trigger_text,
  at - $7::interval AS anchor, at AS next_tick_at
FROM (
  SELECT n, $1::timestamptz + (n * 7919 % $4::bigint) * ($8::interval / $4::bigint) AS at
  FROM generate_series($2::bigint, $3::bigint) AS n) AS instants
"""
_HISTORY = """
INSERT INTO task_history (id, tenant_id, queue, type, target, payload, origin, run_at, priority, state, attempt, max_attempts,
  labels, worker, fence, outcome, created_at, started_at, finished_at)
SELECT uuidv7(at - now()), '00000000-0000-0000-0000-000000000000', 'reports', 'report', '{}', $4, 'submit', at, 100,
  'completed', 1, 3, '{}', 'host:1:abcdef', 1, 'completed', at, at, at
FROM (SELECT now() - n * (interval '30 days' / $1::bigint) AS at FROM generate_series($2::bigint, $3::bigint, -1) AS n) AS past
"""
# The names that start with a prefix, by the index on tenant and name.
_NAMED = "WHERE tenant_id = $1 AND name >= $2 AND name < $2 || '~'"
_MONTHS = "SELECT everbeat_month_ensure(at) FROM generate_series(now() - interval '31 days', now(), interval '1 day') AS at"
_LAGS = """
SELECT count(*), percentile_disc(ARRAY[0.5, 0.9, 0.99, 0.999, 1.0]) WITHIN GROUP (
  ORDER BY extract(epoch FROM fired_at - scheduled_for)::float8 * 1000) AS lags
FROM ticks WHERE outcome = 'fired' AND scheduled_for >= $1 AND scheduled_for < $2
  AND NOT (scheduled_for >= $3 AND scheduled_for < $4)
"""
_SIZES = """
SELECT c.relname AS name, sum(pg_total_relation_size(c.oid)) AS bytes
FROM (SELECT coalesce(p.inhparent, k.oid) AS root, k.oid FROM pg_class AS k LEFT JOIN pg_inherits AS p ON p.inhrelid = k.oid
  WHERE k.relkind = 'r' AND k.relnamespace = 'public'::regnamespace) AS t
JOIN pg_class AS r ON r.oid = t.root CROSS JOIN LATERAL (SELECT r.relname, t.oid) AS c
GROUP BY 1 ORDER BY 2 DESC LIMIT 8
"""


class ScaleServer(PostgresServer):
    """A server with fsync on and its data on disk, in a folder that may be kept for the next run."""

    def __init__(self, kept: Path | None) -> None:
        super().__init__(fsync=True, in_memory=False, settings=SETTINGS)
        self._kept = kept
        if kept is not None and (kept / "data").exists():
            self._folder = kept

    def _initialize(self) -> Path:
        folder = super()._initialize()
        if self._kept is None:
            return folder
        # The watchdog removes the folder that it knows when this process ends, so the data moves to another one.
        shutil.move(folder, self._kept)
        return self._kept

    def remove(self) -> None:
        self.stop("fast", 300)
        if self._kept is None:
            super().remove()


class ScaleDatabase:
    """One database of the server. `schedules` is how many it has."""

    def __init__(self, server: ScaleServer, name: str) -> None:
        self.server = server
        self.name = name
        self.schedules = 0

    @property
    def url(self) -> str:
        return self.server.url(self.name)

    async def create(self) -> None:
        """Create and migrate it, unless it is there from a run before."""
        if not self.server.fetch_value(f"SELECT count(*) FROM pg_database WHERE datname = '{self.name}'"):
            self.server.create_database(self.name)
        store = PostgresStore(self.url, listen=False)
        await store.migrate()
        now = await self.now()
        await store.month_ensure([now, now + timedelta(days=31)])
        # As if they had been registered one after the other: a zone that is new makes a node check all of its schedules.
        await store.zone_write({"UTC": fingerprint_of(load_zone("UTC"))})
        await store.close()
        self.schedules = int(await self.value("SELECT count(*) FROM schedules"))

    async def now(self) -> datetime:
        moment: datetime = await self.value("SELECT clock_timestamp()")
        return moment

    async def fill_daily(self, count: int) -> None:
        """Add schedules that are due once a day, but not in the next two hours."""
        base = template({"cron": "0 0 * * *"}, await self.now())
        first = await self.count_named("daily-")
        for start in range(first, first + count, _CHUNK):
            end = min(start + _CHUNK, first + count) - 1
            await self._insert(base, _DAILY, await self.now(), start, end)
            print_progress(f"{self.name}: {end + 1:,} daily schedules")
        self.schedules += max(0, count)

    async def fill_every(self, prefix: str, first: int, count: int, at: datetime, seconds: int, spread: timedelta) -> None:
        """Add schedules that are due every so many seconds, from `at` on, spread evenly over a time."""
        base = template({"every_seconds": seconds, "overlap": "allow", "anchor": "2026-01-01T00:00:00Z"}, await self.now())
        interval = timedelta(seconds=seconds)
        values = (at, first, first + count - 1, first + count, prefix, base["trigger_text"], interval, spread)
        await self._insert(base, _EVERY, *values)
        self.schedules += count

    async def count_named(self, prefix: str) -> int:
        return int(await self.value(f"SELECT count(*) FROM schedules {_NAMED}", DEFAULT_TENANT, prefix))

    async def remove_every(self, prefix: str) -> None:
        removed = await self.execute(f"DELETE FROM schedules {_NAMED}", DEFAULT_TENANT, prefix)
        self.schedules -= int(removed.rpartition(" ")[2])

    async def fill_history(self, count: int) -> None:
        """Add completed tasks of the last 30 days, unless they are there from a run before."""
        await self.execute(_MONTHS)
        present = int(await self.value("SELECT count(*) FROM task_history WHERE origin = 'submit'"))
        for start in range(present, count, _HISTORY_CHUNK):
            end = min(start + _HISTORY_CHUNK, count)
            await self.execute(_HISTORY, count, end, start + 1, json.dumps(payload(0)))
            print_progress(f"{self.name}: {end:,} rows of history")

    async def vacuum_and_checkpoint(self) -> None:
        """Vacuum and write a checkpoint, so that every measurement begins in the same state."""
        await self.execute("VACUUM (ANALYZE)")
        await self.execute("CHECKPOINT")

    async def lags(self, from_: datetime, to: datetime, without: tuple[datetime, datetime] | None = None) -> dict[str, float]:
        """Return the number and the lags, in milliseconds, of the ticks of a window, except for a part of it."""
        first, last = without or (from_, from_)
        row = (await self.fetch(_LAGS, from_, to, first, last))[0]
        found = row["lags"] or [0.0] * 5
        names = ("p50_ms", "p90_ms", "p99_ms", "p999_ms", "worst_ms")
        return {"ticks": row["count"], **{name: round(lag, 2) for name, lag in zip(names, found, strict=True)}}

    async def size_mb(self) -> float:
        return float(await self.value("SELECT pg_database_size(current_database())")) / 1e6

    async def sizes_mb(self) -> dict[str, float]:
        """Return the sizes of the largest tables with their indexes, the months of one table together."""
        return {row["name"]: round(float(row["bytes"]) / 1e6, 1) for row in await self.fetch(_SIZES)}

    async def wal_mb(self) -> float:
        return float(await self.value("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')")) / 1e6

    def cpu_seconds(self) -> float:
        return family_cpu_seconds(self.server.pid)

    async def execute(self, sql: str, *values: Any) -> str:
        connection = await asyncpg.connect(self.url)
        try:
            status: str = await connection.execute(sql, *values, timeout=_TIMEOUT_SECONDS)
            return status
        finally:
            await connection.close()

    async def fetch(self, sql: str, *values: Any) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.url)
        try:
            found: list[asyncpg.Record] = await connection.fetch(sql, *values, timeout=_TIMEOUT_SECONDS)
            return found
        finally:
            await connection.close()

    async def value(self, sql: str, *values: Any) -> Any:
        return (await self.fetch(sql, *values))[0][0]

    async def _insert(self, base: dict[str, Any], source: str, *values: Any) -> None:
        """Insert copies of a row that differ in what the source computes."""
        computed = ["id", "name", "partition", "trigger_text", "anchor", "next_tick_at"]
        copied = [name for name in base if name not in (*computed, "due_at")]
        types = {
            row["attname"]: row["type"]
            for row in await self.fetch(
                """SELECT attname, format_type(atttypid, atttypmod) AS type FROM pg_attribute
                WHERE attrelid = 'schedules'::regclass AND attnum > 0"""
            )
        }
        casts = [f"${len(values) + number + 1}::{types[name]}" for number, name in enumerate(copied)]
        columns = ", ".join([*computed, "due_at", *copied])
        selected = ", ".join([*computed, "next_tick_at", *casts])
        sql = f"INSERT INTO schedules ({columns}) SELECT {selected} FROM ({source}) AS s"
        await self.execute(sql, *values, *(base[name] for name in copied))


async def until(database: ScaleDatabase, moment: datetime) -> None:
    """Wait until the clock of the database shows this time."""
    await asyncio.sleep(max(0.0, (moment - await database.now()).total_seconds()))
