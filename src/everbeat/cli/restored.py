"""The command for a database that was restored from a backup."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from everbeat.cli.examples import examples
from everbeat.cli.options import CONFIG, DATABASE_URL
from everbeat.cli.store_access import local_caller, run_on_store
from everbeat.services.restore import Gap, Restored, RestoreService
from everbeat.store.base import Store


@click.command(
    epilog=examples("everbeat restored --gap catch-up", "everbeat restored --gap skip --database-url sqlite:///everbeat.db")
)
@DATABASE_URL
@CONFIG
@click.option(
    "--gap",
    type=click.Choice(get_args(Gap)),
    required=True,
    help="Ticks since the backup: catch-up fires them by the policy of each schedule, skip records them as skipped.",
)
def restored(database_url: str | None, config: Path | None, gap: Gap) -> None:
    """Make a database that was restored from a backup safe to start nodes on.

    Run it after the restore and before the first node starts. It refuses if a node runs on the database.
    """

    async def work(store: Store) -> Restored:
        return await RestoreService(store).restored(gap, by=local_caller())

    done = run_on_store(database_url, config, work)
    if done.last_seen_at is None:
        click.echo("the backup has no heartbeat of a node")
    else:
        minutes = (done.now - done.last_seen_at).total_seconds() / 60
        click.echo(f"the last heartbeat in the backup is of {done.last_seen_at:%Y-%m-%d %H:%M:%SZ}, {minutes:.0f} minutes ago")
    click.echo(f"raised the fences of {done.tasks:,} tasks and the epochs of all partitions; older ones are refused")
    if gap == "skip":
        click.echo(f"skipped the ticks since then of {done.skipped_schedules:,} schedules")
    else:
        click.echo("the catch-up policies decide about the ticks since then when a node starts")
