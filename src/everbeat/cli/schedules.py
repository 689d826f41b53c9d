"""The commands on schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import click

from everbeat.cli.bulk import BulkOptions, bulk_options, confirm_count, run_bulk
from everbeat.cli.connection import Session, session_options
from everbeat.cli.examples import examples
from everbeat.cli.explanations import print_explanation
from everbeat.cli.output import Column, shown
from everbeat.cli.schedule_fields import TRIGGERS, fields_of, json_of, schedule_field_options
from everbeat.cli.task_columns import TASK_COLUMNS
from everbeat.client.requests import new_key, path_segment
from everbeat.core.zones import load_zone

F = TypeVar("F", bound=Callable[..., Any])

_NONE = "no schedule matches; create one with: everbeat schedule add NAME --cron …"
COLUMNS = [
    Column("NAME", "name"),
    Column("STATUS", "status"),
    Column("TRIGGER", "trigger_text"),
    Column("ZONE", "timezone"),
    Column("NEXT", "next_tick_at"),
    Column("LAST", "last_tick_at"),
]
TICK_COLUMNS = [
    Column("SCHEDULED FOR", "scheduled_for"),
    Column("OUTCOME", "outcome"),
    Column("REASON", lambda item: f"{item['reason']} ({item['count']} ticks)" if item.get("count", 1) > 1 else item["reason"]),
    Column("LAG MS", "lag_ms"),
    Column("TASK", "task_id"),
]
_LIMIT = click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most this many.")


def schedule_path(ref: str, rest: str = "") -> str:
    return f"/v1/schedules/{path_segment(ref)}{rest}"


def _filters(command: F) -> F:
    options = (
        click.option("--status", type=click.Choice(["active", "paused", "finished"]), help="Only with this status."),
        click.option("--name-prefix", help="Only names that begin with this."),
        click.option("--queue", help="Only with tasks for this queue."),
        click.option("--type", help="Only with tasks of this type."),
        click.option("--target", help="Only with this kind of target, such as worker or http."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group(
    epilog=examples('everbeat schedule add nightly --cron "0 2 * * *" --tz Europe/Berlin', "everbeat schedule why nightly")
)
def schedule() -> None:
    """Create, change, list and explain schedules."""


@schedule.command(
    epilog=examples(
        'everbeat schedule add nightly --cron "0 2 * * *" --tz Europe/Berlin --queue reports',
        "everbeat schedule add ping --every 30s --http https://example.com/ping",
        'everbeat schedule add once --at "tomorrow 02:00" --tz America/New_York --payload \'{"account": 7}\'',
    )
)
@click.argument("name")
@schedule_field_options
@click.option("--replace", is_flag=True, help="Replace the schedule if the name is taken.")
@session_options
def add(session: Session, name: str, replace: bool, **options: Any) -> None:
    """Create a schedule."""
    if sum(options[trigger] is not None for trigger in TRIGGERS) != 1:
        raise click.UsageError('give exactly one of --cron, --every, --rrule and --at, as in --cron "0 2 * * *"')
    definition = {"name": name, **fields_of(options, name, lambda text, zone: _time(session, text, zone))}
    if replace:
        saved = session.send("PUT", schedule_path(name), definition)
    else:
        saved = session.send("POST", "/v1/schedules", definition, {"idempotency-key": new_key()})
    _show_saved(session, saved)


@schedule.command(
    epilog=examples('everbeat schedule edit nightly --cron "30 2 * * *"', "everbeat schedule edit nightly --overlap queue")
)
@click.argument("name")
@schedule_field_options
@session_options
def edit(session: Session, name: str, **options: Any) -> None:
    """Change the given fields of a schedule."""
    current = session.get(schedule_path(name))
    zone = load_zone(options["tz"] or current["timezone"])
    fields = fields_of(options, None, lambda text, _: _time(session, text, zone))
    if not fields:
        raise click.UsageError('nothing to change; give a field, as in --cron "30 2 * * *"')
    if "target" in fields and fields["target"]["kind"] == current["target"]["kind"]:
        fields["target"] = {**current["target"], **fields["target"]}
    saved = session.send("PATCH", schedule_path(name), fields, {"If-Match": f'"{current["revision"]}"'})
    _show_saved(session, saved)


def _time(session: Session, text: str, zone: ZoneInfo | None) -> datetime:
    return session.understood(text, zone, "at").at


def _show_saved(session: Session, saved: dict[str, Any]) -> None:
    if not session.printer.is_table:
        session.printer.data(saved)
        return
    click.echo(f"{shown(saved['name'])}: {shown(saved['trigger_text'])}, next {_local(saved['next_tick_at'], saved)}")


def _local(at: str | None, found: dict[str, Any]) -> str:
    """Return a time in the zone of the schedule and in UTC."""
    if at is None:
        return "never"
    local = datetime.fromisoformat(at).astimezone(load_zone(found["timezone"]))
    return f"{local.isoformat(sep=' ', timespec='seconds')} {found['timezone']} ({shown(at)})"


@schedule.command(
    "list", epilog=examples("everbeat schedule list --status paused", "everbeat schedule list --name-prefix report- -o json")
)
@_filters
@_LIMIT
@session_options
def list_(session: Session, limit: int, **filters: str | None) -> None:
    """List schedules by name."""
    session.printer.items(session.list("/v1/schedules", limit, **filters), COLUMNS, empty=_NONE)


@schedule.command(epilog=examples("everbeat schedule show nightly", "everbeat schedule show nightly -o yaml"))
@click.argument("name")
@session_options
def show(session: Session, name: str) -> None:
    """Show a schedule."""
    found = session.get(schedule_path(name))
    if session.printer.is_table:
        found = {**found, **{field: _local(found[field], found) for field in ("next_tick_at", "last_tick_at")}}
    session.printer.item(found)


def _act(session: Session, names: Sequence[str], bulk: BulkOptions, filters: dict[str, Any], action: str, **body: Any) -> None:
    """Act on the named schedules, or let the server act on all that match."""
    if bool(names) == bulk.all_matching:
        raise click.UsageError("give the names of schedules, or filters with --all-matching")
    if bulk.all_matching:
        run_bulk(session, "schedules", action, filters, bulk, body.get("note"))
        return
    given = {key: value for key, value in body.items() if value is not None}
    found = []
    for name in names:
        if action == "delete":
            session.send("DELETE", schedule_path(name))
            session.printer.note(f"deleted {name}")
            continue
        headers = {"idempotency-key": new_key()} if action == "trigger" else None
        found.append(session.send("POST", schedule_path(name, f"/{action}"), given, headers))
    if found:
        session.printer.items(found, TASK_COLUMNS if action == "trigger" else COLUMNS, empty=_NONE)


@schedule.command(
    epilog=examples(
        'everbeat schedule pause nightly --note "migration"', "everbeat schedule pause --all-matching --name-prefix report-"
    )
)
@click.argument("names", nargs=-1)
@_filters
@click.option("--note", help="Why; shown by why.")
@bulk_options
@session_options
def pause(session: Session, names: Sequence[str], note: str | None, bulk: BulkOptions, **filters: Any) -> None:
    """Pause schedules: their ticks are skipped with the reason paused."""
    _act(session, names, bulk, filters, "pause", note=note)


@schedule.command(
    epilog=examples("everbeat schedule resume nightly", "everbeat schedule resume --all-matching --status paused")
)
@click.argument("names", nargs=-1)
@_filters
@bulk_options
@session_options
def resume(session: Session, names: Sequence[str], bulk: BulkOptions, **filters: Any) -> None:
    """Resume schedules."""
    _act(session, names, bulk, filters, "resume")


@schedule.command(
    epilog=examples(
        "everbeat schedule trigger nightly", 'everbeat schedule trigger nightly --payload \'{"day": "2026-11-01"}\''
    )
)
@click.argument("names", nargs=-1)
@_filters
@click.option("--payload", help="The payload instead of that of the schedule, as JSON.")
@bulk_options
@session_options
def trigger(session: Session, names: Sequence[str], payload: str | None, bulk: BulkOptions, **filters: Any) -> None:
    """Create a task of schedules now, also while they are paused."""
    if payload is not None and bulk.all_matching:
        raise click.UsageError("--payload cannot be combined with --all-matching")
    _act(session, names, bulk, filters, "trigger", payload=None if payload is None else json_of(payload))


@schedule.command(
    epilog=examples("everbeat schedule delete nightly", "everbeat schedule delete --all-matching --name-prefix old- --dry-run")
)
@click.argument("names", nargs=-1)
@_filters
@bulk_options
@session_options
def delete(session: Session, names: Sequence[str], bulk: BulkOptions, **filters: Any) -> None:
    """Delete schedules. Their tasks are kept."""
    if names and not bulk.dry_run:
        confirm_count(f"delete {', '.join(names)}", len(names), yes=bulk.yes, expected=bulk.expect_count)
    _act(session, names, bulk, filters, "delete")


@schedule.command(
    epilog=examples(
        'everbeat schedule backfill nightly --from "3 days ago" --dry-run',
        'everbeat schedule backfill nightly --from "2026-11-01" --to "2026-11-04" --rate 2',
    )
)
@click.argument("name")
@click.option("--from", "from_", required=True, help="The beginning, in the zone of the schedule.")
@click.option("--to", default="now", show_default=True, help="The end, in the zone of the schedule.")
@click.option("--all", "is_all", is_flag=True, help="Also ticks that have a task already.")
@click.option("--rate", type=float, help="At most this many tasks per second.")
@click.option("--dry-run", is_flag=True, help="Only count, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask, for up to 100 tasks.")
@click.option("--expect-count", type=click.IntRange(0), help="Confirm this number; any other is refused.")
@session_options
def backfill(
    session: Session,
    name: str,
    from_: str,
    to: str,
    is_all: bool,
    rate: float | None,
    dry_run: bool,
    yes: bool,
    expect_count: int | None,
) -> None:
    """Create tasks for past ticks, by default for those without a task."""
    zone = load_zone(session.get(schedule_path(name))["timezone"])
    window = {"from": session.time(from_, zone, "from"), "to": session.time(to, zone, "to")}
    body = {**window, "missing_only": not is_all, "dry_run": True}
    planned = session.send("POST", schedule_path(name, "/backfill"), body)
    if dry_run or planned["count"] == 0:
        _show_backfill(session, planned, "ticks would get a task")
        return
    confirm_count(f"backfill {planned['count']} ticks of {name}", planned["count"], yes=yes, expected=expect_count)
    rated = {} if rate is None else {"rate_per_second": rate}
    _show_backfill(
        session, session.send("POST", schedule_path(name, "/backfill"), {**body, "dry_run": False, **rated}), "tasks created"
    )


def _show_backfill(session: Session, found: dict[str, Any], what: str) -> None:
    if not session.printer.is_table:
        session.printer.data(found)
        return
    click.echo(f"{found['count']} {what}")
    for tick in found["ticks"][:10]:
        click.echo(f"  {shown(tick)}")
    if found["count"] > 10:
        click.echo(f"  … and {found['count'] - 10} more")


@schedule.command(
    epilog=examples('everbeat schedule ticks nightly --from "last monday"', "everbeat schedule ticks nightly -o json")
)
@click.argument("name")
@click.option("--from", "from_", help="The beginning, in the zone of the schedule.")
@click.option("--to", help="The end, in the zone of the schedule.")
@_LIMIT
@session_options
def ticks(session: Session, name: str, from_: str | None, to: str | None, limit: int) -> None:
    """List the ledger of a schedule: past ticks with their outcomes, and upcoming ticks."""
    zone = load_zone(session.get(schedule_path(name))["timezone"]) if from_ or to else None
    window = {"from": session.time(from_, zone, "from"), "to": session.time(to, zone, "to")}
    session.printer.items(
        session.list(schedule_path(name, "/ticks"), limit, **window), TICK_COLUMNS, empty="no ticks in this time"
    )


@schedule.command(epilog=examples("everbeat schedule executions nightly --state failed"))
@click.argument("name")
@click.option("--state", help="Only tasks in this state.")
@_LIMIT
@session_options
def executions(session: Session, name: str, state: str | None, limit: int) -> None:
    """List the tasks of a schedule, newest first."""
    found = session.list(schedule_path(name, "/executions"), limit, state=state)
    session.printer.items(found, TASK_COLUMNS, empty="the schedule has no such tasks; see: everbeat schedule ticks")


@schedule.command(epilog=examples("everbeat schedule why nightly", 'everbeat schedule why nightly --at "yesterday 02:00"'))
@click.argument("name")
@click.option("--at", help="The time in question, in the zone of the schedule (the latest expected tick).")
@session_options
def why(session: Session, name: str, at: str | None) -> None:
    """Explain why a schedule did run, did not run, or will run."""
    zone = load_zone(session.get(schedule_path(name))["timezone"]) if at else None
    print_explanation(session.printer, session.get(schedule_path(name, "/why"), at=session.time(at, zone, "at")))
