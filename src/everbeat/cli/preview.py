"""The command that shows the next ticks of a trigger. It needs no server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from everbeat.cli.examples import examples
from everbeat.cli.output import Column, Printer, output_option, shown
from everbeat.cli.zones import default_zone
from everbeat.client.durations import seconds_of
from everbeat.core.definitions import TriggerInput, convert, rfc3339
from everbeat.core.human_times import parse_time
from everbeat.core.preview import MAX_COUNT
from everbeat.core.preview import preview as preview_rule
from everbeat.core.schedules import anchored
from everbeat.core.zones import load_zone


@click.command(
    epilog=examples(
        'everbeat preview "0 2 * * *" --tz Europe/Berlin',
        'everbeat preview --rrule "FREQ=MONTHLY;BYDAY=-1FR" --count 3',
        'everbeat preview "30 2 * * *" --tz Europe/Paris --after 2027-03-25',
    )
)
@click.argument("cron", required=False)
@click.option("--every", help="An interval, such as 30s, instead of a cron expression.")
@click.option("--rrule", help="A recurrence rule of RFC 5545, instead of a cron expression.")
@click.option("--tz", help="The time zone (that of this machine).")
@click.option("--count", type=click.IntRange(1, MAX_COUNT), default=10, show_default=True, help="How many ticks.")
@click.option("--after", default="now", show_default=True, help="Show the ticks after this time.")
@output_option
def preview(
    printer: Printer, cron: str | None, every: str | None, rrule: str | None, tz: str | None, count: int, after: str
) -> None:
    """Show the next ticks of a trigger, in local time and UTC, with warnings; needs no server."""
    if sum(value is not None for value in (cron, every, rrule)) != 1:
        raise click.UsageError('give a cron expression, --every or --rrule, as in: everbeat preview "0 2 * * *"')
    zone = default_zone() if tz is None else load_zone(tz)
    start = parse_time(after, datetime.now(UTC), zone, "after")
    if after != "now":
        printer.note(f"after: {start}")
    fields: dict[str, Any] = {
        "cron": cron,
        "rrule": rrule,
        "every_seconds": None if every is None else seconds_of(every, "every"),
    }
    given = {name: value for name, value in fields.items() if value is not None}
    rule = convert({**given, "timezone": zone.key}, TriggerInput).rule(exclude=(), only=())
    found = preview_rule(anchored(rule, None, start.at), start.at, count, {})
    if not printer.is_table:
        ticks = [{"at": rfc3339(tick.at), "local": tick.local} for tick in found.ticks]
        printer.data({"description": found.description, "timezone": zone.key, "ticks": ticks, "warnings": found.warnings})
        return
    click.echo(f"{found.description} ({zone.key})")
    rows = [{"local": tick.local, "at": rfc3339(tick.at)} for tick in found.ticks]
    printer.items(rows, [Column("LOCAL", "local"), Column("UTC", "at")], empty="it never runs")
    for warning in found.warnings:
        click.echo(f"warning: {shown(warning)}", err=True)
