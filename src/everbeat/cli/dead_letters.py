"""The commands on dead letters."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from everbeat.cli.bulk import confirm_count
from everbeat.cli.connection import Session, session_options
from everbeat.cli.examples import examples
from everbeat.cli.output import Column
from everbeat.cli.task_columns import TASK_COLUMNS
from everbeat.client.requests import path_segment

_COLUMNS = [
    Column("TASK", "task_id"),
    Column("TYPE", "type"),
    Column("QUEUE", "queue"),
    Column("DIED", "died_at"),
    Column("ATTEMPTS", "attempts"),
    Column("REASON", "reason"),
    Column("ERROR", lambda item: (item["error"] or {}).get("message")),
    Column("REPLAYED AS", "replayed_as"),
]


def _filters(command: Any) -> Any:
    options = (
        click.option("--queue", help="Only of this queue."),
        click.option("--type", help="Only of this type."),
        click.option("--schedule", help="Only of this schedule."),
        click.option("--from", "from_", help="Only those that died since this time, such as: 2h ago."),
        click.option("--to", help="Only those that died before this time."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _filter_of(session: Session, given: dict[str, Any]) -> dict[str, Any]:
    times = {"from": session.time(given.pop("from_"), field="from"), "to": session.time(given.pop("to"), field="to")}
    return {name: value for name, value in {**given, **times}.items() if value is not None}


@click.group(epilog=examples("everbeat dlq list", "everbeat dlq replay --all-matching --type send-email"))
def dlq() -> None:
    """List, replay and purge dead letters: tasks that are not retried."""


@dlq.command("list", epilog=examples('everbeat dlq list --from "2h ago"', "everbeat dlq list --queue reports -o json"))
@_filters
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most this many.")
@session_options
def list_(session: Session, limit: int, **given: Any) -> None:
    """List dead letters, newest first."""
    found = session.list("/v1/dead-letters", limit, **_filter_of(session, given))
    session.printer.items(found, _COLUMNS, empty="no dead letter matches")


@dlq.command(epilog=examples("everbeat dlq show 019a9f00-0000-7000-8000-000000000000"))
@click.argument("task_id", metavar="ID")
@session_options
def show(session: Session, task_id: str) -> None:
    """Show a dead letter with its payload and error."""
    session.printer.item(session.get(f"/v1/dead-letters/{path_segment(task_id)}"))


@dlq.command(
    epilog=examples(
        "everbeat dlq replay 019a9f00-0000-7000-8000-000000000000",
        "everbeat dlq replay --all-matching --type send-email --rate 10",
    )
)
@click.argument("ids", metavar="[ID...]", nargs=-1)
@_filters
@click.option("--all-matching", is_flag=True, help="Replay all that match the filters.")
@click.option("--rate", type=float, help="At most this many per second.")
@click.option("--yes", is_flag=True, help="Do not ask, for up to 100.")
@click.option("--expect-count", type=click.IntRange(0), help="Confirm this number; any other is refused.")
@session_options
def replay(
    session: Session,
    ids: Sequence[str],
    all_matching: bool,
    rate: float | None,
    yes: bool,
    expect_count: int | None,
    **given: Any,
) -> None:
    """Create new tasks from dead letters. The dead letters are kept and refer to the new tasks."""
    if bool(ids) == all_matching:
        raise click.UsageError("give the ids of dead letters, or filters with --all-matching")
    if ids:
        found = [session.send("POST", f"/v1/dead-letters/{path_segment(one)}/replay", {}) for one in ids]
        session.printer.items(found, TASK_COLUMNS, empty="")
        return
    filter_ = _filter_of(session, given)
    count = _count(session, filter_)
    if count:
        confirm_count(f"replay {count} dead letters", count, yes=yes, expected=expect_count)
    replayed, has_more = 0, count > 0
    with click.progressbar(length=count, file=sys.stderr, label="replay") as bar:
        while has_more:
            body = {"filter": filter_, **({} if rate is None else {"rate_per_second": rate})}
            step = session.send("POST", "/v1/dead-letters/replay", body)
            replayed += step["count"]
            bar.update(step["count"])
            has_more = step["has_more"]
    session.printer.item({"replayed": replayed})


@dlq.command(epilog=examples('everbeat dlq purge --all-matching --type send-email --to "30 days ago"'))
@_filters
@click.option("--all-matching", is_flag=True, help="Confirms that all that match the filters are purged.")
@click.option("--yes", is_flag=True, help="Do not ask, for up to 100.")
@click.option("--expect-count", type=click.IntRange(0), help="Confirm this number; any other is refused.")
@session_options
def purge(session: Session, all_matching: bool, yes: bool, expect_count: int | None, **given: Any) -> None:
    """Remove the payloads of dead letters and hide them. This cannot be undone."""
    if not all_matching:
        raise click.UsageError("add --all-matching to purge all that match the filters")
    filter_ = _filter_of(session, given)
    count = _count(session, filter_)
    if count:
        confirm_count(f"purge {count} dead letters", count, yes=yes, expected=expect_count)
    session.printer.item(session.send("POST", "/v1/dead-letters/purge", {"filter": filter_}))


def _count(session: Session, filter_: dict[str, Any]) -> int:
    count = len(session.list("/v1/dead-letters", None, **filter_))
    session.printer.note(f"{count} dead letters match")
    return count
