"""The command that shows the audit: whether every expected tick is accounted for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from everbeat.cli.connection import Session, session_options
from everbeat.cli.examples import examples
from everbeat.cli.exit_codes import ExitCode
from everbeat.cli.output import Column, shown
from everbeat.core.errors import EverbeatError

_COLUMNS = [
    Column("SCHEDULE", "name"),
    Column("EXPECTED", "expected"),
    Column("FIRED", "fired"),
    Column("SKIPPED", lambda item: _skipped(item)),
    Column("MISSING", "missing"),
    Column("DOUBLED", "doubled"),
]

_FINDING_COLUMNS = [
    Column("KIND", "kind"),
    Column("SCHEDULE", lambda item: item["schedule"] or "(cluster)"),
    Column("SCHEDULED FOR", "scheduled_for"),
    Column("FOUND AT", "found_at"),
]


class TicksNotAccountedFor(EverbeatError):
    """The audit found missing or doubled ticks."""

    exit_code = int(ExitCode.PROBLEMS)


def _skipped(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in counts["skipped"].items()) or "0"


@click.command(epilog=examples("everbeat audit", 'everbeat audit --from "yesterday" --to "today" -o json'))
@click.option("--from", "from_", help="The beginning (24 hours ago).")
@click.option("--to", help="The end (now).")
@click.option("--all", "is_all", is_flag=True, help="List all schedules, not only those with missing or doubled ticks.")
@session_options
def audit(session: Session, from_: str | None, to: str | None, is_all: bool) -> None:
    """Count expected, fired, skipped, missing and doubled ticks. The exit code is 7 if any is missing or doubled."""
    window = {"from": session.time(from_, field="from"), "to": session.time(to, field="to")}
    found = session.get("/v1/audit", limit=1000, **window)
    cursor = found["next_cursor"]
    while cursor is not None:
        page = session.get("/v1/audit", limit=1000, cursor=cursor, **{"from": found["from"], "to": found["to"]})
        found["schedules"] += page["schedules"]
        cursor = page["next_cursor"]
    found["next_cursor"] = None
    if session.printer.is_table:
        accounted = found["expected"] - found["missing"]
        click.echo(
            f"{accounted:,} of {found['expected']:,} ticks accounted for, {shown(found['from'])} to {shown(found['to'])}"
        )
        click.echo(f"fired {found['fired']}, skipped {_skipped(found)}, missing {found['missing']}, doubled {found['doubled']}")
        if (checks := found["checks"])["expected"]:
            parts = ", ".join(f"{name} {checks[name]}" for name in ("pinged", "failed", "missed", "skipped"))
            click.echo(f"checks: {checks['expected']:,} expected pings, {parts}")
        rows = [one for one in found["schedules"] if is_all or one["missing"] or one["doubled"]]
        if rows:
            session.printer.items(rows, _COLUMNS, empty="")
        if found["findings"]:
            click.echo("open findings of the auditor:")
            session.printer.items(found["findings"], _FINDING_COLUMNS, empty="")
        for one in found["faulty"]:
            click.echo(f"paused with a fault: {shown(one['name'])}: {shown(one['fault'])}")
    else:
        session.printer.data(found)
    if found["missing"] or found["doubled"]:
        raise TicksNotAccountedFor(
            "ticks are missing or doubled; see: everbeat schedule ticks NAME, and everbeat schedule backfill NAME"
        )
