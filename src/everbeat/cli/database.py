"""The command that migrates the database."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from everbeat.cli.examples import examples
from everbeat.cli.options import CONFIG, DATABASE_URL
from everbeat.config import Settings, load_settings
from everbeat.server import make_store
from everbeat.store.migrate import check_not_newer


@click.command(epilog=examples("everbeat migrate --check", "everbeat migrate --database-url postgresql://user@host/everbeat"))
@DATABASE_URL
@CONFIG
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if migrations are missing or unknown.")
@click.pass_context
def migrate(context: click.Context, database_url: str | None, config: Path | None, check: bool) -> None:
    """Apply the migrations that the database needs.

    Nodes of an older version stop firing as soon as a migration is applied, and wait to be restarted with the new version.
    """
    settings = load_settings({"database_url": database_url}, file=config)
    before, needed, applied = asyncio.run(_migrate(settings, check))
    if check:
        click.echo(f"the database is at migration {before} of {needed}")
        check_not_newer(before, needed)
        context.exit(0 if before == needed else 1)
    for name in applied:
        click.echo(f"applied {name}")
    click.echo(f"the database is at migration {needed}" + ("" if applied else "; no migration was missing"))


async def _migrate(settings: Settings, check: bool) -> tuple[int, int, list[str]]:
    store = make_store(settings)
    try:
        before, needed = await store.schema_version()
        return before, needed, [] if check else await store.migrate()
    finally:
        await store.close()
