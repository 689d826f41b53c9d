"""Commands for transactional enqueue: creating and inspecting an outbox, and the relay that moves its rows to a server."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from everbeat.cli.connection import API_KEY_FILE, read_key
from everbeat.cli.examples import examples
from everbeat.client.exchange import RetryBudget
from everbeat.client.http import HttpTransport
from everbeat.client.urls import DEFAULT_URL, is_server, validate_urls
from everbeat.core.protocol import MAX_SUBMITTED
from everbeat.outbox.relay import DEFAULT_BATCH_SIZE, DEFAULT_POLL_SECONDS, Relay
from everbeat.outbox.table import OutboxTable, install_sql
from everbeat.outbox.telemetry import RelayTelemetry
from everbeat.telemetry import configure_logging
from everbeat.worker.signals import StopSignal, run_until_signalled

T = TypeVar("T")

OUTBOX_URL = click.option(
    "--outbox-url", envvar="EVERBEAT_OUTBOX_URL", help="The database of the application: postgresql://…  [EVERBEAT_OUTBOX_URL]"
)


@click.group(epilog=examples("everbeat outbox install --outbox-url postgresql://user@host/app", "everbeat outbox status"))
def outbox() -> None:
    """Create and inspect the outbox in the database of an application."""


@outbox.command(epilog=examples("everbeat outbox sql > migrations/0042_outbox.sql"))
def sql() -> None:
    """Print the SQL that creates the outbox, for a migration of the application."""
    click.echo(install_sql(), nl=False)


@outbox.command(epilog=examples("everbeat outbox install --outbox-url postgresql://user@host/app"))
@OUTBOX_URL
def install(outbox_url: str | None) -> None:
    """Create the outbox, or update it."""
    _run(outbox_url, OutboxTable.install)
    click.echo("the outbox is installed; start a relay with: everbeat relay", err=True)


@outbox.command(epilog=examples("everbeat outbox status --outbox-url postgresql://user@host/app"))
@OUTBOX_URL
def status(outbox_url: str | None) -> None:
    """Print how many rows wait, the age of the oldest, and how many were rejected."""
    found = _run(outbox_url, OutboxTable.status)
    oldest = "" if found.oldest_seconds is None else f", the oldest for {found.oldest_seconds:.0f} s"
    click.echo(f"{found.waiting} rows wait{oldest}; {found.rejected} rows were rejected")


@click.command(epilog=examples("everbeat relay --outbox-url postgresql://user@host/app --url http://127.0.0.1:8080"))
@OUTBOX_URL
@click.option("--url", help="The server, or several, separated by commas  [EVERBEAT_URL]")
@API_KEY_FILE
@click.option("--batch-size", type=click.IntRange(1, MAX_SUBMITTED), default=DEFAULT_BATCH_SIZE, show_default=True)
@click.option("--poll-seconds", type=click.FloatRange(0.05, 60), default=DEFAULT_POLL_SECONDS, show_default=True)
@click.option("--notices/--no-notices", default=True, help="Use LISTEN; not behind PgBouncer in transaction mode (yes).")
@click.option("--once", is_flag=True, help="Move the rows that are there, and stop.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True)
def relay(
    outbox_url: str | None,
    url: str | None,
    api_key_file: Path | None,
    batch_size: int,
    poll_seconds: float,
    notices: bool,
    once: bool,
    log_level: str,
) -> None:
    """Move the rows of an outbox to a server.

    Any number of relays can run. A row is removed when the server has acknowledged its task.
    """
    configure_logging(log_level, "console" if sys.stderr.isatty() else "json")
    server = validate_urls(url or os.environ.get("EVERBEAT_URL") or DEFAULT_URL)
    if not is_server(server):
        raise click.UsageError("--url must be a server; in a shared database no relay is needed")
    key = os.environ.get("EVERBEAT_API_KEY") or None if api_key_file is None else read_key(api_key_file)

    async def run(stopping: StopSignal) -> None:
        # Without retries of its own: meanwhile the relay would keep shards locked.
        transport = HttpTransport(server, key, retry_budget=RetryBudget(0.0))
        transport.servers.reports_outages = False  # the relay does it
        table = OutboxTable(_database(outbox_url), notices=notices)
        telemetry = RelayTelemetry()
        runner = Relay(table, transport, telemetry, batch_size=batch_size, poll_seconds=poll_seconds)
        try:
            if once:
                click.echo(f"{await runner.drain()} rows moved", err=True)
            else:
                telemetry.started(server)
                await runner.run(stopping.requested)
        finally:
            await table.close()
            await transport.close()

    run_until_signalled(run)


def _database(url: str | None) -> str:
    if not url or not url.startswith(("postgresql://", "postgres://")):
        raise click.UsageError("--outbox-url or EVERBEAT_OUTBOX_URL must be the application's database, as postgresql://…")
    return url


def _run(url: str | None, work: Callable[[OutboxTable], Awaitable[T]]) -> T:
    async def run() -> T:
        table = OutboxTable(_database(url), notices=False)
        try:
            return await work(table)
        finally:
            await table.close()

    return asyncio.run(run())
