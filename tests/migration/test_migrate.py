"""Migrations: of a new database, repeated, concurrent, of a newer database, and after a failure."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from everbeat.core.errors import StoreError, StoreUnusable
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import AttemptEnd, AttemptOutcome, TaskState
from everbeat.store.base import Store
from everbeat.store.migrate import Migration, SchemaVersion, load_migrations, missing_migrations
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.sqlite.store import SqliteStore
from everbeat.store.values import HeartbeatWrite, LeaseRef
from tests.factories import NOW, claim, execute_raw, insert, lease_of, make_schedule, make_task, open_second_store, seconds
from tests.support.postgres import PostgresAdmin


@pytest.fixture
def empty_postgres_url(postgres_server: PostgresAdmin) -> Iterator[str]:
    name = postgres_server.create_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture(params=["sqlite", "postgres"])
async def empty(request: pytest.FixtureRequest) -> AsyncIterator[SqliteStore | PostgresStore]:
    """A store on an empty database."""
    made: SqliteStore | PostgresStore
    if request.param == "sqlite":
        made = SqliteStore(request.getfixturevalue("sqlite_path"))
    else:
        made = PostgresStore(request.getfixturevalue("empty_postgres_url"), listen=False)
    yield made
    await made.close()


def names_of(store: Store) -> list[str]:
    return [migration.name for migration in load_migrations(f"everbeat.store.{store.dialect}")]


async def test_a_new_database_gets_every_migration_and_works(empty: Store) -> None:
    newest = len(names_of(empty))
    assert (await empty.schema_version())[:2] == (0, newest)
    assert await empty.migrate() == names_of(empty)
    assert (await empty.schema_version())[:2] == (newest, newest)
    await empty.open()
    await insert(empty, make_schedule())
    assert await empty.schedule_count(DEFAULT_TENANT) == {"active": 1}


async def test_a_node_that_starts_meanwhile_does_not_take_a_new_database_for_an_old_one(empty_postgres_url: str) -> None:
    """On SQLite, all migrations are one transaction anyway."""
    store, other = PostgresStore(empty_postgres_url, listen=False), PostgresStore(empty_postgres_url, listen=False)
    seen = {(await other.schema_version())[0]}
    migrating = asyncio.create_task(store.migrate())
    while not migrating.done():
        seen.add((await other.schema_version())[0])
    await migrating
    await store.close()
    await other.close()
    assert seen <= {0, len(names_of(store))}


async def test_migrating_again_does_nothing(empty: Store) -> None:
    await empty.migrate()
    await insert(empty, make_schedule())
    assert await empty.migrate() == []
    assert await empty.schedule_count(DEFAULT_TENANT) == {"active": 1}


async def test_concurrent_migrations_apply_each_migration_once(empty: Store) -> None:
    stores = [empty, *(open_second_store(empty) for _ in range(3))]
    applied = await asyncio.gather(*(store.migrate() for store in stores))
    assert sorted(name for names in applied for name in names) == names_of(empty)
    for store in stores[1:]:
        await store.close()


async def test_a_newer_database_is_rejected_and_not_changed(empty: Store) -> None:
    await empty.migrate()
    extra = {"sqlite": "(number, name, applied_at) VALUES (9999, 'x', 0)", "postgres": "(number, name) VALUES (9999, 'x')"}
    await execute_raw(empty, f"INSERT INTO everbeat_migrations {extra[empty.dialect]}")
    with pytest.raises(StoreUnusable, match="at migration 9999, but this version of Everbeat supports only"):
        await empty.migrate()
    assert (await empty.schema_version())[0] == 9999


async def test_a_failed_migration_is_rolled_back(empty: SqliteStore | PostgresStore) -> None:
    good = Migration(len(empty._migrations) + 1, "9001_good", "CREATE TABLE extra (one integer); INSERT INTO extra VALUES (1);")
    broken = Migration(good.number + 1, "9002_broken", "CREATE TABLE half (one integer); INSERT INTO no_such_table VALUES (1);")
    await empty.migrate()
    version = await empty.schema_version()
    empty._migrations.append(broken._replace(number=good.number))
    with pytest.raises(StoreError):
        await empty.migrate()
    assert (await empty.schema_version())[0] == version[0]
    with pytest.raises(Exception, match="half"):
        await execute_raw(empty, "SELECT * FROM half")
    # With the migration corrected, the same database continues normally.
    empty._migrations[-1] = good
    assert await empty.migrate() == ["9001_good"]
    assert await execute_raw(empty, "SELECT one FROM extra") == [(1,)]


async def test_the_error_for_an_unmigrated_database_names_the_command(empty: Store) -> None:
    await empty.open()
    with pytest.raises(StoreUnusable, match="everbeat migrate"):
        await empty.schedule_find(DEFAULT_TENANT, names=["job"], now=NOW)


async def test_a_file_that_is_not_a_database_is_rejected_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database " * 100)
    store = SqliteStore(path)
    with pytest.raises(StoreUnusable, match="damaged or not a database"):
        await store.migrate()
    with contextlib.suppress(StoreError):
        await store.close()
    assert path.read_text().startswith("not a database")


async def test_a_new_sqlite_file_is_readable_only_by_its_owner(sqlite_path: Path) -> None:
    store = SqliteStore(sqlite_path)
    await store.migrate()
    assert sqlite_path.stat().st_mode & 0o777 == 0o600
    await store.close()


OLD_COLUMNS = """id, tenant_id, partition, queue, type, target, payload, origin, run_at, priority, state, attempt, max_attempts,
  retry, timeout_seconds, labels, lease_owner, lease_until, fence, created_at, started_at"""
OLD_TASK = f"""INSERT INTO tasks ({OLD_COLUMNS})
VALUES (?, ?, 0, 'default', 'work', '{{}}', '{{}}', 'tick', ?, 100, ?, ?, 3, '{{}}', 90.0, '{{}}', ?, ?, ?, ?, ?)"""
OLD_CLAIM = "UPDATE tasks SET state = 'running', attempt = 1, fence = 1, lease_owner = 'old', lease_until = ?, started_at = ?"
OLD_HISTORY = """INSERT INTO task_history (id, tenant_id, queue, type, target, payload, origin, run_at, priority, state,
  attempt, max_attempts, labels, fence, created_at, finished_at)
VALUES (?, ?, 'default', 'work', '{}', '{}', 'tick', ?, 100, 'completed', 1, 3, '{}', 1, ?, ?)"""
READY, RUNNING, PAST = (UUID(int=number) for number in (1, 2, 3))


async def insert_as_old_node(store: Store) -> None:
    """Insert a ready, a running and a finished task, as a node from before the second migration would."""
    until, tenant = NOW + seconds(30), DEFAULT_TENANT
    await execute_raw(store, OLD_TASK, READY, tenant, NOW, "ready", 0, None, None, 0, NOW, None)
    await execute_raw(store, OLD_TASK, RUNNING, tenant, NOW, "running", 1, "old", until, 1, NOW, NOW)
    await store.month_ensure([NOW])
    await execute_raw(store, OLD_HISTORY, PAST, tenant, NOW, NOW, NOW)


@pytest.mark.parametrize("is_rolling", [False, True], ids=["before", "after"])
async def test_tasks_written_by_an_old_node_are_completed(empty: SqliteStore | PostgresStore, is_rolling: bool) -> None:
    """In a rolling upgrade, old nodes also write tasks after the migration."""
    migrations, empty._migrations = empty._migrations, empty._migrations[:1]
    await empty.migrate()
    if not is_rolling:
        await insert_as_old_node(empty)
    empty._migrations = migrations
    assert await empty.migrate() == names_of(empty)[1:]
    if is_rolling:
        await insert_as_old_node(empty)
    now, (expired,) = await empty.task_expired(limit=10, now=NOW + seconds(30))
    assert (expired.id, expired.deadline_at, expired.first_started_at) == (RUNNING, now + seconds(60), NOW)
    lease = LeaseRef(DEFAULT_TENANT, RUNNING, 1)
    for at, until in ((10, 40), (39, 69), (65, 90)):  # its timeout is 90 seconds
        (renewed,) = await empty.task_heartbeat([HeartbeatWrite(lease)], now=NOW + seconds(at))
        assert renewed.lease_until == NOW + seconds(until)
    (task,) = await claim(empty)
    done = await empty.task_complete([(lease, None), (lease_of(task), None)], now=NOW)
    assert done.finished == {(RUNNING, 1), (READY, 1)}
    found = await empty.task_find(DEFAULT_TENANT, [READY, RUNNING, PAST])
    assert [(one.state.value, one.retry) for one in found] == [("completed", b"{}")] * 3


async def test_a_task_claimed_by_an_old_node_can_be_lost_and_become_dead(empty: SqliteStore | PostgresStore) -> None:
    await empty.migrate()
    await empty.task_submit([make_task(), make_task()], now=NOW)
    await execute_raw(empty, OLD_CLAIM, NOW + seconds(30), NOW)
    _, (one, two) = await empty.task_expired(limit=10, now=NOW + seconds(31))
    endings = [
        AttemptEnd(task.id, DEFAULT_TENANT, 1, AttemptOutcome.LOST, state, None, None)
        for task, state in ((one, TaskState.READY), (two, TaskState.DEAD))
    ]
    assert len((await empty.task_end(endings, is_expired=True, now=NOW + seconds(31))).ids) == 2
    (attempt,) = await empty.task_attempts(DEFAULT_TENANT, one.id)
    assert (attempt.worker, attempt.started_at) == ("old", NOW)
    (letter,) = await empty.dead_find(DEFAULT_TENANT, [two.id])
    assert letter.worker == "old"


def test_missing_migrations_are_those_after_the_current_version() -> None:
    migrations = [Migration(number, f"000{number}_x", "") for number in (1, 2, 3)]
    assert [one.number for one in missing_migrations(migrations, SchemaVersion(1, 3, 1))] == [2, 3]
    assert missing_migrations(migrations, SchemaVersion(3, 3, 3)) == []


async def test_tasks_for_urls_that_an_old_version_stored_move_to_the_reserved_queue(empty: SqliteStore | PostgresStore) -> None:
    migrations, empty._migrations = empty._migrations, empty._migrations[:7]
    await empty.migrate()
    await execute_raw(empty, OLD_TASK, READY, DEFAULT_TENANT, NOW, "ready", 0, None, None, 0, NOW, None)
    await execute_raw(empty, OLD_TASK, RUNNING, DEFAULT_TENANT, NOW, "ready", 0, None, None, 0, NOW, None)
    target = '{"kind":"http","url":"https://Hooks.Example.org:8443/a?b=c"}'
    await execute_raw(empty, "UPDATE tasks SET queue = 'http', target = ? WHERE id = ?", target, READY)
    await execute_raw(empty, "UPDATE tasks SET queue = 'http' WHERE id = ?", RUNNING)  # a queue that a user has named so
    empty._migrations = migrations
    await empty.migrate()
    found = await execute_raw(empty, "SELECT queue, fair_key FROM tasks ORDER BY queue")
    assert found == [("everbeat:http", "hooks.example.org:8443"), ("http", "")]
