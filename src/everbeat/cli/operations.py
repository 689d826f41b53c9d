"""The commands on bulk operations."""

from __future__ import annotations

import click

from everbeat.cli.bulk import OPERATION_COLUMNS, follow_operation, show_operation
from everbeat.cli.connection import Session, session_options
from everbeat.cli.examples import examples
from everbeat.client.requests import path_segment


@click.group(epilog=examples("everbeat operations list"))
def operations() -> None:
    """List, follow and cancel bulk operations."""


@operations.command("list", epilog=examples("everbeat operations list", "everbeat operations list -o json"))
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="At most this many.")
@session_options
def list_(session: Session, limit: int) -> None:
    """List bulk operations, newest first."""
    session.printer.items(session.list("/v1/operations", limit), OPERATION_COLUMNS, empty="there are no bulk operations")


@operations.command(epilog=examples("everbeat operations show 019a9f00-0000-7000-8000-000000000000 --follow"))
@click.argument("operation_id", metavar="ID")
@click.option("--follow", "-f", is_flag=True, help="Show the progress until the operation has ended.")
@session_options
def show(session: Session, operation_id: str, follow: bool) -> None:
    """Show a bulk operation and its progress."""
    found = session.get(f"/v1/operations/{path_segment(operation_id)}")
    if follow:
        found = follow_operation(session, found)
    if session.printer.is_table:
        show_operation(session, found)
    else:
        session.printer.item(found)


@operations.command(epilog=examples("everbeat operations cancel 019a9f00-0000-7000-8000-000000000000"))
@click.argument("operation_id", metavar="ID")
@session_options
def cancel(session: Session, operation_id: str) -> None:
    """Abort a bulk operation. What is done stays done."""
    show_operation(session, session.send("POST", f"/v1/operations/{path_segment(operation_id)}/cancel", {}))
