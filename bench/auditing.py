"""The audit of 90 days with many daily schedules, and how many schedules per second are counted and swept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from bench.databases import BenchDatabase, Scale
from bench.report import ResultRow, at_most, print_progress
from bench.rows import template
from everbeat.core.ledger_days import DAY, RollUpPosition, day_of
from everbeat.core.retention import RetentionPeriods
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.timeline import TimelineCache
from everbeat.services.audit import AuditReport, AuditService
from everbeat.services.maintenance.day_counts import DayCounter
from everbeat.services.maintenance.tick_checks import CheckedWindow, TickChecks
from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore

_NAME = "PostgreSQL"
_DAYS = 90
_LATE = timedelta(seconds=17)
_PAGE = 500
_SAMPLE = 100

# The ticks of the two days that are not taken from the roll-up as a whole: today, and the first day of the window.
_TICKS = """
    INSERT INTO ticks (schedule_id, scheduled_for, tenant_id, outcome, task_id, fired_at, count)
    SELECT id, at, tenant_id, 'fired', id, at + interval '2 milliseconds', 1
    FROM (
      SELECT id, tenant_id, $1::timestamptz + (next_tick_at - date_trunc('day', next_tick_at, 'UTC')) AS at FROM schedules) AS s
    WHERE at <= $2"""
_DAY = """
    INSERT INTO ledger_days (day, schedule_id, tenant_id, expected, fired, missing, doubled, lag_seconds, first_at, last_at)
    SELECT $1::timestamptz, id, tenant_id, 1, 1, 0, 0, 0.002, $1, $1 FROM schedules ORDER BY id"""
_SUMS = """
    INSERT INTO tenant_ledger_days (tenant_id, day, expected, fired, lag_seconds)
    SELECT tenant_id, day, sum(expected), sum(fired), max(lag_seconds) FROM ledger_days GROUP BY tenant_id, day"""
_POSITION = "INSERT INTO loop_leases (name, lease_seconds, position, ran_at) VALUES ('roll_up', 20, $1, $2)"


async def run(database: BenchDatabase, scale: Scale) -> list[ResultRow]:
    if not database.url.startswith("postgres"):
        return []
    registered = 100_000 if scale.is_quick else 1_000_000
    await database.recreate()
    now = await database.now()
    print_progress(f"{database.name}: inserting {registered:,} daily schedules and {_DAYS} days of counts")
    await database.load_daily(template({"cron": "0 0 * * *"}, now - timedelta(days=_DAYS + 5)), registered, now)
    size = await _fill(database.url, now)
    store = PostgresStore(database.url, listen=False)
    try:
        rows = await _audits(store, registered, now)
        return [*rows, *await _rates(store, now), _plain(f"size of the counts of {_DAYS} days", size / 2**30, "GB")]
    finally:
        await store.close()


async def _fill(url: str, now: datetime) -> int:
    """Insert the counts of the closed days, and the ledger of the others. Returns the size of the counts."""
    first, today = day_of(now) - _DAYS * DAY, day_of(now)
    connection = await asyncpg.connect(url, command_timeout=3600)
    await connection.execute("SET synchronous_commit = off")
    await connection.execute("UPDATE schedules SET cursor_at = next_tick_at - interval '1 day'")
    for day in (first, today - DAY, today):
        await connection.execute("SELECT everbeat_month_ensure($1)", day)
        await connection.execute(_TICKS, day, now)
    for index in range(_DAYS):
        await connection.execute(_DAY, first + index * DAY)
    await connection.execute(_SUMS)
    position = msgspec.json.encode(RollUpPosition(first, today)).decode()
    await connection.execute(_POSITION, position, now)
    for table in ("schedules", "ticks", "ledger_days", "tenant_ledger_days"):
        await connection.execute(f"VACUUM (ANALYZE) {table}")
    size: int = await connection.fetchval("SELECT pg_total_relation_size('ledger_days')")
    await connection.close()
    return size


async def _audits(store: Store, registered: int, now: datetime) -> list[ResultRow]:
    audit = AuditService(store, TimelineCache(), late_seconds=5, retention_days=90)
    start, today = day_of(now) - _DAYS * DAY, day_of(now)
    cases: list[tuple[str, Callable[[], Awaitable[AuditReport]]]] = [
        ("90 whole days", lambda: audit.run(DEFAULT_TENANT, from_=start, to=today)),
        ("90 days until now", lambda: audit.run(DEFAULT_TENANT, from_=now - timedelta(days=_DAYS), to=None)),
        ("the last 24 hours", lambda: audit.run(DEFAULT_TENANT, from_=None, to=None)),
        ("90 days until now, a page of 1,000 schedules", lambda: audit.run(DEFAULT_TENANT, from_=start, to=None, limit=1000)),
    ]
    rows = []
    for what, call in cases:
        seconds, report = min([await _timed(call) for _ in range(3)], key=lambda one: one[0])
        total = report.total
        detail = f"{total.expected:,} expected, {total.fired:,} fired, {total.missing:,} missing"
        print_progress(f"{_NAME}: {what}: {seconds:.3f} s, {detail}")
        name = f"audit of {registered:,} daily schedules: {what}"
        is_page = "page" in what
        rows.append(_plain(name, seconds, "s", detail) if is_page else at_most(_NAME, name, seconds, "s", 2, detail=detail))
    return rows


async def _timed(call: Callable[[], Awaitable[AuditReport]]) -> tuple[float, AuditReport]:
    began = time.perf_counter()
    report = await call()
    return time.perf_counter() - began, report


async def _rates(store: Store, now: datetime) -> list[ResultRow]:
    """Measure how many schedules per second one node counts for a day, and checks in a sweep."""
    checks = TickChecks(store, TimelineCache())
    counter = DayCounter(store, checks, RetentionPeriods.of_days(90), late=_LATE)
    yesterday = day_of(now) - DAY

    async def count(page: list[Any]) -> None:
        await store.ledger_day_write(await counter.count(page, yesterday, now))

    async def sweep(page: list[Any]) -> None:
        await checks.check(page, CheckedWindow(now - timedelta(minutes=16), now, _LATE))

    rows = []
    for what, work in (("a day is counted", count), ("a sweep checks", sweep)):
        after: UUID | None = None
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(_SAMPLE):
            page = await store.schedule_audit(after=after, limit=_PAGE)
            await work(page)
            after = page[-1].id
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        detail = f"{cpu / seconds:.0%} of a core in Python"
        print_progress(f"{_NAME}: {what}: {_SAMPLE * _PAGE / seconds:,.0f} schedules/s, {detail}")
        rows.append(_plain(what, _SAMPLE * _PAGE / seconds, "schedules/s", detail))
        await asyncio.sleep(0)
    return rows


def _plain(what: str, figure: float, unit: str, detail: str = "") -> ResultRow:
    return ResultRow(_NAME, what, "", figure, unit, detail=detail)
