"""EXPLAIN guards: the hot statements find their rows by index, on big tables, with and without statistics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import asyncpg
import pytest

from everbeat.store.queries import load_blocks, load_numbered
from everbeat.store.sqlite.connections import to_microseconds
from everbeat.store.sqlite.store import SqliteStore
from tests.factories import NOW
from tests.support.postgres import PostgresAdmin, run_outside_loop

SCHEDULES, TASKS = 50_000, 20_000
NODE = UUID(int=1)
BATCH = 100

SCHEDULE_COLUMNS = """id, tenant_id, name, description, partition, trigger_kind, trigger_text, timezone, dst_gap, dst_fold,
  target, target_kind, queue, task_type, payload, overlap, concurrency, catch_up, misfire_grace_seconds, jitter_seconds,
  priority, max_attempts, retry, timeout_seconds, labels, enabled, status, revision, cursor_at, rule_at, next_tick_at, due_at,
  created_at, updated_at"""
SCHEDULE_TEXTS = """'', {partition}, 'cron', '* * * * *', 'UTC', 'after', 'first', '{{}}', 'worker', 'default', 'work', '{{}}',
  'skip', 1, 'latest', 3600.0, 0.0, 100, 3, '{{}}', 3600.0, '{{}}', {true}, 'active', 1"""
TASK_COLUMNS = """id, tenant_id, partition, queue, type, target, payload, origin, schedule_id, scheduled_for, run_at, priority,
  state, max_attempts, retry, timeout_seconds, labels, created_at"""
TASK_TEXTS = """0, CASE {n} % 3 WHEN 0 THEN 'default' WHEN 1 THEN 'mail' ELSE 'slow' END, 'work', '{{}}', '{{}}', 'tick'"""

START = f"'{NOW.isoformat()}'::timestamptz"
POSTGRES_ROWS = f"""
ALTER TABLE schedules SET (autovacuum_enabled = false);
ALTER TABLE tasks SET (autovacuum_enabled = false);
INSERT INTO schedules ({SCHEDULE_COLUMNS})
SELECT lpad(to_hex(n), 32, '0')::uuid, '{UUID(int=0)}', 'job-' || n,
  {SCHEDULE_TEXTS.format(partition="n % 256", true="true")}, due, due, due, due, due, due
FROM (SELECT n, {START} + n * interval '1 second' AS due FROM generate_series(1, {SCHEDULES}) AS n) AS made;
INSERT INTO tasks ({TASK_COLUMNS})
SELECT lpad(to_hex(n), 32, '0')::uuid, '{UUID(int=0)}', {TASK_TEXTS.format(n="n")}, lpad(to_hex(n), 32, '0')::uuid, due, due,
  100, 'ready', 3, '{{}}', 3600, '{{}}', due
FROM (SELECT n, {START} - n * interval '1 second' AS due FROM generate_series(1, {TASKS}) AS n) AS made;
"""

IDS = [UUID(int=number) for number in range(1, BATCH + 1)]
FIRING = {
    "node": NODE,
    "ids": IDS,
    "partitions": [number % 256 for number in range(1, BATCH + 1)],
    "epochs": [1] * BATCH,
    "revisions": [1] * BATCH,
    "expected": [NOW] * BATCH,
    "fires": [NOW] * BATCH,
    "task_ids": IDS,
    "cursors": [NOW] * BATCH,
    "next_ticks": [NOW] * BATCH,
    "dues": [NOW] * BATCH,
    **{f"skip_{part}": [] for part in ("ids", "tenants", "epochs", "firsts", "lasts", "counts", "reasons")},
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "schedule_find": {"tenant_id": UUID(int=0), "names": ["job-7", "job-8"], "ids": [UUID(int=9)]},
    "schedule_list": {
        "tenant_id": UUID(int=0),
        "after_name": "job-3",
        "limit": 50,
        **dict.fromkeys(("status", "name_prefix", "queue", "type", "target"), "x"),
    },
    "schedule_due": {"now": NOW, "partitions": list(range(256)), "horizon_seconds": 5, "limit": 16},
    "tick_fire": {"now": NOW, **FIRING},
    "task_claim": {"now": NOW, "queues": ["default", "mail"], "limit": 10, "worker": "w", "lease_seconds": 30},
    "task_reap": {"now": NOW, "limit": 1000},
}
HOT_TABLES = ("schedules", "tasks")
TOUCHED = {
    "schedule_find": {"schedules"},
    "schedule_list": {"schedules"},
    "schedule_due": {"schedules"},
    "tick_fire": {"schedules", "tasks"},
    "task_claim": {"tasks"},
    "task_reap": {"tasks"},
}


@pytest.fixture(scope="module", params=["fresh", "analyzed"])
def big_postgres(request: pytest.FixtureRequest, postgres_server: PostgresAdmin, postgres_template: str) -> Iterator[str]:
    """A database with many rows, as they stand right after being inserted, or with statistics."""
    name = postgres_server.create_database(template=postgres_template)
    url = postgres_server.url(name)
    run_outside_loop(_fill(url, POSTGRES_ROWS + ("ANALYZE schedules; ANALYZE tasks;" if request.param == "analyzed" else "")))
    yield url
    postgres_server.drop_database(name)


async def _fill(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(sql)
    await connection.close()


def literal(value: Any) -> str:
    if isinstance(value, list):
        return "'{" + ",".join(str(one) for one in value) + "}'"
    return str(value) if isinstance(value, int) else f"'{value}'"


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("verb", list(ARGUMENTS))
async def test_postgres_finds_rows_by_index(big_postgres: str, verb: str, mode: str) -> None:
    query = load_numbered("everbeat.store.postgres")[verb]
    connection = await asyncpg.connect(big_postgres)
    await connection.execute(f"SET plan_cache_mode = {mode}; SET jit = off")
    await connection.execute(f"PREPARE hot AS {query.sql}")
    values = ", ".join(literal(ARGUMENTS[verb][name]) for name in query.parameters)
    (row,) = await connection.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE hot ({values})")
    await connection.close()
    plan = json.loads(row[0])[0]["Plan"]
    scanned = [(node["Node Type"], node["Relation Name"]) for node in nodes_of(plan) if node.get("Relation Name") in HOT_TABLES]
    assert [scan for scan in scanned if scan[0] == "Seq Scan"] == [], json.dumps(plan, indent=1)
    assert {table for _, table in scanned} == TOUCHED[verb]


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes_of(child)


NUMBERS = "WITH RECURSIVE numbers (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})"
SQLITE_ROWS = (
    f"""INSERT INTO schedules ({SCHEDULE_COLUMNS}) {NUMBERS.format(count=SCHEDULES)}
    SELECT unhex(printf('%032x', n)), zeroblob(16), 'job-' || n, {SCHEDULE_TEXTS.format(partition="n % 256", true="1")},
      due, due, due, due, due, due
    FROM (SELECT n, {to_microseconds(NOW)} + n * 1000000 AS due FROM numbers)""",
    f"""INSERT INTO tasks ({TASK_COLUMNS}) {NUMBERS.format(count=TASKS)}
    SELECT unhex(printf('%032x', n)), zeroblob(16), {TASK_TEXTS.format(n="n")}, unhex(printf('%032x', n)), due, due, 100,
      'ready', 3, '{{}}', 3600.0, '{{}}', due
    FROM (SELECT n, {to_microseconds(NOW)} - n * 1000000 AS due FROM numbers)""",
)


@pytest.fixture(scope="module", params=["fresh", "analyzed"])
def big_sqlite(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    path = tmp_path_factory.mktemp("explain") / "big.sqlite"
    run_outside_loop(_migrate(path))
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA synchronous = OFF")
    with connection:
        for sql in SQLITE_ROWS:
            connection.execute(sql)
    if request.param == "analyzed":
        connection.execute("ANALYZE")
    connection.execute(load_blocks("everbeat.store.sqlite")["tick_fire_table"])
    yield connection
    connection.close()


async def _migrate(path: Path) -> None:
    store = SqliteStore(path)
    await store.migrate()
    await store.close()


SQLITE_HOT = [
    "schedule_find",
    "schedule_due",
    "tick_fire",
    "tick_fire_guard",
    "tick_fire_decide",
    "tick_fire_ledger",
    "tick_fire_tasks",
    "task_claim",
    "task_reap",
]


@pytest.mark.parametrize("block", SQLITE_HOT)
def test_sqlite_finds_rows_by_index(big_sqlite: apsw.Connection, block: str) -> None:
    sql = load_blocks("everbeat.store.sqlite")[block]
    details = [row[3] for row in big_sqlite.execute(f"EXPLAIN QUERY PLAN {sql}", _Nothing())]
    aliases = {"schedules": ("schedules", "s"), "tasks": ("tasks", "t")}
    for names in aliases.values():
        assert [detail for detail in details if any(detail.split()[:2] == ["SCAN", name] for name in names)] == [], details
    if block in ("schedule_due", "task_claim"):
        index = {"schedule_due": "schedules_due", "task_claim": "tasks_ready"}[block]
        assert any(detail.startswith("SEARCH") and f"INDEX {index}" in detail for detail in details), details


class _Nothing(dict[str, Any]):
    """Every parameter is NULL; only the plan is asked for."""

    def __missing__(self, key: str) -> None:
        return None


async def test_the_rows_are_there_to_be_scanned(big_postgres: str) -> None:
    connection = await asyncpg.connect(big_postgres)
    counts = [await connection.fetchval(f"SELECT count(*) FROM {table}") for table in HOT_TABLES]
    await connection.close()
    assert counts == [SCHEDULES, TASKS]
