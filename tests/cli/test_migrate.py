"""`everbeat migrate --check`, `--plan` and `--compatible-with` on databases of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from everbeat.cli.main import cli
from everbeat.core.errors import Conflict, SchemaTooNew
from everbeat.store.migrate import BASELINE, load_migrations
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.sqlite.store import SqliteStore
from tests.cluster.fleet import DatabaseReader
from tests.factories import execute_raw, insert, make_schedule
from tests.support.postgres import PostgresAdmin, run_outside_loop

NEWER = [migration.name for migration in load_migrations("everbeat.store.sqlite")[BASELINE:]]
NEWEST = BASELINE + len(NEWER)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database at the migration of 0.1.0, without the record of later versions."""
    if request.param == "sqlite":
        made = f"sqlite:///{tmp_path / 'old.db'}"
        run_outside_loop(migrate_as_0_1_0(SqliteStore(tmp_path / "old.db")))
        yield made
        return
    server: PostgresAdmin = request.getfixturevalue("postgres_server")
    name = server.create_database()
    run_outside_loop(migrate_as_0_1_0(PostgresStore(server.url(name), listen=False)))
    yield server.url(name)
    server.drop_database(name)


async def migrate_as_0_1_0(store: Any) -> None:
    del store._migrations[BASELINE:]
    await store.migrate()
    for statement in ("DROP VIEW everbeat_schema", "DROP TABLE everbeat_applied_migrations"):
        await execute_raw(store, statement)
    await store.close()


def open_store(url: str) -> Any:
    return SqliteStore(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else PostgresStore(url, listen=False)


def migrate(url: str, *options: str) -> Result:
    return CliRunner().invoke(cli, ["migrate", "--database-url", url, *options])


def visible(url: str) -> Any:
    return DatabaseReader(url).value("SELECT max(number) FROM everbeat_migrations")


def test_check_and_plan_change_nothing(url: str) -> None:
    checked = migrate(url, "--check")
    assert (checked.exit_code, checked.stdout) == (1, f"the database is at migration {BASELINE} of {NEWEST}\n")
    planned = migrate(url, "--plan")
    assert planned.exit_code == 0
    assert visible(url) == BASELINE
    lines = planned.stdout.splitlines()
    assert lines[0].split("  ")[0] == "MIGRATION"
    assert [line.split()[:2] for line in lines[1:-1]] == [[name, "expand"] for name in NEWER]
    assert lines[-1] == f"the database is at migration {BASELINE} of {NEWEST}"


def test_the_plan_names_the_locks_on_postgresql(url: str) -> None:
    planned = migrate(url, "--plan").stdout
    if url.startswith("sqlite"):
        assert "the writer of the file" in planned
        return
    assert "SHARE on dead_letters, SHARE on past_rules" in planned
    assert "ACCESS EXCLUSIVE on tasks" in planned
    assert "none on existing tables" in planned
    assert "a moment" in planned


def test_a_migrated_database_has_nothing_to_plan(url: str) -> None:
    assert migrate(url).exit_code == 0
    assert migrate(url, "--check").exit_code == 0
    assert migrate(url, "--plan").stdout == f"the database is at migration {NEWEST} of {NEWEST}\n"


def test_the_migrations_are_hidden_from_an_older_version_until_a_run_without_the_option(url: str) -> None:
    done = migrate(url, "--compatible-with", "0.1.0")
    assert done.exit_code == 0, done.output
    assert f"applied {NEWER[0]}" in done.stdout
    assert "nodes of 0.1.0 can use it too" in done.stderr
    assert visible(url) == BASELINE
    assert migrate(url, "--check").exit_code == 0
    finished = migrate(url)
    assert "no migration was missing" in finished.stdout
    assert visible(url) == NEWEST
    assert migrate(url, "--compatible-with", "0.1.0").exit_code == 0
    assert visible(url) == BASELINE


def test_a_schema_that_an_older_version_cannot_use_is_not_shown_to_it(url: str) -> None:
    assert migrate(url).exit_code == 0

    async def contract(store: Any) -> None:
        await execute_raw(store, f"UPDATE everbeat_applied_migrations SET minimum = {NEWEST} WHERE number = {NEWEST}")
        await store.close()

    store: Any = SqliteStore(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else PostgresStore(url, listen=False)
    run_outside_loop(contract(store))
    refused = migrate(url, "--compatible-with", "0.1.0")
    assert isinstance(refused.exception, SchemaTooNew)
    assert f"it knows migration {BASELINE}, and {NEWEST} is required" in str(refused.exception)
    assert visible(url) == NEWEST


def test_it_is_not_made_compatible_with_a_version_that_cannot_read_its_rows(url: str) -> None:
    assert migrate(url).exit_code == 0

    async def write(store: Any) -> None:
        await insert(store, make_schedule())
        await execute_raw(store, "UPDATE schedules SET target_kind = 'slack'")
        await store.close()

    run_outside_loop(write(open_store(url)))
    refused = migrate(url, "--compatible-with", "0.1.0")
    assert isinstance(refused.exception, Conflict)
    assert "1 schedules with the target slack or email" in str(refused.exception)
    assert visible(url) == NEWEST
