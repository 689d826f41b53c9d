"""The command that migrates the database, shows what a migration would do, and makes it usable by an older version."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import click

from everbeat.cli.examples import examples
from everbeat.cli.options import CONFIG, DATABASE_URL
from everbeat.cli.output import print_columns
from everbeat.config import Settings, load_settings
from everbeat.core.errors import Conflict, SchemaTooNew
from everbeat.server import make_store
from everbeat.store.base import Store
from everbeat.store.migrate import RELEASES, Migration, SchemaVersion, check_not_newer, load_migrations
from everbeat.store.migration_plan import MigrationPlan, estimated_seconds, plan_of


class _Outcome(NamedTuple):
    """The schema before, the migrations that it lacked or got, and for a plan the sizes of the tables."""

    before: SchemaVersion
    migrations: list[Migration]
    table_bytes: Mapping[str, int]
    dialect: str


@click.command(
    epilog=examples(
        "everbeat migrate --check",
        "everbeat migrate --plan",
        "everbeat migrate --database-url postgresql://user@host/everbeat",
        "everbeat migrate --compatible-with 0.1.0",
    )
)
@DATABASE_URL
@CONFIG
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if migrations are missing or unknown.")
@click.option("--plan", is_flag=True, help="Change nothing; show the missing migrations, their locks and an estimate.")
@click.option(
    "--compatible-with",
    metavar="VERSION",
    type=click.Choice(sorted(RELEASES)),
    help="Keep or make the database usable by nodes of this older version too.",
)
@click.pass_context
def migrate(
    context: click.Context,
    database_url: str | None,
    config: Path | None,
    check: bool,
    plan: bool,
    compatible_with: str | None,
) -> None:
    """Apply the migrations that the database needs.

    Nodes of 0.1.0 stop firing as soon as they see a migration that they do not know, unless --compatible-with is given. Later
    versions continue if the migrations only expand the schema.
    """
    settings = load_settings({"database_url": database_url}, file=config)
    visible = None if compatible_with is None else RELEASES[compatible_with]
    done = asyncio.run(_run(settings, only_look=check or plan, visible=visible, release=compatible_with or ""))
    version, needed, _ = done.before
    if plan:
        _print_plan(done)
    if check or plan:
        click.echo(f"the database is at migration {version} of {needed}")
        check_not_newer(done.before)
        context.exit(1 if check and done.before.is_older else 0)
    for migration in done.migrations:
        click.echo(f"applied {migration.name}")
    click.echo(
        f"the database is at migration {max(version, needed)}" + ("" if done.migrations else "; no migration was missing")
    )
    if compatible_with is not None:
        click.echo(
            f"nodes of {compatible_with} can use it too; run everbeat migrate without options when none is left", err=True
        )


async def _run(settings: Settings, *, only_look: bool, visible: int | None, release: str) -> _Outcome:
    store = make_store(settings)
    try:
        before = await store.schema_version()
        migrations = load_migrations(f"everbeat.store.{store.dialect}")
        missing = [migration for migration in migrations if migration.number > before.version]
        if only_look:
            return _Outcome(before, missing, await _table_bytes(store, before), store.dialect)
        if visible is not None:
            _check_compatible(visible, release, max([before.minimum, *(one.minimum for one in missing)]))
            if not before.is_older:
                _check_obstacles(release, await store.rollback_obstacles())
        applied = await store.migrate(visible=visible)
        await store.migration_show(visible)
        return _Outcome(before, [one for one in migrations if one.name in applied], {}, store.dialect)
    finally:
        await store.close()


def _check_compatible(visible: int, release: str, minimum: int) -> None:
    if visible < minimum:
        raise SchemaTooNew(f"version {release} cannot use the schema: it knows migration {visible}, and {minimum} is required")


def _check_obstacles(release: str, obstacles: Mapping[str, int]) -> None:
    if obstacles:
        found = ", ".join(f"{count:,} {name}" for name, count in obstacles.items())
        raise Conflict(
            f"version {release} cannot read {found}; delete or disable them first, and wait until the tasks have ended"
        )


async def _table_bytes(store: Store, schema: SchemaVersion) -> dict[str, int]:
    if schema.version == 0 or store.dialect == "sqlite":
        return {}
    return {table.table: table.bytes for table in (await store.sample_database()).tables}


def _print_plan(found: _Outcome) -> None:
    if not found.migrations:
        return
    titles = ("MIGRATION", "KIND", "LOCKS", "HELD FOR")
    print_columns(titles, [_plan_row(plan_of(one), found) for one in found.migrations])


def _plan_row(plan: MigrationPlan, found: _Outcome) -> tuple[str, str, str, str]:
    kind = "contract" if plan.migration.is_contract else "expand"
    if found.dialect == "sqlite":
        return plan.migration.name, kind, "the writer of the file", "less than a second, plus index builds"
    locks = sorted({f"{lock.mode} on {lock.table}" for lock in plan.locks})
    if found.before.version == 0 or not locks:
        return plan.migration.name, kind, "none on existing tables", "-"
    seconds = estimated_seconds(plan, found.table_bytes)
    return plan.migration.name, kind, ", ".join(locks), "a moment" if seconds < 1 else f"about {seconds:.0f} s"
