"""The command that shows the service levels and what is left of their error budgets."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from everbeat.cli.connection import Session, session_options
from everbeat.cli.examples import examples
from everbeat.cli.exit_codes import ExitCode
from everbeat.cli.output import Column, shown
from everbeat.core.errors import EverbeatError

_MEANINGS = {
    "fire": "ticks within {seconds:g} s",
    "pickup": "tasks picked up within {seconds:g} s",
    "availability": "minutes available",
    "success": "tasks that succeed",
}


class ObjectivesMissed(EverbeatError):
    """The error budget of an objective is used up, or will be soon."""

    exit_code = int(ExitCode.PROBLEMS)


def _percent(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value * 100:.{digits}f} %"


def _rate(item: Mapping[str, Any], window: str) -> str:
    rate = item["burn_rates"][window]
    return "-" if rate is None else f"{rate:.1f}"


_COLUMNS = [
    Column("OBJECTIVE", "name"),
    Column("OF", lambda item: _MEANINGS[item["name"]].format(seconds=item["threshold_seconds"] or 0)),
    Column("TARGET", lambda item: f"{item['target'] * 100:g} %"),
    Column("NOW", lambda item: _percent(item["ratio"], 3)),
    Column("BAD", lambda item: f"{item['total'] - item['good']:,} of {item['total']:,}"),
    Column("BUDGET LEFT", lambda item: _percent(item["budget_left"], 1)),
    *(Column(f"BURN {window}", partial(_rate, window=window)) for window in ("5m", "1h", "6h", "30d")),
    Column("STATUS", "status"),
]


@click.command(epilog=examples("everbeat slo", "everbeat slo -o json"))
@session_options
def slo(session: Session) -> None:
    """Show the service levels of the last 30 days, and what is left of the error budgets.

    The exit code is 7 if a budget is used up, or is being used up too fast.
    """
    found = session.get("/v1/slo")
    if session.printer.is_table:
        if found["since"] is None:
            click.echo("nothing has been counted yet; the first counts appear within 20 seconds")
        else:
            click.echo(f"since {shown(found['since'])}, at most {found['window_days']} days")
        session.printer.items(found["objectives"], _COLUMNS, empty="")
    else:
        session.printer.data(found)
    if bad := [one["name"] for one in found["objectives"] if one["status"] in ("burning", "exhausted")]:
        raise ObjectivesMissed(f"objectives in danger: {', '.join(bad)}; see docs/howto/slos.md")
