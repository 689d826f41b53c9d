"""The command that shows nodes, queues and workers, and refreshes them."""

from __future__ import annotations

import importlib.util
import sys
import time
from typing import Any

import click

from everbeat.cli.connection import Session, session_options
from everbeat.cli.examples import examples
from everbeat.cli.output import Column, print_columns, shown
from everbeat.cli.queues import QUEUE_COLUMNS
from everbeat.cli.task_columns import TASK_COLUMNS

_MAX_ROWS = 12
_NODE_COLUMNS = [
    Column("NODE", "name"),
    Column("ALIVE", "is_alive"),
    Column("PARTITIONS", "partitions"),
    Column("LAG S", "lag_seconds"),
    Column("TICKS/S", "fired_per_second"),
    Column("VERSION", "version"),
]


@click.command(epilog=examples("everbeat top", "everbeat top --interval 5", "everbeat top --once -o json"))
@click.option(
    "--interval", type=click.FloatRange(0.5, 60), default=2.0, show_default=True, help="Seconds between two refreshes."
)
@click.option("--once", is_flag=True, help="Print once, and stop; as if stdout is not a terminal.")
@session_options
def top(session: Session, interval: float, once: bool) -> None:
    """Show nodes, queues and running tasks, refreshed until Ctrl-C."""
    if once or not sys.stdout.isatty() or not session.printer.is_table:
        _print(session, _read(session))
        return
    try:
        if importlib.util.find_spec("rich") is not None:
            _live(session, interval)
        while True:
            found = _read(session)
            click.clear()
            _print(session, found)
            time.sleep(interval)
    except KeyboardInterrupt:
        return


def _read(session: Session) -> dict[str, Any]:
    cluster = session.get("/v1/cluster")
    queues = sorted(session.list("/v1/queues", None), key=lambda one: -(one["ready"] + one["running"]))
    return {
        "now": cluster["now"],
        "nodes": cluster["nodes"],
        "unowned": cluster["unowned"],
        "schedules": cluster["schedules"],
        "ticks_fired_per_second": cluster["rates"]["ticks_fired_per_second"],
        "queues": queues,
        "running": session.list("/v1/tasks", _MAX_ROWS, state="running"),
        "pauses": session.get("/v1/pauses")["items"],
    }


def _headline(found: dict[str, Any]) -> str:
    schedules = ", ".join(f"{count} {status}" for status, count in found["schedules"].items()) or "none"
    paused = f"  PAUSED: {len(found['pauses'])} pauses" if found["pauses"] else ""
    unowned = f"  {found['unowned']} partitions without an owner" if found["unowned"] else ""
    return f"{shown(found['now'])}  schedules: {schedules}  {found['ticks_fired_per_second']:.1f} ticks/s{unowned}{paused}"


def _tables(found: dict[str, Any]) -> list[tuple[list[Column], list[dict[str, Any]]]]:
    return [(_NODE_COLUMNS, found["nodes"]), (QUEUE_COLUMNS, found["queues"]), (TASK_COLUMNS, found["running"])]


def _print(session: Session, found: dict[str, Any]) -> None:
    if not session.printer.is_table:
        session.printer.data(found)
        return
    click.echo(_headline(found))
    for columns, rows in _tables(found):
        click.echo()
        print_columns([one.title for one in columns], [[one.of(row) for one in columns] for row in rows[:_MAX_ROWS]])


def _live(session: Session, interval: float) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    def view() -> Group:
        found = _read(session)
        parts: list[Any] = [Text(_headline(found), style="bold")]
        for columns, rows in _tables(found):
            table = Table(box=None, pad_edge=False, header_style="bold")
            for column in columns:
                table.add_column(column.title)
            for row in rows[:_MAX_ROWS]:
                table.add_row(*(Text(column.of(row)) for column in columns))
            parts += [Text(""), table]
        return Group(*parts)

    with Live(view(), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(view(), refresh=True)
