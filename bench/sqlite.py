"""SQLite under test: one file on disk with the pragmas that Everbeat uses, including synchronous=FULL."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import uuid_utils.compat
from tests.support.processes import make_folder

from bench.databases import BATCH, Batch
from bench.queues import payload
from bench.rows import Row
from bench.sqlite_queue import SqliteQueue
from everbeat.store.sqlite.store import SqliteStore

_PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", "temp_store = MEMORY", "cache_size = -32000", "busy_timeout = 10000")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MINUTES = 22 * 60

_LEDGER = """
INSERT INTO ticks (schedule_id, scheduled_for, tenant_id, outcome, task_id, fired_at, node, epoch)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_TASKS = """
INSERT INTO tasks (id, tenant_id, partition, queue, type, target, payload, origin, schedule_id, scheduled_for, run_at,
  priority, state, max_attempts, retry, timeout_seconds, labels, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_ADVANCE = "UPDATE schedules SET next_tick_at = ?, due_at = ?, cursor_at = ?, last_tick_at = ? WHERE id = ?"
_HISTORY = """
WITH RECURSIVE past (n, at) AS (
  SELECT :count, :now - :count * :every UNION ALL SELECT n - 1, at + :every FROM past WHERE n > 1)
INSERT INTO task_history (id, tenant_id, queue, type, target, payload, origin, run_at, priority, state, attempt, max_attempts,
  labels, worker, fence, outcome, created_at, started_at, finished_at)
-- Ids that begin with the time, as in UUID version 7.
SELECT unhex(printf('%012x', at / 1000) || '7' || substr(hex(randomblob(10)), 2)), zeroblob(16), 'bench', 'noop', '{}',
  :payload, 'submit', at, 100, 'completed', 1, 3, '{}', 'host:1:abcdef', 1, 'completed', at, at, at
FROM past
"""
_BATCHES = """
SELECT fired_at, min(scheduled_for), max(scheduled_for), count(*) FROM ticks GROUP BY fired_at ORDER BY fired_at
"""

Values = tuple[Any, ...]


class SqliteDatabase:
    name = "SQLite"

    def __init__(self) -> None:
        self.folder = make_folder("everbeat-bench-")
        self._path = self.folder / "bench.db"
        self.raw_queue = SqliteQueue(lambda: self._connect(self.folder / "raw.db"))

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    def sibling(self, name: str) -> SqliteDatabase:
        return SqliteDatabase()

    async def recreate(self) -> None:
        for path in self.folder.glob("bench.db*"):
            path.unlink()
        store = SqliteStore(self._path)
        await store.migrate()
        await store.close()

    async def close(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()

    async def now(self) -> datetime:
        return datetime.now(UTC)

    async def load(self, rows: Sequence[Row]) -> None:
        self._insert([[_bound(value) for value in row.values()] for row in rows], list(rows[0]))

    async def load_daily(self, base: Row, count: int, now: datetime) -> None:
        first = now.replace(second=0, microsecond=0) + timedelta(hours=1)
        ticks = [first + timedelta(minutes=number) for number in range(_MINUTES)]
        copied = {name: _bound(value) for name, value in base.items()}

        def values() -> Iterable[list[Any]]:
            for number in range(count):
                id_, tick = uuid_utils.compat.uuid4(), ticks[number % _MINUTES]
                at = _bound(tick)
                computed = {
                    "id": id_.bytes,
                    "name": f"daily-{number}",
                    "partition": id_.bytes[0],
                    "trigger_text": f"{tick.minute} {tick.hour} * * *",
                    "next_tick_at": at,
                    "due_at": at,
                }
                yield list({**copied, **computed}.values())

        self._insert(values(), list(copied))

    async def checkpoint(self) -> None:
        connection = self._connect()
        connection.execute("PRAGMA analysis_limit = 1000")
        connection.execute("ANALYZE")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    async def raw_fire(self, tick_for: timedelta) -> float:
        connection = self._connect()
        schedules = self._dicts(connection, "SELECT * FROM schedules")
        node, now, every = uuid_utils.compat.uuid7().bytes, _bound(await self.now()), tick_for // _MICROSECOND
        batches = [_raw_batch(schedules[start : start + BATCH], node, now, every) for start in range(0, len(schedules), BATCH)]
        started = time.perf_counter()
        for batch in batches:
            connection.execute("BEGIN IMMEDIATE")
            for sql, rows in zip((_LEDGER, _TASKS, _ADVANCE), batch, strict=True):
                connection.executemany(sql, rows)
            connection.execute("COMMIT")
        seconds = time.perf_counter() - started
        connection.close()
        return seconds

    async def rows(self) -> list[Row]:
        connection = self._connect()
        rows = self._dicts(connection, "SELECT * FROM schedules")
        connection.close()
        return rows

    async def raw_register(self, rows: Sequence[Row], clients: int) -> float:
        """Use one connection for any number of clients, because SQLite has one writer."""
        values = [list(row.values()) for row in rows]
        connection = self._connect()
        sql = _insert_sql(list(rows[0]))
        started = time.perf_counter()
        for start in range(0, len(values), BATCH):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(sql, values[start : start + BATCH])
            connection.execute("COMMIT")
        seconds = time.perf_counter() - started
        connection.close()
        return seconds

    async def count_ticks(self) -> int:
        return int(self._value("SELECT count(*) FROM ticks"))

    async def batches(self) -> list[Batch]:
        connection = self._connect()
        found = [
            Batch(_instant(at), _instant(first), _instant(last), count)
            for at, first, last, count in connection.execute(_BATCHES)
        ]
        connection.close()
        return found

    async def lags(self, from_: datetime, to: datetime) -> list[float]:
        connection = self._connect()
        sql = "SELECT fired_at - scheduled_for FROM ticks WHERE outcome = 'fired' AND scheduled_for >= ? AND scheduled_for < ?"
        found = [lag / 1e6 for (lag,) in connection.execute(sql, (_bound(from_), _bound(to)))]
        connection.close()
        return found

    async def heartbeat_age(self) -> float:
        seen_at = self._value("SELECT max(seen_at) FROM nodes")
        return 0.0 if seen_at is None else (await self.now() - _instant(seen_at)).total_seconds()

    async def log_statements(self) -> bool:
        return False

    def statements(self) -> int:
        raise NotImplementedError

    async def count_live(self) -> int:
        return int(self._value("SELECT count(*) FROM tasks"))

    async def count_completed(self) -> int:
        return int(self._value("SELECT count(*) FROM task_history WHERE state = 'completed'"))

    async def fill_history(self, count: int) -> None:
        connection = self._connect()
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -1000000")
        every = timedelta(days=30) // _MICROSECOND // count
        parameters = {"count": count, "now": _bound(await self.now()), "every": every, "payload": json.dumps(payload(0))}
        connection.execute(_HISTORY, parameters)
        connection.execute("PRAGMA synchronous = FULL")
        connection.close()
        await self.checkpoint()

    def database_cpu_seconds(self) -> float:
        return 0.0

    def _insert(self, values: Iterable[Sequence[Any]], columns: list[str]) -> None:
        connection = self._connect()
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -1000000")
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(_insert_sql(columns), values)
        connection.execute("COMMIT")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    def _connect(self, path: Path | None = None) -> apsw.Connection:
        connection = apsw.Connection(str(path or self._path))
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        return connection

    def _dicts(self, connection: apsw.Connection, sql: str) -> list[Row]:
        cursor = connection.cursor()
        found = cursor.execute(sql)
        names = [column[0] for column in cursor.get_description()]
        return [dict(zip(names, row, strict=True)) for row in found]

    def _value(self, sql: str) -> Any:
        connection = self._connect()
        try:
            return next(iter(connection.execute(sql)))[0]
        finally:
            connection.close()


def _raw_batch(schedules: Sequence[Row], node: bytes, now: int, every: int) -> tuple[list[Values], list[Values], list[Values]]:
    """Return the rows of the three writes, ready to be bound."""
    ledger: list[Values] = []
    tasks: list[Values] = []
    advance: list[Values] = []
    for row in schedules:
        task, tick = uuid_utils.compat.uuid7().bytes, row["next_tick_at"]
        ledger.append((row["id"], tick, row["tenant_id"], "fired", task, now, node, 1))
        head = (task, row["tenant_id"], row["partition"], row["queue"], row["task_type"], row["target"], row["payload"], "tick")
        policy = (row["priority"], "ready", row["max_attempts"], row["retry"], row["timeout_seconds"], row["labels"], now)
        tasks.append((*head, row["id"], tick, tick, *policy))
        advance.append((tick + every, tick + every, tick, tick, row["id"]))
    return ledger, tasks, advance


def _insert_sql(columns: list[str]) -> str:
    return f"INSERT INTO schedules ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


def _bound(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.bytes
    return (value - _EPOCH) // _MICROSECOND if isinstance(value, datetime) else value


def _instant(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)
