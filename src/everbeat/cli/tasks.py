"""The commands on tasks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from everbeat.cli.bulk import BulkOptions, bulk_options, run_bulk
from everbeat.cli.connection import Session, session_options
from everbeat.cli.examples import examples
from everbeat.cli.explanations import print_explanation
from everbeat.cli.output import printable, shown
from everbeat.cli.schedule_fields import json_of, labels_of
from everbeat.cli.task_columns import TASK_COLUMNS
from everbeat.client.durations import seconds_of
from everbeat.client.requests import new_key, path_segment

_ENDED = frozenset({"completed", "failed", "dead", "cancelled"})
_FOLLOW_SECONDS = 1.0
_NONE = "no task matches"


def _filters(command: Any) -> Any:
    options = (
        click.option(
            "--state", help="Only in this state: held, scheduled, ready, running, completed, failed, dead or cancelled."
        ),
        click.option("--queue", help="Only of this queue."),
        click.option("--type", help="Only of this type."),
        click.option("--schedule", help="Only of this schedule."),
        click.option("--label", help="Only with this label: KEY or KEY=VALUE."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _bulk_filters(command: Any) -> Any:
    options = (
        click.option(
            "--error-kind", help="With --all-matching: only with a last error of this kind: the full name of the exception."
        ),
        click.option("--from", "from_", help="With --all-matching: only created since this time."),
        click.option("--to", help="With --all-matching: only created before this time."),
    )
    for option in reversed(options):
        command = option(command)
    return _filters(command)


@click.group(epilog=examples('everbeat task submit send-email --payload \'{"to": "ann"}\'', "everbeat task list --state dead"))
def task() -> None:
    """Submit, list, cancel, retry and explain tasks."""


@task.command(
    epilog=examples(
        'everbeat task submit send-email --payload \'{"to": "ann"}\'', 'everbeat task submit report --at "tomorrow 02:00"'
    )
)
@click.argument("type_", metavar="TYPE")
@click.option("--payload", help="The payload, as JSON.")
@click.option("--queue", help="The queue (default).")
@click.option("--at", help="Not before this time, such as: in 10 minutes.")
@click.option("--priority", type=int, help="The priority; smaller is sooner (100).")
@click.option("--max-attempts", type=int, help="How often the task is tried (3).")
@click.option("--timeout", help="The time limit of an attempt, such as 10m (1h).")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label. Can be repeated.")
@click.option("--key", help="An idempotency key: a second submit with the same key submits nothing.")
@session_options
def submit(
    session: Session,
    type_: str,
    payload: str | None,
    at: str | None,
    timeout: str | None,
    labels: tuple[str, ...],
    key: str | None,
    **fields: Any,
) -> None:
    """Submit a task."""
    body = {"type": type_, **{name: value for name, value in fields.items() if value is not None}}
    if payload is not None:
        body["payload"] = json_of(payload)
    if at is not None:
        body["run_at"] = session.time(at, field="at")
    if timeout is not None:
        body["timeout_seconds"] = seconds_of(timeout, "timeout")
    if labels:
        body["labels"] = labels_of(labels)
    saved = session.send("POST", "/v1/tasks", body, {"idempotency-key": key or new_key()})
    if session.printer.is_table:
        click.echo(saved["id"])
    else:
        session.printer.data(saved)


@task.command(
    "list",
    epilog=examples("everbeat task list --state failed --queue reports", "everbeat task list --schedule nightly -o json"),
)
@_filters
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most this many.")
@session_options
def list_(session: Session, limit: int, **filters: str | None) -> None:
    """List tasks, newest first."""
    session.printer.items(session.list("/v1/tasks", limit, **filters), TASK_COLUMNS, empty=_NONE)


def _path(task_id: str, rest: str = "") -> str:
    return f"/v1/tasks/{path_segment(task_id)}{rest}"


@task.command(epilog=examples("everbeat task show 019a9f00-0000-7000-8000-000000000000"))
@click.argument("task_id", metavar="ID")
@session_options
def show(session: Session, task_id: str) -> None:
    """Show a task and its attempts."""
    found = session.get(_path(task_id))
    found["attempts"] = session.list(_path(task_id, "/attempts"), 100)
    session.printer.item(found)


def _act(session: Session, ids: Sequence[str], bulk: BulkOptions, filters: dict[str, Any], action: str) -> None:
    if bool(ids) == bulk.all_matching:
        raise click.UsageError("give the ids of tasks, or filters with --all-matching")
    if bulk.all_matching:
        times = {"from": session.time(filters.pop("from_"), field="from"), "to": session.time(filters.pop("to"), field="to")}
        run_bulk(session, "tasks", action, {**filters, **times}, bulk)
        return
    headers = {"idempotency-key": new_key()} if action == "retry" else None
    found = [session.send("POST", _path(task_id, f"/{action}"), {}, headers) for task_id in ids]
    session.printer.items(found, TASK_COLUMNS, empty=_NONE)


@task.command(
    epilog=examples(
        "everbeat task cancel 019a9f00-0000-7000-8000-000000000000",
        "everbeat task cancel --all-matching --queue reports --state ready",
    )
)
@click.argument("ids", metavar="[ID...]", nargs=-1)
@_bulk_filters
@bulk_options
@session_options
def cancel(session: Session, ids: Sequence[str], bulk: BulkOptions, **filters: Any) -> None:
    """Cancel tasks. A running one is asked to stop."""
    _act(session, ids, bulk, filters, "cancel")


@task.command(
    epilog=examples(
        "everbeat task retry 019a9f00-0000-7000-8000-000000000000",
        'everbeat task retry --all-matching --state dead --error-kind TimeoutError --from "2h ago"',
    )
)
@click.argument("ids", metavar="[ID...]", nargs=-1)
@_bulk_filters
@bulk_options
@session_options
def retry(session: Session, ids: Sequence[str], bulk: BulkOptions, **filters: Any) -> None:
    """Run finished tasks again, as new tasks."""
    _act(session, ids, bulk, filters, "retry")


@task.command(epilog=examples("everbeat task logs -f 019a9f00-0000-7000-8000-000000000000"))
@click.argument("task_id", metavar="ID")
@click.option("--follow", "-f", is_flag=True, help="Print new lines until the task has ended.")
@session_options
def logs(session: Session, task_id: str, follow: bool) -> None:
    """Print the log of a task."""
    printed, cursor = 0, None
    while True:
        has_ended = not follow or session.get(_path(task_id), payload="omit")["state"] in _ENDED
        while True:
            page = session.get(_path(task_id, "/log"), limit=1000, cursor=cursor)
            new = page["items"][printed:]
            for line in new:
                _print_line(session, line)
            if page["next_cursor"] is None:
                printed = len(page["items"])
                break
            cursor, printed = page["next_cursor"], 0
        if has_ended:  # read before the log, so that the last lines are printed
            return
        time.sleep(_FOLLOW_SECONDS)


def _print_line(session: Session, line: dict[str, Any]) -> None:
    if not session.printer.is_table:
        session.printer.data(line)
        return
    for text in line["text"].splitlines() or [""]:
        click.echo(f"{shown(line['at'])}  {line['attempt']}  {printable(text)}")


@task.command(epilog=examples("everbeat task why 019a9f00-0000-7000-8000-000000000000"))
@click.argument("task_id", metavar="ID")
@session_options
def why(session: Session, task_id: str) -> None:
    """Explain what a task waits for, or how it ended."""
    print_explanation(session.printer, session.get(_path(task_id, "/why")))
