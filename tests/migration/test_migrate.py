"""Migrations: from nothing, twice, from two sides at once, from the future, and broken half-way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from everbeat.core.errors import StoreBroken, StoreError
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.base import Store
from everbeat.store.migrate import Migration, load_migrations, missing_migrations
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.sqlite.store import SqliteStore
from tests.factories import NOW, execute_raw, insert, make_schedule, open_twin
from tests.support.postgres import PostgresAdmin


@pytest.fixture
def empty_postgres_url(postgres_server: PostgresAdmin) -> Iterator[str]:
    name = postgres_server.create_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture(params=["sqlite", "postgres"])
async def empty(request: pytest.FixtureRequest) -> AsyncIterator[SqliteStore | PostgresStore]:
    """A store on a database that nothing was ever done to."""
    made: SqliteStore | PostgresStore
    if request.param == "sqlite":
        made = SqliteStore(request.getfixturevalue("sqlite_path"))
    else:
        made = PostgresStore(request.getfixturevalue("empty_postgres_url"), listen=False)
    yield made
    await made.close()


def names_of(store: Store) -> list[str]:
    return [migration.name for migration in load_migrations(f"everbeat.store.{store.dialect}")]


async def test_a_fresh_database_gets_every_migration_and_works(empty: Store) -> None:
    newest = len(names_of(empty))
    assert await empty.schema_version() == (0, newest)
    assert await empty.migrate() == names_of(empty)
    assert await empty.schema_version() == (newest, newest)
    await empty.open()
    await insert(empty, make_schedule())
    assert await empty.schedule_count(DEFAULT_TENANT) == {"active": 1}


async def test_migrating_again_does_nothing(empty: Store) -> None:
    await empty.migrate()
    await insert(empty, make_schedule())
    assert await empty.migrate() == []
    assert await empty.schedule_count(DEFAULT_TENANT) == {"active": 1}


async def test_nodes_that_migrate_at_once_apply_each_migration_once(empty: Store) -> None:
    twins = [empty, *(open_twin(empty) for _ in range(3))]
    applied = await asyncio.gather(*(store.migrate() for store in twins))
    assert sorted(name for names in applied for name in names) == names_of(empty)
    for store in twins[1:]:
        await store.close()


async def test_a_database_from_the_future_is_refused_and_left_alone(empty: Store) -> None:
    await empty.migrate()
    extra = {"sqlite": "(number, name, applied_at) VALUES (9999, 'x', 0)", "postgres": "(number, name) VALUES (9999, 'x')"}
    await execute_raw(empty, f"INSERT INTO everbeat_migrations {extra[empty.dialect]}")
    with pytest.raises(StoreBroken, match="at migration 9999 but this Everbeat knows only"):
        await empty.migrate()
    assert (await empty.schema_version())[0] == 9999


async def test_a_migration_that_fails_half_way_leaves_what_was_before_it(empty: SqliteStore | PostgresStore) -> None:
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
    # Mended, the same database goes on as if nothing had been.
    empty._migrations[-1] = good
    assert await empty.migrate() == ["9001_good"]
    assert await execute_raw(empty, "SELECT one FROM extra") == [(1,)]


async def test_a_database_that_was_never_migrated_says_what_to_do(empty: Store) -> None:
    await empty.open()
    with pytest.raises(StoreBroken, match="everbeat migrate"):
        await empty.schedule_find(DEFAULT_TENANT, names=["job"], now=NOW)


async def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database " * 100)
    store = SqliteStore(path)
    with pytest.raises(StoreBroken, match="damaged or not a database"):
        await store.migrate()
    with contextlib.suppress(StoreError):
        await store.close()
    assert path.read_text().startswith("not a database")


async def test_a_new_sqlite_file_is_for_its_owner_only(sqlite_path: Path) -> None:
    store = SqliteStore(sqlite_path)
    await store.migrate()
    assert sqlite_path.stat().st_mode & 0o777 == 0o600
    await store.close()


def test_missing_migrations_are_those_after_the_version() -> None:
    migrations = [Migration(number, f"000{number}_x", "") for number in (1, 2, 3)]
    assert [one.number for one in missing_migrations(migrations, 1)] == [2, 3]
    assert missing_migrations(migrations, 3) == []
