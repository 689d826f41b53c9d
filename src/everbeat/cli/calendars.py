"""The commands on calendars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from everbeat.cli.connection import Session, session_options
from everbeat.cli.examples import examples
from everbeat.cli.output import Column
from everbeat.client.requests import path_segment

_COLUMNS = [
    Column("NAME", "name"),
    Column("DESCRIPTION", "description"),
    Column("DATES", lambda item: len(item["dates"])),
    Column("WEEKDAYS", lambda item: " ".join(item["weekdays"])),
    Column("YEARLY", lambda item: " ".join(item["yearly"])),
    Column("INTERVALS", lambda item: len(item["intervals"])),
]


def _path(name: str) -> str:
    return f"/v1/calendars/{path_segment(name)}"


@click.group(epilog=examples("everbeat calendar put holidays --date 2026-12-24 --yearly 01-01", "everbeat calendar list"))
def calendar() -> None:
    """List, show, create and delete calendars."""


@calendar.command("list", epilog=examples("everbeat calendar list"))
@session_options
def list_(session: Session) -> None:
    """List calendars."""
    session.printer.items(
        session.list("/v1/calendars", None), _COLUMNS, empty="there are no calendars; see: everbeat calendar put --help"
    )


@calendar.command(epilog=examples("everbeat calendar show holidays -o yaml"))
@click.argument("name")
@session_options
def show(session: Session, name: str) -> None:
    """Show a calendar."""
    session.printer.item(session.get(_path(name)))


@calendar.command(
    epilog=examples(
        "everbeat calendar put holidays --date 2026-12-24 --date 2026-12-28/2026-12-31 --yearly 01-01",
        "everbeat calendar put weekends --weekday SAT --weekday SUN",
        "everbeat calendar put holidays --ics holidays.ics",
    )
)
@click.argument("name")
@click.option("--date", "dates", multiple=True, help="A day, or the first and the last as FIRST/LAST. Can be repeated.")
@click.option("--weekday", "weekdays", multiple=True, help="MON to SUN. Can be repeated.")
@click.option("--yearly", multiple=True, help="A day of each year, as MM-DD. Can be repeated.")
@click.option("--ics", type=click.Path(dir_okay=False, exists=True, path_type=Path), help="An ICS file.")
@click.option("--description", help="A description.")
@session_options
def put(
    session: Session,
    name: str,
    dates: Sequence[str],
    weekdays: Sequence[str],
    yearly: Sequence[str],
    ics: Path | None,
    description: str | None,
) -> None:
    """Create or replace a calendar. The schedules that use it are updated."""
    body: dict[str, Any] = {"weekdays": list(weekdays), "yearly": list(yearly), "dates": [_day(text) for text in dates]}
    body |= {"description": description, "ics": None if ics is None else ics.read_text(encoding="utf-8")}
    given = {key: value for key, value in body.items() if value}
    if not given:
        raise click.UsageError("an empty calendar; give --date, --weekday, --yearly or --ics")
    session.printer.item(session.send("PUT", _path(name), given))


def _day(text: str) -> Any:
    first, separator, last = text.partition("/")
    return {"from": first, "to": last} if separator else first


@calendar.command(epilog=examples("everbeat calendar delete holidays"))
@click.argument("name")
@session_options
def delete(session: Session, name: str) -> None:
    """Delete a calendar that no schedule uses."""
    session.send("DELETE", _path(name))
    session.printer.note(f"deleted the calendar {name}")
