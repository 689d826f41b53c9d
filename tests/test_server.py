"""Nodes with any roles can be built, started and stopped; an embedded node prints nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import pytest

from everbeat.config import Settings
from everbeat.core.errors import SchemaTooNew, SchemaTooOld, StoreUnavailable
from everbeat.core.protocol import TaskInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.server import EmbeddedNode, Node
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.sqlite.store import SqliteStore
from everbeat.store.values import Notice
from tests.factories import apply_unknown_migration
from tests.support.postgres import run_outside_loop
from tests.support.processes import free_port, wait_until_async


@pytest.mark.parametrize("roles", [("scheduler",), ("api",), ("api", "scheduler")])
def test_a_node_with_any_roles_can_be_built(sqlite_path: Path, roles: tuple[str, ...]) -> None:
    Node(Settings(database_url=f"sqlite:///{sqlite_path}", roles=roles))  # type: ignore[arg-type]


async def test_a_node_without_roles_submits_and_runs_nothing(sqlite_path: Path) -> None:
    node = EmbeddedNode(Settings(database_url=f"sqlite:///{sqlite_path}", roles=()))
    await node.start()
    task, is_new = await node.tasks.submit(DEFAULT_TENANT, TaskInput(type="work"))
    assert is_new
    assert (await node.tasks.get(DEFAULT_TENANT, task.id)).state == "ready"
    assert node.loop_monitor.ages().keys() == {"schema"}
    await node.stop()


async def test_an_embedded_node_prints_nothing(sqlite_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    node = EmbeddedNode(Settings(database_url=f"sqlite:///{sqlite_path}"))
    await node.start()
    await node.stop()
    assert capfd.readouterr() == ("", "")


@pytest.fixture(params=["sqlite", "postgres"])
def migrated_url(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    """The URL of a database with a current schema."""
    if request.param == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        return url
    run_outside_loop(migrated(SqliteStore(sqlite_path)))
    return f"sqlite:///{sqlite_path}"


async def migrated(store: SqliteStore, version: int | None = None) -> None:
    if version is not None:
        del store._migrations[version:]
    await store.migrate()
    await store.close()


async def test_an_embedded_node_migrates_an_older_sqlite_file(sqlite_path: Path) -> None:
    await migrated(SqliteStore(sqlite_path), 2)
    node = EmbeddedNode(Settings(database_url=f"sqlite:///{sqlite_path}", roles=()))
    await node.start()
    version, needed, _ = await node.store.schema_version()
    assert version == needed > 2
    await node.stop()


@pytest.mark.parametrize(("may_migrate", "kind"), [(False, EmbeddedNode), (True, EmbeddedNode), (False, Node), (True, Node)])
async def test_an_older_postgresql_database_is_migrated_only_on_request(
    may_migrate: bool, kind: type[EmbeddedNode], postgres_url: str
) -> None:
    node = kind(Settings(database_url=postgres_url, roles=(), migrate=may_migrate))
    newest = node.store._migrations[-1]  # type: ignore[attr-defined]
    node.store._migrations.append(newest._replace(number=newest.number + 1, name="9001_x", sql="SELECT 1"))  # type: ignore[attr-defined]
    if may_migrate:
        await node.start()
        assert (await node.store.schema_version())[0] == newest.number + 1
    else:
        with pytest.raises(SchemaTooOld, match="run: everbeat migrate"):
            await node.start()
        assert (await node.store.schema_version())[0] == newest.number
    await node.stop()


async def test_no_node_starts_on_a_newer_schema(migrated_url: str) -> None:
    node = EmbeddedNode(Settings(database_url=migrated_url, migrate=True))
    await apply_unknown_migration(node.store)
    with pytest.raises(SchemaTooNew, match="run a newer version"):
        await node.start()
    await node.stop()


@pytest.mark.parametrize("roles", [(), ("api", "scheduler")])
async def test_an_embedded_node_refuses_changes_once_the_schema_is_newer(
    migrated_url: str, roles: tuple[Literal["api", "scheduler"], ...]
) -> None:
    node = EmbeddedNode(Settings(database_url=migrated_url, roles=roles))
    await node.start()
    await node.tasks.submit(DEFAULT_TENANT, TaskInput(type="work"))
    await apply_unknown_migration(node.store)
    await wait_until_async(lambda: node.engine.schema_guard.is_newer, 20)
    with pytest.raises(SchemaTooNew):
        _ = node.tasks
    with pytest.raises(SchemaTooNew):
        _ = node.leases
    assert not (await node.ready()).is_alive
    assert node.health().is_alive
    await wait_until_async(lambda: node.engine.ownership.current() == {}, 20)
    await node.stop()


async def test_a_migration_is_announced_to_running_nodes(postgres_url: str) -> None:
    listening, migrating = PostgresStore(postgres_url), PostgresStore(postgres_url, listen=False)
    notices: list[Notice] = []
    await listening.open()
    await wait_until_async(lambda: listening._database._listener is not None, 10)
    listening.subscribe(notices.append)
    await wait_until_async(lambda: Notice.SCHEMA in notices, 20)  # one of each kind, when the connection is open
    notices.clear()
    newest = migrating._migrations[-1]
    migrating._migrations.append(newest._replace(number=newest.number + 1, name="9001_x", sql="SELECT 1"))
    await migrating.migrate()
    await wait_until_async(lambda: Notice.SCHEMA in notices, 20)
    await migrating.close()
    await listening.close()


async def test_a_node_starts_on_a_newer_schema_that_is_compatible_with_it(migrated_url: str) -> None:
    node = EmbeddedNode(Settings(database_url=migrated_url))
    newest = node.store._migrations.pop()  # type: ignore[attr-defined]
    await node.start()
    guard = node.engine.schema_guard
    await guard.run_once()
    assert not guard.is_newer
    assert (await node.store.schema_version()).version == newest.number
    ready = await node.ready()
    assert (ready.detail["database"], ready.detail["needed"]) == ("ok", newest.number - 1)
    await node.stop()


async def test_a_node_that_is_stopped_while_it_waits_for_a_full_disk_ends_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, stop = Node(Settings(database_url=f"sqlite:///{tmp_path}/everbeat.db", port=free_port())), asyncio.Event()

    async def migrate() -> list[str]:
        stop.set()
        raise StoreUnavailable("database or disk is full")

    monkeypatch.setattr(node.store, "migrate", migrate)
    await asyncio.wait_for(node.run(stop), 20)
