"""The commands on queues and workers, and those that pause everything."""

from __future__ import annotations

from typing import Any

import click

from everbeat.cli.connection import Session, session_options
from everbeat.cli.examples import examples
from everbeat.cli.output import Column
from everbeat.client.requests import path_segment

_NOTE = click.option("--note", help="Why; shown by why and in the lists.")
_UNTIL = click.option("--until", help="When the pause ends by itself, such as: in 2 hours.")
_ALL_TENANTS = click.option("--all-tenants", is_flag=True, help="All tenants; needs a key with the scope admin.")

QUEUE_COLUMNS = [
    Column("QUEUE", "queue"),
    Column("READY", "ready"),
    Column("RUNNING", "running"),
    Column("SCHEDULED", "scheduled"),
    Column("HELD", "held"),
    Column("OLDEST S", "oldest_ready_seconds"),
    Column("WORKERS", "workers"),
    Column("PAUSED", lambda item: _pause_text(item["paused"])),
]
_WORKER_COLUMNS = [
    Column("WORKER", "worker"),
    Column("STATE", "state"),
    Column("RUNNING", lambda item: f"{item['running']}/{item['concurrency'] or '?'}"),
    Column("QUEUES", lambda item: ", ".join(item["queues"])),
    Column("VERSION", "version"),
    Column("LAST SEEN", "last_seen_at"),
]
_PAUSE_COLUMNS = [
    Column("SCOPE", "scope"),
    Column("QUEUE", "queue"),
    Column("BY", "by"),
    Column("SINCE", "since"),
    Column("UNTIL", "until"),
    Column("NOTE", "note"),
]


def _pause_text(pause: dict[str, Any] | None) -> str | None:
    return None if pause is None else f"by {pause['by']}" + (f": {pause['note']}" if pause["note"] else "")


def _pause(session: Session, path: str, note: str | None, until: str | None, **more: Any) -> None:
    body = {"note": note, "until": session.time(until, field="until"), **more}
    found = session.send("POST", path, {name: value for name, value in body.items() if value is not None})
    session.printer.items([found], _PAUSE_COLUMNS, empty="")


def _resume(session: Session, path: str, **body: Any) -> None:
    ended = session.send("POST", path, body)["ended"]
    session.printer.items(ended, _PAUSE_COLUMNS, empty="nothing was paused")


@click.group(epilog=examples("everbeat queue list", "everbeat queue pause reports --until 'in 2 hours'"))
def queue() -> None:
    """List, pause and resume queues."""


@queue.command("list", epilog=examples("everbeat queue list", "everbeat queue list -o json"))
@session_options
def list_queues(session: Session) -> None:
    """List the queues with their tasks, workers and pauses."""
    session.printer.items(session.list("/v1/queues", None), QUEUE_COLUMNS, empty="there are no tasks and no workers yet")


@queue.command(epilog=examples("everbeat queue pause reports --note 'database upgrade' --until 'in 2 hours'"))
@click.argument("name")
@_NOTE
@_UNTIL
@session_options
def pause(session: Session, name: str, note: str | None, until: str | None) -> None:
    """Pause a queue: tasks are accepted and wait, and ticks are skipped with the reason paused."""
    _pause(session, f"/v1/queues/{path_segment(name)}/pause", note, until)


@queue.command(epilog=examples("everbeat queue resume reports"))
@click.argument("name")
@session_options
def resume(session: Session, name: str) -> None:
    """Resume a queue."""
    _resume(session, f"/v1/queues/{path_segment(name)}/resume")


@click.command(epilog=examples("everbeat worker list", "everbeat workers --queue reports -o json"))
@click.option("--queue", help="Only workers that ask for this queue.")
@session_options
def workers(session: Session, queue: str | None) -> None:
    """List the workers: also written as everbeat worker list."""
    found = session.list("/v1/workers", None, queue=queue)
    session.printer.items(
        found, _WORKER_COLUMNS, empty="no worker was seen in the last 7 days; start one with: everbeat worker MODULE:APP"
    )


@click.command(
    "pause", epilog=examples("everbeat pause --note 'data center move' --until 'tomorrow 06:00'", "everbeat pause --list")
)
@_NOTE
@_UNTIL
@_ALL_TENANTS
@click.option("--list", "is_list", is_flag=True, help="Only list the pauses that are active.")
@session_options
def pause_everything(session: Session, note: str | None, until: str | None, all_tenants: bool, is_list: bool) -> None:
    """Pause all schedules and queues."""
    if is_list:
        session.printer.items(session.get("/v1/pauses")["items"], _PAUSE_COLUMNS, empty="nothing is paused")
        return
    _pause(session, "/v1/pause", note, until, **({"all_tenants": True} if all_tenants else {}))


@click.command("resume", epilog=examples("everbeat resume"))
@_ALL_TENANTS
@session_options
def resume_everything(session: Session, all_tenants: bool) -> None:
    """End the pause of everything. Schedules and queues that were paused by themselves stay paused."""
    _resume(session, "/v1/resume", **({"all_tenants": True} if all_tenants else {}))
