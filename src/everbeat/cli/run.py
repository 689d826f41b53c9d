"""Commands that run a node: `serve` for a cluster, `dev` for a laptop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click

from everbeat.cli.demo import DEMO_SCHEDULE, DemoHandler
from everbeat.cli.options import server_options
from everbeat.config import Settings, load_settings
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.server import Node
from everbeat.telemetry import configure_logging


@click.command()
@server_options
def serve(config: Path | None, **flags: Any) -> None:
    """Run a node. As many as you like on one PostgreSQL database: together they fire each tick once."""
    settings = load_settings(flags, file=config)
    configure_logging(settings.log_level, settings.log_format)
    _run(lambda stop: Node(settings).run(stop))


@click.command()
@server_options
@click.option("--demo", is_flag=True, help="Register a demo schedule and show its ticks.")
def dev(config: Path | None, demo: bool, **flags: Any) -> None:
    """Run everything in one process on an SQLite file: for development, and to try Everbeat out."""
    settings = load_settings(flags, file=config, defaults={"log_format": "console", "log_level": "warning"})
    configure_logging(settings.log_level, settings.log_format)

    async def run(stop: asyncio.Event) -> None:
        node = Node(settings, auto_migrate=True, extra=(lambda node: [DemoHandler(node)]) if demo else None)
        await node.run(stop, lambda started: _greet(started, demo))
        click.echo("Stopped. What comes due meanwhile is caught up by each schedule's catch_up policy.")

    _run(run)


async def _greet(node: Node, demo: bool) -> None:
    settings: Settings = node.settings
    base = f"http://{settings.host}:{settings.port}"
    click.echo(f"Everbeat is running: {base}/v1/schedules   (database: {node.store.description}, stop: Ctrl-C)")
    click.echo("Try next, in another terminal:")
    click.echo(
        f"""  curl -s {base}/v1/preview -H 'Content-Type: application/json' """
        """-d '{"cron": "30 2 * * *", "timezone": "America/New_York", "count": 3}'"""
    )
    name = DEMO_SCHEDULE["name"] if demo else "NAME"
    click.echo(f"  curl -s '{base}/v1/schedules/{name}/ticks?limit=5'")
    click.echo(f"  curl -s {base}/v1/audit")
    if demo:
        await node.schedules.put(DEFAULT_TENANT, DEMO_SCHEDULE["name"], DEMO_SCHEDULE)
        click.echo(f"The schedule {DEMO_SCHEDULE['name']} fires every five seconds:")


def _run(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run until SIGTERM or SIGINT; a second one ends the process at once."""

    async def supervised() -> None:
        stop = asyncio.Event()

        def on_signal() -> None:
            if stop.is_set():
                os._exit(130)
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, on_signal)
        await main(stop)

    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(supervised())
    sys.stdout.flush()
