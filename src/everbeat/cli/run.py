"""Commands that run a node: `serve` for a cluster, and `dev` for development, optionally with the worker of an app."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from everbeat.app import Everbeat
from everbeat.cli.demo import DEMO_SCHEDULE, DemoHandler
from everbeat.cli.examples import examples
from everbeat.cli.options import server_options
from everbeat.cli.reload import arguments_of_child, run_reloading
from everbeat.cli.worker import load_app, wait_until_stopped
from everbeat.client.inprocess import InProcessTransport
from everbeat.client.urls import is_server
from everbeat.config import Settings, load_settings
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.server import Node
from everbeat.telemetry import capture_library_logs, configure_logging
from everbeat.worker.processes import pop_parent_pid
from everbeat.worker.runtime import Worker
from everbeat.worker.signals import StopSignal, run_until_signalled


@click.command(epilog=examples("everbeat serve --database-url postgresql://user@host/everbeat --node-name node1"))
@server_options
def serve(config: Path | None, **flags: Any) -> None:
    """Run a node of a cluster.

    Any number of nodes can use one PostgreSQL database; together they fire each tick once.
    """
    settings = load_settings(flags, file=config)
    configure_logging(settings.log_level, settings.log_format)
    capture_library_logs()
    run_until_signalled(lambda stopping: Node(settings).run(stopping.requested))


@click.command(epilog=examples("everbeat dev --demo", "everbeat dev reports:eb"))
@click.argument("app", metavar="[MODULE:APP]", required=False)
@server_options
@click.option("--demo", is_flag=True, help="Register a demo schedule and show its ticks.")
@click.option("--reload/--no-reload", default=True, show_default=True, help="Restart when a Python file of the app changes.")
@click.pass_context
def dev(context: click.Context, /, app: str | None, config: Path | None, demo: bool, reload: bool, **flags: Any) -> None:
    """Run a server, scheduler and worker in one process, for development.

    The database is an SQLite file. With MODULE:APP, such as reports:eb, the schedules of that app are registered and its
    tasks are run. When a Python file in the current directory changes, they are restarted.
    """
    if app is not None and reload:
        context.exit(run_reloading(arguments_of_child(), Path.cwd()))
    parent = pop_parent_pid()
    loaded = None if app is None else load_app(app)
    defaults: dict[str, Any] = {"log_format": "console", "log_level": "warning", "auth": "off", "migrate": True}
    defaults["webhook_allow"] = "localhost,127.0.0.0/8,::1/128"
    if loaded is not None and not is_server(loaded.url):
        # Producers of the app submit to the database that its URL specifies, so the node must use the same database.
        defaults["database_url"] = loaded.url
    settings = load_settings(flags, file=config, defaults=defaults)
    configure_logging(settings.log_level, settings.log_format)

    async def run(stopping: StopSignal) -> None:
        node = Node(settings, extra=(lambda node: [DemoHandler(node)]) if demo else None)
        if loaded is None:
            await node.run(stopping.requested, lambda started: _print_welcome(started, demo))
        else:
            await _run_with_app(node, loaded, demo, stopping, parent)
        click.echo("Stopped. The catch_up policy of each schedule applies to ticks that become due before the next start.")

    run_until_signalled(run)
    sys.stdout.flush()


async def _run_with_app(node: Node, app: Everbeat, demo: bool, stopping: StopSignal, parent: int | None) -> None:
    """Run the node and a worker. The worker is stopped first, so that the node can still process its reports and releases."""
    transport = InProcessTransport(node)
    worker = Worker(app.registry, transport)
    node_stopping = asyncio.Event()

    async def on_started(started: Node) -> None:
        await _print_welcome(started, demo, next(iter(app.registry.schedules), "NAME"))
        registration = await app.register_async() if app.registry.schedules else "no schedules declared"
        if app.registry.tasks:
            await worker.start()
            stopping.on_second_signal = worker.release_all_leases
        click.echo(f"{app!r} is running in this process: queues {', '.join(worker.queues)}; {registration}.")

    with app.attached(transport):
        running = asyncio.create_task(node.run(node_stopping, on_started))
        await wait_until_stopped(stopping, parent, running)
        await worker.stop()
        node_stopping.set()
        await running
        await transport.close()


async def _print_welcome(node: Node, demo: bool, schedule: str = "NAME") -> None:
    settings: Settings = node.settings
    base = f"{settings.scheme}://{settings.host}:{settings.port}"
    click.echo(f"Everbeat is running: {base}/v1/schedules   (database: {node.store.description}, stop: Ctrl-C)")
    if node.access is not None and node.access.is_required:
        click.echo("Requests need an API key: add -H 'Authorization: Bearer eb_…' to the following commands.")
    click.echo("Commands to try in another terminal:")
    click.echo(
        f"""  curl -s {base}/v1/preview -H 'Content-Type: application/json' """
        """-d '{"cron": "30 2 * * *", "timezone": "America/New_York", "count": 3}'"""
    )
    name = DEMO_SCHEDULE["name"] if demo else schedule
    click.echo(f"  curl -s '{base}/v1/schedules/{name}/ticks?limit=5'")
    click.echo(f"  curl -s {base}/v1/audit")
    if demo:
        await node.engine.schedules.put(DEFAULT_TENANT, DEMO_SCHEDULE["name"], DEMO_SCHEDULE)
        click.echo(f"The schedule {DEMO_SCHEDULE['name']} fires every five seconds:")
