"""The roles of docs/howto/postgresql.md, created by the statements on that page, are sufficient and minimal for a node."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest

from everbeat.core.changes import ScheduleWrite
from everbeat.core.retention import TenantPeriods
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import TaskKey
from everbeat.store.postgres.store import PostgresStore
from tests.cluster.fleet import Site
from tests.cluster.harness import running_cluster
from tests.factories import make_schedule, make_task, skip
from tests.support.postgres import PostgresServer, run_outside_loop

HOWTO = Path(__file__).parents[2] / "docs/howto/postgresql.md"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

FORBIDDEN = [
    "CREATE TABLE mine (id integer)",
    "CREATE TEMPORARY TABLE mine (id integer)",
    "DROP TABLE ticks",
    "ALTER TABLE tasks ADD COLUMN mine integer",
    "TRUNCATE tasks",
    "UPDATE audit_log SET actor = 'changed'",
    "DELETE FROM audit_log",
    "TRUNCATE audit_log",
    "INSERT INTO everbeat_migrations (number, name) VALUES (99, 'mine')",
    "CREATE OR REPLACE FUNCTION everbeat_month_drop(parent text, child text) RETURNS void LANGUAGE sql AS ''",
]


def blocks() -> list[list[str]]:
    """Return the SQL blocks of the page, each as a list of statements."""
    found = re.findall(r"(?ms)^```sql\n(.*?)^```", HOWTO.read_text(encoding="utf-8"))
    return [[one for one in block.split(";\n") if one.strip()] for block in found]


def url_as(server: PostgresServer, role: str) -> str:
    parts = urlsplit(server.url("everbeat"))
    return urlunsplit(parts._replace(netloc=f"{role}@{parts.hostname}:{parts.port}"))


def run(url: str, statements: list[str]) -> None:
    async def execute() -> None:
        connection = await asyncpg.connect(url)
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    run_outside_loop(execute())


def migrate(url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "everbeat", "migrate", "--database-url", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_node_runs_with_the_privileges_that_the_howto_grants(private_postgres: PostgresServer, tmp_path: Path) -> None:
    as_superuser, as_owner = blocks()
    run(private_postgres.url(), as_superuser)
    owner, runtime = url_as(private_postgres, "everbeat_owner"), url_as(private_postgres, "everbeat_runtime")
    refused = migrate(runtime)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "run everbeat migrate as the role that owns the tables" in refused.stderr
    assert migrate(owner).returncode == 0
    run(owner, as_owner)
    assert "no migration was missing" in migrate(runtime).stdout

    with running_cluster(runtime, tmp_path) as cluster:
        node = cluster.add()
        site = Site(owner, node.base, tmp_path)
        cluster.register(5, target={"kind": "worker", "queue": site.queue, "type": "t"})
        worker = site.raw()
        assert worker.complete(worker.claim_within(15)) == ["ok"]
        cluster.wait_firing(private_postgres, 5)
        cluster.assert_accounted()
        site.close()
    run_outside_loop(submit_twice_with_one_key(runtime))
    # Not earlier: a node also prunes soon after its start, and would drop these months first.
    run_outside_loop(months(runtime))
    run_outside_loop(archive(runtime))
    run_outside_loop(prune_of_tenants(runtime))
    run_outside_loop(prune_audit_log(runtime))
    run_outside_loop(assert_refused(runtime))


async def submit_twice_with_one_key(url: str) -> None:
    store = PostgresStore(url, listen=False)
    try:
        first, again = (make_task(key=TaskKey("k", b"same")) for _ in range(2))
        await store.task_submit([first])
        assert (await store.task_submit([again])).ids == [first.id]
    finally:
        await store.close()


async def months(url: str) -> None:
    store = PostgresStore(url, listen=False)
    try:
        made = await store.month_ensure([LONG_AGO])
        assert len(made) == 4
        assert await store.month_prune(before=datetime(2020, 2, 1, tzinfo=UTC), limit=10) == 4
        assert len(await store.month_ensure([LONG_AGO])) == 4, "the months were not dropped"
        reader = await asyncpg.connect(url)
        try:
            async with reader.transaction():
                await reader.execute("SELECT count(*) FROM ticks")
                # A reader temporarily blocks the removal of the ledger's old month.
                assert await store.month_prune(before=datetime(2020, 2, 1, tzinfo=UTC), limit=10) == 3
            assert await store.month_prune(before=datetime(2020, 2, 1, tzinfo=UTC), limit=10) == 1
        finally:
            await reader.close()
    finally:
        await store.close()


async def archive(url: str) -> None:
    """A month is set aside, read, and dropped."""
    store = PostgresStore(url, listen=False)
    try:
        schedule = make_schedule()
        writes = [ScheduleWrite(schedule, skips=(skip(LONG_AGO),))]
        assert await store.schedule_write(DEFAULT_TENANT, writes, now=LONG_AGO)
        segment = await store.archive_begin("ticks", "2020-01", uuid4())
        assert segment is not None
        assert await store.archive_count(segment) == 1
        page = await store.archive_read(segment, position=None, limit=10)
        assert page is not None
        assert len(page.rows) == 1
        assert await store.archive_finish(segment, rows=1, first_at=LONG_AGO, last_at=LONG_AGO, file_bytes=1)
        while await store.archive_remove(segment, limit=10):
            pass
        assert len(await store.month_ensure([LONG_AGO])) == 1, "the month was not dropped"
    finally:
        await store.close()


async def prune_of_tenants(url: str) -> None:
    store = PostgresStore(url, listen=False)
    try:
        schedule = make_schedule("pruned")
        assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(schedule, skips=(skip(LONG_AGO),))], now=LONG_AGO)
        periods = {DEFAULT_TENANT: TenantPeriods(timedelta(days=1), timedelta(days=1))}
        deleted, position = 0, None
        while True:
            step = await store.tenant_prune(periods, position=position, limit=1000, now=datetime(2021, 1, 1, tzinfo=UTC))
            deleted, position = deleted + step.deleted, step.position
            if position is None:
                break
        assert deleted == 1
    finally:
        await store.close()


async def prune_audit_log(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(
        "INSERT INTO audit_log (id, tenant_id, at, actor, action, subject, detail) "
        "VALUES (gen_random_uuid(), gen_random_uuid(), $1, 'a', 'b', 'c', '{}')",
        LONG_AGO,
    )
    await connection.close()
    store = PostgresStore(url, listen=False)
    try:
        assert await store.audit_log_prune(before=datetime(2020, 2, 1, tzinfo=UTC), limit=10) == 1
    finally:
        await store.close()


async def assert_refused(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(
        "INSERT INTO audit_log (id, tenant_id, at, actor, action, subject, detail) "
        "VALUES (gen_random_uuid(), gen_random_uuid(), now(), 'a', 'b', 'c', '{}')"
    )
    for statement in FORBIDDEN:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)
    for parent, child in (("tasks", "tasks_2020_01"), ("ticks", "schedules"), ("ticks", "ticks_2020_01; DROP TABLE tasks")):
        with pytest.raises(asyncpg.RaiseError, match="is not a month"):
            await connection.execute("SELECT everbeat_month_drop($1, $2)", parent, child)
    await connection.close()
