"""Bulk operations in the command line: count, confirm, begin, and show the progress."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import click

from everbeat.cli.connection import Session
from everbeat.cli.exit_codes import ExitCode
from everbeat.cli.output import Column, shown
from everbeat.client.requests import new_key
from everbeat.core.errors import EverbeatError

F = TypeVar("F", bound=Callable[..., Any])

# Above this number, the count itself is typed to confirm.
MAX_CONFIRMED_WITH_YES = 100
_POLL_SECONDS = 0.3

OPERATION_COLUMNS = [
    Column("ID", "id"),
    Column("ACTION", lambda item: f"{item['action']} {item['subject']}"),
    Column("STATE", "state"),
    Column("DONE", lambda item: f"{item['done']} of {item['matched']}"),
    Column("FAILED", "failed"),
    Column("BY", "by"),
    Column("CREATED", "created_at"),
]


class NotConfirmed(EverbeatError):
    """A change was not confirmed, so nothing was changed."""


class SomeFailed(EverbeatError):
    """A bulk operation could not change everything."""

    exit_code = int(ExitCode.PROBLEMS)


class BulkOptions(NamedTuple):
    """The options of commands that can act on all matching schedules or tasks."""

    all_matching: bool
    everything: bool
    dry_run: bool
    yes: bool
    expect_count: int | None
    wait: bool


def bulk_options(command: F) -> F:
    """Add the options of bulk operations. The command receives them as `bulk`."""

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> Any:
        bulk = BulkOptions(**{name: options.pop(name) for name in BulkOptions._fields})
        return command(*args, bulk=bulk, **options)

    added = (
        click.option("--all-matching", is_flag=True, help="Act on all that match the filters, on the server."),
        click.option("--everything", is_flag=True, help="With --all-matching and without a filter: act on all."),
        click.option("--dry-run", is_flag=True, help="Only count, and change nothing."),
        click.option("--yes", is_flag=True, help=f"Do not ask, for up to {MAX_CONFIRMED_WITH_YES}."),
        click.option("--expect-count", type=click.IntRange(0), help="Confirm this number; any other is refused."),
        click.option("--wait/--no-wait", default=True, help="Wait until the operation has ended (yes)."),
    )
    for option in reversed(added):
        run = option(run)
    return run  # type: ignore[return-value]


def run_bulk(
    session: Session, subject: str, action: str, filter_: Mapping[str, Any], options: BulkOptions, note: str | None = None
) -> None:
    """Count what matches, ask, and let the server change it."""
    given = {name: value for name, value in filter_.items() if value is not None}
    body: dict[str, Any] = {"action": action, "filter": {**given, **({"all": True} if options.everything else {})}}
    if note is not None:
        body["note"] = note
    counted = session.send("POST", f"/v1/{subject}/bulk", {**body, "dry_run": True})
    matched = counted["matched"]
    session.printer.note(f"{matched} {subject} match")
    if options.dry_run or matched == 0:
        if not session.printer.is_table:
            session.printer.data(counted)
        return
    confirm_count(f"{action} {matched} {subject}", matched, yes=options.yes, expected=options.expect_count)
    body["expect_count"] = matched
    operation = session.send("POST", f"/v1/{subject}/bulk", body, {"idempotency-key": new_key()})
    if options.wait:
        operation = follow_operation(session, operation)
    show_operation(session, operation)
    if operation["failed"] or operation["state"] == "failed":
        raise SomeFailed(f"{operation['failed']} of {matched} {subject} could not be changed")


def confirm_count(what: str, count: int, *, yes: bool = False, expected: int | None = None) -> None:
    """Ask for confirmation; above 100 the count is typed. Raises NotConfirmed."""
    if expected is not None:
        if expected != count:
            raise NotConfirmed(f"{count} match and not {expected}; nothing was changed")
        return
    if yes and count <= MAX_CONFIRMED_WITH_YES:
        return
    if not sys.stdin.isatty():
        fix = f"--expect-count {count}" if count > MAX_CONFIRMED_WITH_YES else "--yes"
        raise NotConfirmed(f"nothing was changed; to {what} without a question, add {fix}")
    if count <= MAX_CONFIRMED_WITH_YES:
        is_confirmed = click.confirm(f"{what.capitalize()}?", err=True)
    else:
        is_confirmed = click.prompt(f"To {what}, type the number", default="", show_default=False, err=True) == str(count)
    if not is_confirmed:
        raise NotConfirmed("nothing was changed")


def follow_operation(session: Session, operation: dict[str, Any]) -> dict[str, Any]:
    """Wait for the end of an operation, with a progress bar. Ctrl-C leaves it running."""
    session.printer.note(f"operation {operation['id']}; abort it with: everbeat operations cancel {operation['id']}")
    with click.progressbar(length=operation["matched"], file=sys.stderr, label=operation["action"]) as bar:
        while True:
            handled = operation["done"] + operation["failed"]
            bar.update(handled - bar.pos)
            if operation["state"] != "running":
                return operation
            time.sleep(_POLL_SECONDS)
            operation = session.get(f"/v1/operations/{operation['id']}")


def show_operation(session: Session, operation: dict[str, Any]) -> None:
    if not session.printer.is_table:
        session.printer.data(operation)
        return
    click.echo(f"{operation['state']}: {operation['done']} of {operation['matched']} done, {operation['failed']} failed")
    for error in operation["errors"]:
        click.echo(f"  {shown(error['subject'])}: {shown(error['message'])}")
