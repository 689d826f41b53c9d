"""The commands on checks: jobs that run elsewhere and report by pings."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from everbeat.cli.connection import API_KEY_FILE, CONTEXT, URL, Session, connect, session_options
from everbeat.cli.examples import examples
from everbeat.cli.explanations import print_explanation
from everbeat.cli.output import Column, shown
from everbeat.cli.schedule_fields import labels_of
from everbeat.client.durations import seconds_of
from everbeat.client.errors import NotFoundProblem
from everbeat.client.pings import PingSender, is_ping_url
from everbeat.client.requests import path_segment
from everbeat.core.errors import EverbeatError
from everbeat.core.zones import load_zone

_URL_VARIABLE = "EVERBEAT_PING_URL"
_LIMIT = click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most this many.")

_COLUMNS = [
    Column("NAME", "name"),
    Column("STATUS", lambda item: item["status"] if item["reason"] is None else f"{item['status']} ({item['reason']})"),
    Column("TRIGGER", "trigger_text"),
    Column("GRACE S", "grace_seconds"),
    Column("LAST PING", "last_ping_at"),
    Column("EXPECTED", "expected_at"),
]
_PING_COLUMNS = [
    Column("NUMBER", "number"),
    Column("AT", "at"),
    Column("KIND", "kind"),
    Column("EXIT", "exit_status"),
    Column("DURATION MS", "duration_ms"),
    Column("FROM", "address"),
    Column("BODY", "body"),
]
_TICK_COLUMNS = [
    Column("EXPECTED AT", "scheduled_for"),
    Column("OUTCOME", lambda item: f"{item['outcome']} ({item['count']} pings)" if "count" in item else item["outcome"]),
    Column("REASON", "reason"),
    Column("LAG MS", "lag_ms"),
    Column("PING", "ping"),
]


def _path(name: str, rest: str = "") -> str:
    return f"/v1/checks/{path_segment(name)}{rest}"


@click.group(
    epilog=examples('everbeat check set backup --cron "0 3 * * *" --grace 15m', "everbeat check run backup -- pg_dump app")
)
def check() -> None:
    """Watch jobs that run elsewhere and report by pings."""


@check.command("list", epilog=examples("everbeat check list", "everbeat check list --state down -o json"))
@click.option("--state", type=click.Choice(["new", "up", "down", "paused"]), help="Only checks in this state.")
@click.option("--name-prefix", help="Only names that begin with this.")
@_LIMIT
@session_options
def list_(session: Session, limit: int, **filters: str | None) -> None:
    """List checks by name."""
    found = session.list("/v1/checks", limit, **filters)
    session.printer.items(found, _COLUMNS, empty="there are no such checks; see: everbeat check set --help")


@check.command(epilog=examples("everbeat check show backup", "everbeat check show backup -o json"))
@click.argument("name")
@session_options
def show(session: Session, name: str) -> None:
    """Show a check with its ping URL."""
    session.printer.item(session.get(_path(name)))


@check.command(
    "set",
    epilog=examples(
        'everbeat check set backup --cron "0 3 * * *" --tz Europe/Berlin --grace 15m',
        "everbeat check set sync --every 10m --grace 5m --timeout 30m",
    ),
)
@click.argument("name")
@click.option("--cron", help='When pings are expected: a cron expression, such as "0 3 * * *".')
@click.option("--every", help="When pings are expected: this long after the last one, such as 10m or 1h30m.")
@click.option("--tz", help="The time zone of the cron expression (UTC).")
@click.option("--grace", help="How late a ping may be (1h).")
@click.option("--timeout", help="How long a run may take that began with a start ping (as long as the grace).")
@click.option("--description", help="A description.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label. Can be repeated; replaces all labels.")
@session_options
def set_(session: Session, name: str, **options: Any) -> None:
    """Create a check, or change the given fields of one. Prints the ping URL."""
    given = _fields(options)
    current = _definition(session, name)
    if current is None and not {"cron", "every_seconds"} & given.keys():
        raise click.UsageError('there is no such check; to create it, give --cron or --every, as in --cron "0 3 * * *"')
    if {"cron", "every_seconds"} & given.keys():
        current = {key: value for key, value in (current or {}).items() if key not in ("cron", "every_seconds")}
    saved = session.send("PUT", _path(name), {**(current or {}), **given})
    if not session.printer.is_table:
        session.printer.data(saved)
        return
    click.echo(f"{shown(saved['name'])}: {shown(saved['trigger_text'])}, {shown(saved['status'])}")
    click.echo(saved["ping_url"])


def _fields(options: dict[str, Any]) -> dict[str, Any]:
    fields = {key: options[key] for key in ("cron", "description") if options[key] is not None}
    if options["cron"] is not None and options["every"] is not None:
        raise click.UsageError("give either --cron or --every")
    if options["tz"] is not None:
        fields["timezone"] = options["tz"]
    for option, field in (("every", "every_seconds"), ("grace", "grace_seconds"), ("timeout", "timeout_seconds")):
        if options[option] is not None:
            fields[field] = seconds_of(options[option], option)
    if options["labels"]:
        fields["labels"] = labels_of(options["labels"])
    return fields


def _definition(session: Session, name: str) -> dict[str, Any] | None:
    """Return the definition of an existing check."""
    try:
        found = session.get(_path(name))
    except NotFoundProblem:
        return None
    names = ("cron", "every_seconds", "timezone", "grace_seconds", "timeout_seconds", "description", "labels")
    return {key: found[key] for key in names if key in found}


@check.command(epilog=examples("everbeat check delete backup"))
@click.argument("name")
@session_options
def delete(session: Session, name: str) -> None:
    """Delete a check. Its ping URL stops working."""
    session.send("DELETE", _path(name))
    session.printer.note(f"deleted the check {name}")


@check.command(epilog=examples("everbeat check pause backup"))
@click.argument("name")
@session_options
def pause(session: Session, name: str) -> None:
    """Pause a check: no ping is expected, and pings do not resume it."""
    session.printer.items([session.send("POST", _path(name, "/pause"))], _COLUMNS, empty="")


@check.command(epilog=examples("everbeat check resume backup"))
@click.argument("name")
@session_options
def resume(session: Session, name: str) -> None:
    """Resume a check: the next ping is expected from now on."""
    session.printer.items([session.send("POST", _path(name, "/resume"))], _COLUMNS, empty="")


@check.command(epilog=examples("everbeat check rotate backup", "everbeat check rotate backup --revoke"))
@click.argument("name")
@click.option("--revoke", is_flag=True, help="End the old ping URL at once, instead of after 24 hours.")
@session_options
def rotate(session: Session, name: str, revoke: bool) -> None:
    """Give a check a new ping URL, and print it."""
    saved = session.send("POST", _path(name, "/rotate"), {"keep_old": not revoke})
    if session.printer.is_table:
        click.echo(saved["ping_url"])
    else:
        session.printer.data(saved)


@check.command(epilog=examples("everbeat check pings backup", "everbeat check pings backup --limit 1 -o json"))
@click.argument("name")
@_LIMIT
@session_options
def pings(session: Session, name: str, limit: int) -> None:
    """List the pings of a check, newest first."""
    session.printer.items(session.list(_path(name, "/pings"), limit), _PING_COLUMNS, empty="no ping has arrived yet")


@check.command(epilog=examples("everbeat check ticks backup", 'everbeat check ticks backup --from "last monday"'))
@click.argument("name")
@click.option("--from", "from_", help="The beginning, in the zone of the check.")
@click.option("--to", help="The end, in the zone of the check.")
@_LIMIT
@session_options
def ticks(session: Session, name: str, from_: str | None, to: str | None, limit: int) -> None:
    """List the ledger of a check: expected pings with their outcomes."""
    zone = load_zone(session.get(_path(name))["timezone"]) if from_ or to else None
    window = {"from": session.time(from_, zone, "from"), "to": session.time(to, zone, "to")}
    found = session.list(_path(name, "/ticks"), limit, **window)
    session.printer.items(found, _TICK_COLUMNS, empty="no ping was expected in this time")


@check.command(epilog=examples("everbeat check why backup", 'everbeat check why backup --at "yesterday 03:00"'))
@click.argument("name")
@click.option("--at", help="The time in question, in the zone of the check (now).")
@session_options
def why(session: Session, name: str, at: str | None) -> None:
    """Explain the state of a check, or what became of the ping that was expected at a time."""
    zone = load_zone(session.get(_path(name))["timezone"]) if at else None
    print_explanation(session.printer, session.get(_path(name, "/why"), at=session.time(at, zone, "at")))


@check.command(
    epilog=examples(
        "everbeat check run backup -- pg_dump -f app.sql app",
        "everbeat check run https://beat.example.org/ping/0a9f2c66-51c8-4a4b-8b0d-3f9f3f8d2e11 -- backup --all",
    )
)
@click.argument("check", metavar="NAME_OR_URL")
@click.argument("argv", metavar="-- PROGRAM [ARGUMENT...]", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--no-output", is_flag=True, help="Do not report the output, and do not read it.")
@click.option(
    "--ping-timeout", type=click.FloatRange(0.1, 300), default=10.0, show_default=True, help="Seconds to wait for each ping."
)
@CONTEXT
@URL
@API_KEY_FILE
@click.pass_context
def run(
    ctx: click.Context,
    check: str,
    argv: Sequence[str],
    no_output: bool,
    ping_timeout: float,
    context: str | None,
    url: str | None,
    api_key_file: Path | None,
) -> None:
    """Run a command, and report its start, its exit status and the end of its output.

    NAME_OR_URL is a check, its ping URL, or - for the ping URL in EVERBEAT_PING_URL. The exit status is that of the
    command. If the server cannot be reached, the command runs all the same.
    """
    from everbeat.cli.check_run import run_and_report

    found = _ping_url(check, url, api_key_file, context)
    sender = None if found is None else PingSender(found, timeout_seconds=ping_timeout, warn=_warn)
    ctx.exit(run_and_report(argv, sender, captures_output=not no_output))


def _ping_url(check: str, url: str | None, api_key_file: Path | None, context: str | None) -> str | None:
    """Return the ping URL of a check, or print why there is none."""
    if check == "-":
        check = os.environ.get(_URL_VARIABLE, "")
        if not is_ping_url(check):
            _warn(f"{_URL_VARIABLE} is not a ping URL, so the run is not reported")
            return None
    if is_ping_url(check):
        return check
    try:
        with contextlib.closing(connect(url, api_key_file, context, patience=2.0)) as app:
            found = app.client.requests.send("GET", _path(check))["ping_url"]
    except (EverbeatError, click.ClickException) as error:
        _warn(f"the check {check} cannot be read, so the run is not reported: {error}")
        return None
    if found is None:
        _warn(f"the API key may not see the ping URL of {check}, so the run is not reported; use the ping URL itself")
    return str(found) if found else None


def _warn(text: str) -> None:
    click.echo(f"everbeat: {shown(text)}", err=True)
