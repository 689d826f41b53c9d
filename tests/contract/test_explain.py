"""EXPLAIN tests: the hot statements find their rows by index on large tables, with and without statistics."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import asyncpg
import pytest

from everbeat.store.postgres.connections import session_settings
from everbeat.store.postgres.samples import SAMPLE_SETTINGS
from everbeat.store.queries import load_blocks, load_numbered
from everbeat.store.sqlite.conversions import to_microseconds
from everbeat.store.sqlite.store import SqliteStore
from tests.factories import NOW, minutes
from tests.support.postgres import PostgresAdmin, run_outside_loop

SCHEDULES, TASKS, PAST = 50_000, 200_000, 50_000
NODE = UUID(int=1)
BATCH = 1000

SCHEDULE_COLUMNS = """id, tenant_id, name, description, partition, trigger_kind, trigger_text, timezone, dst_gap, dst_fold,
  target, target_kind, queue, task_type, payload, overlap, concurrency, catch_up, misfire_grace_seconds, jitter_seconds,
  priority, max_attempts, retry, timeout_seconds, labels, enabled, status, revision, cursor_at, rule_at, next_tick_at, due_at,
  created_at, updated_at"""
SCHEDULE_TEXTS = """'', {partition}, 'cron', '* * * * *', 'UTC', 'after', 'first', '{{}}', 'worker', 'default', 'work', '{{}}',
  'skip', 1, 'latest', 3600.0, 0.0, 100, 3, '{{}}', 3600.0, '{{}}', {true}, 'active', 1"""
TASK_COLUMNS = """id, tenant_id, partition, queue, type, target, payload, origin, schedule_id, scheduled_for, run_at, priority,
  state, max_attempts, retry, timeout_seconds, labels, created_at, lease_until, started_at"""
TASK_TEXTS = """0, CASE n % 3 WHEN 0 THEN 'default' WHEN 1 THEN 'mail' ELSE 'slow' END, 'work', '{}', '{}', 'tick'"""
# Most tasks are ready. There are enough tasks in other states to make a full scan expensive. Each schedule has 100 tasks.
TASK_STATE = "CASE n % 20 WHEN 0 THEN 'running' WHEN 1 THEN 'scheduled' WHEN 2 THEN 'held' WHEN 3 THEN 'held' ELSE 'ready' END"
# Half of the rows belong to one tenant, the rest to thousands of tenants.
POSTGRES_TENANT = "lpad(to_hex(CASE n % 2 WHEN 0 THEN 0 ELSE n % 9973 END), 32, '0')::uuid"
SQLITE_TENANT = "unhex(printf('%032x', CASE n % 2 WHEN 0 THEN 0 ELSE n % 9973 END))"
TASK_REST = "3, '{}', 3600.0, '{}', due, CASE n % 20 WHEN 0 THEN due END, due"
PAST_COLUMNS = """id, tenant_id, queue, type, target, payload, origin, schedule_id, scheduled_for, run_at, priority, state,
  attempt, max_attempts, labels, fence, created_at, finished_at"""
PAST_TEXTS = "'default', 'work', '{}', '{}', 'tick'"

CHECK_COLUMNS = """id, tenant_id, name, description, labels, trigger_kind, trigger_text, timezone, grace_seconds, token, state,
  state_since, due_at, ping_count, runs, revision, version, created_at, updated_at"""
CHECK_TEXTS = "'check-' || n, '', '{}', 'every', '60', 'UTC', 60.0, 'token-' || n, 'up', due, due, 1, '[]', 1, 1, due, due"

START = f"'{NOW.isoformat()}'::timestamptz"
POSTGRES_TABLES = f"""
ALTER TABLE schedules SET (autovacuum_enabled = false);
ALTER TABLE tasks SET (autovacuum_enabled = false);
ALTER TABLE checks SET (autovacuum_enabled = false);
SELECT everbeat_month_ensure({START}), everbeat_month_ensure({START} - interval '20 days');
"""
STATISTICS = "ANALYZE checks; ANALYZE schedules; ANALYZE tasks; ANALYZE task_history; ANALYZE attempts;"


def postgres_rows(first: int = 1, last: int = TASKS) -> str:
    """Return the SQL that inserts rows into each table, beginning with row number `first`."""
    schedules, tasks, past = (f"generate_series({first}, {min(count, last)}) AS n" for count in (SCHEDULES, TASKS, PAST))
    return f"""
INSERT INTO schedules ({SCHEDULE_COLUMNS})
SELECT lpad(to_hex(n), 32, '0')::uuid, '{UUID(int=0)}', 'job-' || n,
  {SCHEDULE_TEXTS.format(partition="n % 256", true="true")}, due, due, due, due, due, due
FROM (SELECT n, {START} + n * interval '1 second' AS due FROM {schedules}) AS made;
INSERT INTO checks ({CHECK_COLUMNS})
SELECT lpad(to_hex(n), 32, '0')::uuid, '{UUID(int=0)}', {CHECK_TEXTS}
FROM (SELECT n, {START} + n * interval '1 second' AS due FROM {schedules}) AS made;
INSERT INTO tasks ({TASK_COLUMNS})
SELECT lpad(to_hex(n), 32, '0')::uuid, {POSTGRES_TENANT}, {TASK_TEXTS}, lpad(to_hex(n / 100), 32, '0')::uuid, due, due, 100,
  {TASK_STATE}, {TASK_REST}
FROM (SELECT n, {START} - n * interval '1 second' AS due FROM {tasks}) AS made;
INSERT INTO task_history ({PAST_COLUMNS})
SELECT lpad(to_hex(n), 32, '0')::uuid, {POSTGRES_TENANT}, {PAST_TEXTS}, lpad(to_hex(n / 100), 32, '0')::uuid, due, due, 100,
  'completed', 1, 3, '{{}}', 1, due, due
FROM (SELECT n, {START} - n * interval '10 second' AS due FROM {past}) AS made;
INSERT INTO attempts (task_id, tenant_id, fence, attempt, started_at, ended_at, outcome)
SELECT id, tenant_id, 1, 1, finished_at, finished_at, 'lost' FROM task_history
WHERE id >= lpad(to_hex({first}), 32, '0')::uuid;
"""


POSTGRES_CONTENTS = {
    "fresh": postgres_rows(),
    "stale": postgres_rows(last=20) + STATISTICS + postgres_rows(first=21),
    "analyzed": postgres_rows() + STATISTICS,
}

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
TENANT = UUID(int=0)
LEASES = {"now": NOW, "tenant_ids": [TENANT] * BATCH, "ids": IDS, "fences": [1] * BATCH}
ENDINGS = {
    **LEASES,
    "outcomes": ["lost"] * BATCH,
    "states": ["ready"] * BATCH,
    "run_ats": [None] * BATCH,
    "errors": ["x"] * BATCH,
    "reasons": ["x"] * BATCH,
    "responses": ["{}"] * BATCH,
    "is_expired": True,
}
LIST = {
    "tenant_id": TENANT,
    "before": UUID(int=TASKS // 2),
    "floor": UUID(int=TASKS // 4),
    "limit": 50,
    "schedule_id": UUID(int=7),
    "scan": 20_000,
    **dict.fromkeys(("state", "queue", "type", "label_key", "label_value")),
}
MATCHING = {**LIST, "state": "ready", "queue": "mail", "type": "work", "label_key": "team", "label_value": "red"}
CHECK_TIMES = ("state_since", "cursor_at", "expected_at", "due_at", "last_ping_at")
ARGUMENTS: dict[str, dict[str, Any]] = {
    "schedule_find": {"tenant_id": TENANT, "names": ["job-7", "job-8"], "ids": [UUID(int=9)]},
    "schedule_runs": {"tenant_id": TENANT, "ids": IDS, "limit": 20},
    "task_slow": {"tenant_id": TENANT, "seconds": 60.0, "limit": 1000, "now": NOW},
    "task_ready_ages": {"tenant_id": TENANT, "seconds": 60.0, "limit": 1000, "now": NOW},
    "schedule_search": {"tenant_id": TENANT, "text": "9", "scan": 200_000, "limit": 8},
    "schedule_list": {
        "tenant_id": TENANT,
        "after_name": "job-3",
        "limit": 50,
        **dict.fromkeys(("status", "name_prefix", "queue", "type", "target"), "x"),
        "zones": ["UTC"],
    },
    "schedule_due": {"now": NOW, "partitions": list(range(256)), "horizon_seconds": 5, "limit": 16},
    "tick_fire": {"now": NOW, **FIRING},
    "task_flows": {
        "queues": ["default", "mail"],
        "tenant_ids": [UUID(int=0)] * 2,
        "priorities": [-1] * 2,
        "fair_keys": ["a"] * 2,
        "types": ["a"] * 2,
        "last_tenant_id": UUID(int=2**128 - 1),
        "limit": 10_000,
    },
    "task_ready_queues": {"queue": "", "tenant_id": UUID(int=0), "limit": 1000},
    "task_claim_running": {"tenant_ids": [TENANT]},
    "task_claim": {
        "now": NOW,
        "tenant_ids": [TENANT, UUID(int=5)],
        "priorities": [100, 100],
        "fair_keys": ["a", "b"],
        "limits": [5, 5],
        "first_queue_types": [1, 2],
        "last_queue_types": [1, 3],
        "queues": ["default", "mail", "default"],
        "types": ["work", "work", "other"],
        "limit": 10,
        "firsts": [1, 6],
        "workers": ["a", "b"],
        "lease_seconds": [30.0, 30.0],
        "total_seconds": 604_800.0,
    },
    "task_heartbeat": {**LEASES, "fractions": [0.5] * BATCH, "messages": ["x"] * BATCH, "log_bytes": [0] * BATCH},
    "task_complete": {**LEASES, "results": ["x"] * BATCH, "responses": ["{}"] * BATCH, "lock_timeout": "10ms"},
    "task_complete_unlocked": {**LEASES, "results": ["x"] * BATCH, "responses": ["{}"] * BATCH},
    "task_accept": {**LEASES, "lease_seconds": [30.0] * BATCH, "responses": ["{}"] * BATCH},
    "task_targets": {"ids": IDS},
    "task_completed": LEASES,
    "task_queues": {"ids": IDS},
    "task_running": LEASES,
    "task_expired": {"now": NOW, "limit": 500},
    "task_leases_ahead": {"now": NOW, "limit": 500},
    "task_shorten_leases": {"now": NOW, "ids": IDS},
    "task_end": ENDINGS,
    "task_finish": ENDINGS,
    "task_ended": LEASES,
    "task_promote": {"now": NOW, "limit": 1000},
    "task_release_held_schedules": {"ids": IDS},
    "task_release_held_candidates": {"ids": IDS, "limit": 500},
    "task_release_held_any": {"limit": 500},
    "task_release_held_replaced": {"ids": IDS},
    "task_release_held": {"now": NOW, "ids": IDS, "concurrencies": [1] * BATCH},
    "task_hold": {"tenant_id": TENANT, "ids": IDS},
    "task_cancel_lock": {"tenant_id": TENANT, "ids": IDS},
    "task_cancel": {"now": NOW, "tenant_id": TENANT, "ids": IDS, "reason": "x"},
    "task_cancel_running": {"tenant_id": TENANT, "ids": IDS},
    "task_find": {"tenant_id": TENANT, "ids": IDS},
    "task_list": MATCHING,
    "task_list_of_schedule": MATCHING,
    "task_list_floor": LIST,
    "task_list_past": {**MATCHING, "state": "completed"},
    "task_list_past_of_schedule": {**MATCHING, "state": "completed"},
    "task_list_past_floor": LIST,
    "task_position": {"tenant_id": TENANT, "queue": "q1", "priority": 100, "run_at": NOW, "id": TENANT, "limit": 1000},
    "task_ready_count": {"tenant_id": TENANT, "limit": 1000, "soon_seconds": 60.0, "now": NOW},
    "task_ticks": {"tenant_id": TENANT, "schedule_id": UUID(int=7), "from_at": NOW - minutes(60), "to_at": NOW},
    "task_runs": {"tenant_id": TENANT, "ids": IDS},
    "sample_waiting": {"limit": 100_000},
    "task_queue_list": {"tenant_id": TENANT},
    "worker_running": {"tenant_id": TENANT, "workers": ["host:1", "host:2"]},
    "worker_list": {"tenant_id": TENANT, "before_at": NOW, "before_id": UUID(int=7), "queue": "mail", "limit": 50},
    "sample_ready": {"max_queues": 1000, "max_flows": 1000, "limit": 10_000},
    "sample_running": {"near_ratio": 0.9, "limit": 20_000, "now": NOW},
    "check_due": {"now": NOW, "limit": 500},
    "check_find": {"tenant_id": TENANT, "names": ["check-7", "check-8"]},
    "check_find_tokens": {"tokens": ["token-7", "token-8"]},
    "check_list": {"tenant_id": TENANT, "after_name": "check-3", "state": None, "prefix": None, "limit": 50},
    "check_advance": {
        "ids": IDS,
        **{f"{name}s": [1] * BATCH for name in ("expected", "version", "last_duration_seconds", "ping_count")},
        **{f"{name}s": ["up"] * BATCH for name in ("state", "reason", "runs")},
        **{f"{name}s": [NOW] * BATCH for name in CHECK_TIMES},
    },
    "blob_unused": {"refs": [f"tenant/2026-01/{number}" for number in range(BATCH)]},
}
HOT_TABLES = ("schedules", "checks", "tasks", "task_history", "attempts", "workers")
LIVE, HISTORY = {"tasks"}, {"task_history"}
TOUCHED = {
    **{verb: LIVE for verb in ARGUMENTS if verb.startswith("task_")},
    **{verb: HISTORY for verb in ARGUMENTS if verb.startswith("task_list_past")},
    **dict.fromkeys(
        ("task_complete", "task_complete_unlocked", "task_finish", "task_cancel", "task_find", "task_queues", "task_ticks"),
        LIVE | HISTORY,
    ),
    **{
        verb: {"schedules"}
        for verb in ("schedule_find", "schedule_list", "schedule_search", "schedule_due", "task_release_held_schedules")
    },
    **{verb: {"schedules", "tasks"} for verb in ("tick_fire", "task_release_held_candidates", "task_release_held_any")},
    **dict.fromkeys(("sample_waiting", "sample_ready", "sample_running"), LIVE),
    **{verb: {"checks"} for verb in ARGUMENTS if verb.startswith("check_")},
    "task_completed": HISTORY,
    "schedule_runs": HISTORY,
    "task_runs": HISTORY,
    "worker_running": LIVE,
    "worker_list": {"workers"},
    "blob_unused": LIVE | HISTORY,
    "task_end": LIVE | {"attempts"},
    "task_ended": HISTORY | {"attempts"},
}
# These indexes may be read completely or from their start: they contain only rows that the statement needs.
FULLY_READ = {
    "task_expired": {"tasks_running"},
    "task_leases_ahead": {"tasks_running"},
    "task_release_held_any": {"tasks_held"},
    "sample_waiting": {"tasks_held", "tasks_scheduled"},
    "sample_ready": {"tasks_ready"},
}
# These statements must use exactly this index, whatever the statistics are. Indexes of month tables have different names.
BY_INDEX = {
    "schedule_search": "schedules_tenant_id_name_key",
    "task_flows": "tasks_ready",
    "task_ready_queues": "tasks_ready",
    "task_claim": "tasks_ready|tasks_pkey",
    "task_claim_running": "tasks_running",
    "sample_waiting": "tasks_(held|scheduled)",
    "sample_ready": "tasks_ready",
    "sample_running": "tasks_running",
    "check_due": "checks_due",
    "check_find_tokens": "checks_(token_key|old_token)",
    "check_list": "checks_tenant_id_name_key",
    "check_advance": "checks_pkey",
    "task_list": "tasks_of_tenant",
    "task_list_floor": "tasks_of_tenant",
    "task_list_past": r"task_history_\d{4}_\d{2}_tenant_id_id_idx",
    "task_list_past_floor": r"task_history_\d{4}_\d{2}_tenant_id_id_idx",
}


# It has few rows: only the active pauses.
ACTIVE_PAUSES = "pauses_active"


@pytest.fixture(scope="module", params=list(POSTGRES_CONTENTS))
def big_postgres(request: pytest.FixtureRequest, postgres_server: PostgresAdmin, postgres_template: str) -> Iterator[str]:
    """A large database: without statistics, with statistics from when it was small, or with current statistics."""
    name = postgres_server.create_database(template=postgres_template)
    url = postgres_server.url(name)
    run_outside_loop(_fill(url, POSTGRES_TABLES + POSTGRES_CONTENTS[request.param]))
    yield url
    postgres_server.drop_database(name)


async def _fill(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(sql)
    await connection.close()


def literal(value: Any) -> str:
    if isinstance(value, list):
        return "'{" + ",".join("NULL" if one is None else str(one) for one in value) + "}'"
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int | float) else f"'{value}'"


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("verb", list(ARGUMENTS))
async def test_postgres_finds_rows_by_index(big_postgres: str, verb: str, mode: str) -> None:
    plan = await plan_of(big_postgres, verb, mode)
    shown = json.dumps(plan, indent=1)
    touched = set()
    for node in nodes_of(plan):
        if (table := table_of(node)) is not None:
            touched.add(table)
            assert node["Node Type"] != "Seq Scan", shown
        is_index_scan = node["Node Type"] in ("Index Scan", "Index Only Scan", "Bitmap Index Scan")
        if is_index_scan and node["Index Name"] not in {ACTIVE_PAUSES, *FULLY_READ.get(verb, ())}:
            assert re.search(r"[<=>]", node.get("Index Cond", "")), shown
    assert touched == TOUCHED[verb]
    if (index := BY_INDEX.get(verb)) is not None:
        used = {node["Index Name"] for node in nodes_of(plan) if "Index Name" in node} - {ACTIVE_PAUSES}
        assert all(re.fullmatch(index, name) for name in used), shown


@pytest.fixture(scope="module")
def one_tenant(postgres_server: PostgresAdmin, postgres_template: str) -> Iterator[str]:
    """A large database in which all rows belong to the default tenant, with a history of two months and current statistics."""
    name = postgres_server.create_database(template=postgres_template)
    url = postgres_server.url(name)
    rows = postgres_rows().replace(POSTGRES_TENANT, f"'{TENANT}'::uuid").replace("interval '10 second'", "interval '60 second'")
    months = f"SELECT everbeat_month_ensure({START} + n * interval '20 days') FROM generate_series(-2, 2) AS n;"
    run_outside_loop(_fill(url, POSTGRES_TABLES + months + rows + STATISTICS))
    yield url
    postgres_server.drop_database(name)


@pytest.mark.parametrize("verb", ["task_list", "task_list_floor", "task_list_past", "task_list_past_floor"])
async def test_postgres_lists_the_tasks_of_the_only_tenant_in_the_order_of_the_index(one_tenant: str, verb: str) -> None:
    """The planner estimated one row, because nothing precedes the only tenant, and in some states of the statistics read and
    sorted all of its tasks for each page."""
    newest = {**LIST, "before": UUID(int=2**128 - 1), "floor": UUID(int=0)}
    plan = await plan_of(one_tenant, verb, "force_custom_plan", newest)
    shown = json.dumps(plan, indent=1)
    assert [node for node in nodes_of(plan) if "Sort" in node["Node Type"]] == [], shown
    assert sum(node["Plan Rows"] for node in nodes_of(plan) if "Index Name" in node) > 1000, shown


async def plan_of(url: str, verb: str, mode: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
    query = load_numbered("everbeat.store.postgres")[verb]
    settings = {**session_settings(10), **(SAMPLE_SETTINGS if verb.startswith("sample_") else {}), "plan_cache_mode": mode}
    connection = await asyncpg.connect(url, server_settings=settings)
    await connection.execute(f"PREPARE hot AS {query.sql}")
    values = ", ".join(literal((arguments or ARGUMENTS[verb])[name]) for name in query.parameters)
    (row,) = await connection.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE hot ({values})")
    await connection.close()
    plan: dict[str, Any] = json.loads(row[0])[0]["Plan"]
    return plan


def table_of(node: dict[str, Any]) -> str | None:
    """Return the hot table that a plan node reads or writes. A month table counts as its parent."""
    name = re.sub(r"_\d{4}_\d{2}$", "", node.get("Relation Name", ""))
    return name if name in HOT_TABLES else None


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes_of(child)


# Fewer rows than in PostgreSQL: SQLite's planner does not consider the size of a table.
SQLITE_COUNT = 20_000
NUMBERS = "WITH RECURSIVE numbers (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})"
SQLITE_ROWS = (
    f"""INSERT INTO schedules ({SCHEDULE_COLUMNS}) {NUMBERS.format(count=SQLITE_COUNT)}
    SELECT unhex(printf('%032x', n)), zeroblob(16), 'job-' || n, {SCHEDULE_TEXTS.format(partition="n % 256", true="1")},
      due, due, due, due, due, due
    FROM (SELECT n, {to_microseconds(NOW)} + n * 1000000 AS due FROM numbers)""",
    f"""INSERT INTO checks ({CHECK_COLUMNS}) {NUMBERS.format(count=SQLITE_COUNT)}
    SELECT unhex(printf('%032x', n)), zeroblob(16), {CHECK_TEXTS}
    FROM (SELECT n, {to_microseconds(NOW)} + n * 1000000 AS due FROM numbers)""",
    f"""INSERT INTO tasks ({TASK_COLUMNS}) {NUMBERS.format(count=SQLITE_COUNT)}
    SELECT unhex(printf('%032x', n)), {SQLITE_TENANT},
      {TASK_TEXTS}, unhex(printf('%032x', n / 100)), due, due, 100, {TASK_STATE},
      {TASK_REST}
    FROM (SELECT n, {to_microseconds(NOW)} - n * 1000000 AS due FROM numbers)""",
    f"""INSERT INTO task_history ({PAST_COLUMNS}) {NUMBERS.format(count=SQLITE_COUNT)}
    SELECT unhex(printf('%032x', n)), {SQLITE_TENANT},
      {PAST_TEXTS}, unhex(printf('%032x', n / 100)), due, due, 100, 'completed',
      1, 3, '{{}}', 1, due, due
    FROM (SELECT n, {to_microseconds(NOW)} - n * 10000000 AS due FROM numbers)""",
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


SQLITE_HOT = {
    **dict.fromkeys(
        ("schedule_find", "tick_fire", "tick_fire_guard", "tick_fire_decide", "tick_fire_ledger", "tick_fire_tasks")
    ),
    **dict.fromkeys(block for block in load_blocks("everbeat.store.sqlite") if block.startswith("task_")),
    "schedule_due": "schedules_due",
    "blob_unused": "task_history_payload_refs",
    "task_flows": "tasks_ready",
    "task_ready_queues": "tasks_ready",
    "task_claim_pick": "tasks_ready",
    "task_claim_picks": "tasks_ready",
    "task_claim_oldest": "tasks_ready",
    "task_claim_running": "tasks_running_of_tenant",
    "sample_ready": "tasks_ready",
    "sample_ready_queues": "tasks_ready",
    "task_expired": "tasks_running",
    "task_leases_ahead": "tasks_running",
    "task_promote": "tasks_scheduled",
    "task_promote_next": "tasks_scheduled",
    "task_release_held_candidates": "tasks_held",
    "task_release_held_any": "tasks_held",
    "task_release_held_replaced": "tasks_of_schedule",
    "task_release_held": "tasks_held",
    "task_hold": "tasks_of_schedule",
    "task_list": "tasks_of_tenant",
    "task_list_floor": "tasks_of_tenant",
    "task_list_past": "task_history_of_tenant",
    "task_list_past_floor": "task_history_of_tenant",
    "task_list_of_schedule": "tasks_of_schedule",
    "task_list_past_of_schedule": "task_history_executions",
    "task_position": "tasks_ready",
    "task_ready_count": "tasks_ready",
    "task_ticks": "task_history_of_schedule",
    # What else the pages of the dashboard read.
    "dead_list": "dead_letters_newest",
    "dead_errors": "dead_letters_newest",
    "audit_log_list": "audit_log_of_tenant",
    "audit_log_list_all": "audit_log_by_time",
    "bulk_list": "bulk_operations_of_tenant",
    "tick_recent": None,
    "tick_list": None,
    "check_due": "checks_due",
    **dict.fromkeys(("check_find", "check_find_tokens", "check_list", "check_advance", "check_replace")),
    **dict.fromkeys(("check_ping_list", "check_tick_list", "check_tick_recent", "check_tick_totals", "check_transition_list")),
    "worker_list": "workers_seen",
    "worker_queues": "workers_seen",
    "worker_running": "tasks_running_of_tenant",
}
SQLITE_HOT["schedule_search"] = "sqlite_autoindex_schedules_2"
del SQLITE_HOT["task_depths"]  # counts all live tasks


# With the aliases that the statements use.
SQLITE_LARGE = (
    *("schedules", "s", "tasks", "t", "n", "task_history", "h", "ticks", "dead_letters", "audit_log"),
    *("checks", "c", "check_pings", "check_ticks", "check_transitions"),
)


@pytest.mark.parametrize("block", list(SQLITE_HOT))
def test_sqlite_finds_rows_by_index(big_sqlite: apsw.Connection, block: str) -> None:
    sql = load_blocks("everbeat.store.sqlite")[block]
    values = tuple(None for _ in range(sql.count("?"))) if re.search(r"\?(?!\d)", sql) else None
    details = [row[3] for row in big_sqlite.execute(f"EXPLAIN QUERY PLAN {sql}", values or _bindings(sql))]
    for table in SQLITE_LARGE:
        scans = [detail for detail in details if detail.split()[:2] == ["SCAN", table] and "VIRTUAL TABLE" not in detail]
        assert scans == [], details
    assert [detail for detail in details if "AUTOMATIC" in detail] == [], details
    if (index := SQLITE_HOT[block]) is not None:
        assert any(detail.startswith("SEARCH") and re.search(rf"INDEX {index}\b", detail) for detail in details), details


def test_sqlite_task_flows_skips_the_tasks_of_each_flow(big_sqlite: apsw.Connection) -> None:
    """A plan that names the index may still read all of it. This test therefore counts the steps."""
    sql = load_blocks("everbeat.store.sqlite")["task_flows"]
    first = {"queue": "default", "tenant_id": bytes(16), "priority": -1, "fair_key": "", "type": ""}
    steps = itertools.count()
    big_sqlite.set_progress_handler(lambda: next(steps) < 0, 1)
    found = list(big_sqlite.execute(sql, {**first, "last_tenant_id": bytes(16), "limit": 10_000}))
    big_sqlite.set_progress_handler(None)
    assert [row[1:] for row in found] == [(bytes(16), 100, "", "work")]
    ((ready,),) = big_sqlite.execute("SELECT count(*) FROM tasks WHERE state = 'ready' AND tenant_id = zeroblob(16)")
    assert next(steps) < 500 < ready


def test_sqlite_sample_ready_skips_the_tasks_of_each_flow_and_counts_up_to_its_limit(big_sqlite: apsw.Connection) -> None:
    sql = load_blocks("everbeat.store.sqlite")["sample_ready"]
    steps = itertools.count()
    big_sqlite.set_progress_handler(lambda: next(steps) < 0, 1)
    ((_, ready, oldest_at),) = big_sqlite.execute(sql, {"queue": "default", "max_flows": 10, "limit": 50})
    big_sqlite.set_progress_handler(None)
    assert ready == 50
    assert oldest_at is not None
    ((total,),) = big_sqlite.execute("SELECT count(*) FROM tasks WHERE state = 'ready' AND queue = 'default'")
    assert next(steps) < 2000 < total


@pytest.mark.parametrize("block", ["sample_waiting", "sample_running"])
def test_sqlite_samples_read_partial_indexes_only(big_sqlite: apsw.Connection, block: str) -> None:
    sql = load_blocks("everbeat.store.sqlite")[block]
    details = [row[3] for row in big_sqlite.execute(f"EXPLAIN QUERY PLAN {sql}", _bindings(sql))]
    read = [detail for detail in details if re.match(r"(SCAN|SEARCH) tasks\b", detail)]
    assert read
    for detail in read:
        assert re.search(r"INDEX tasks_(held|scheduled|ready|running|triggered)", detail), details


def test_sqlite_task_ready_queues_skips_the_tasks_of_each_queue_and_tenant(big_sqlite: apsw.Connection) -> None:
    sql = load_blocks("everbeat.store.sqlite")["task_ready_queues"]
    steps = itertools.count()
    big_sqlite.set_progress_handler(lambda: next(steps) < 0, 1)
    found = list(big_sqlite.execute(sql, {"queue": "", "tenant_id": bytes(16), "limit": 10}))
    big_sqlite.set_progress_handler(None)
    assert len(found) == 10
    ((ready,),) = big_sqlite.execute("SELECT count(*) FROM tasks WHERE state = 'ready' AND tenant_id = zeroblob(16)")
    assert next(steps) < 1000 < ready


def _bindings(sql: str) -> Any:
    """Return a binding of NULL for every parameter. Only the plan is needed."""
    numbers = [int(number) for number in re.findall(r"\?(\d+)", sql)]
    return (None,) * max(numbers) if numbers else _NullBindings()


class _NullBindings(dict[str, Any]):
    """Binds NULL to every parameter. Only the plan is needed."""

    def __missing__(self, key: str) -> None:
        return None


async def test_the_tables_contain_the_expected_rows(big_postgres: str) -> None:
    connection = await asyncpg.connect(big_postgres)
    counts = [await connection.fetchval(f"SELECT count(*) FROM {table}") for table in HOT_TABLES]
    await connection.close()
    assert counts == [SCHEDULES, SCHEDULES, TASKS, PAST, PAST, 0]
