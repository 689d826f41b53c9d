"""The commands that compare schedules and alert rules with a file, apply the file, and export both to a file."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import click

from everbeat.cli.bulk import confirm_count
from everbeat.cli.connection import Session, session_options
from everbeat.cli.examples import examples
from everbeat.cli.exit_codes import ExitCode
from everbeat.cli.output import has_colors, load_yaml, printable
from everbeat.cli.schedules import schedule_path
from everbeat.client.errors import NotFoundProblem
from everbeat.client.requests import path_segment
from everbeat.core.alert_plans import AlertChange, AlertPlan, FileAlert, exported_alert, plan_alerts, read_alerts
from everbeat.core.change_plans import (
    ChangeKind,
    ChangePlan,
    ScheduleChange,
    ScheduleFile,
    exported,
    plan_changes,
    read_schedule_file,
    redacted_headers,
)
from everbeat.core.definitions import rfc3339
from everbeat.core.errors import EverbeatError, InvalidInput
from everbeat.core.target_secrets import REDACTED
from everbeat.core.zones import load_zone

F = TypeVar("F", bound=Callable[..., Any])

_BATCH = 500
_MAX_SHOWN = 200
_SIGNS = {ChangeKind.CREATE: ("+", "green"), ChangeKind.UPDATE: ("~", "yellow"), ChangeKind.DELETE: ("-", "red")}


class OwnedByAnotherFile(EverbeatError):
    """A schedule or an alert rule of the file belongs to another file."""


class PlanFile(NamedTuple):
    schedules: ScheduleFile
    alerts: dict[str, FileAlert]

    @property
    def owner(self) -> str:
        return self.schedules.owner


class FilePlan(NamedTuple):
    """What a file would change."""

    schedules: ChangePlan
    alerts: AlertPlan

    @property
    def changes(self) -> list[ScheduleChange | AlertChange]:
        return [*self.schedules.changes, *self.alerts.changes]

    @property
    def total(self) -> int:
        return len(self.changes)

    @property
    def unchanged(self) -> int:
        return self.schedules.unchanged + self.alerts.unchanged

    def count_of(self, kind: ChangeKind) -> int:
        return sum(change.kind is kind for change in self.changes)


def _plan_options(command: F) -> F:
    options = (
        click.option(
            "--file",
            "-f",
            "path",
            required=True,
            type=click.Path(path_type=Path, allow_dash=True),
            help="A YAML, JSON or TOML file; - is standard input.",
        ),
        click.option(
            "--owner", help="The name of the file in the label everbeat.file (its `owner`, or its name without the ending)."
        ),
        click.option("--prune", is_flag=True, help="Delete schedules and alert rules of this owner that are not in the file."),
        click.option("--take-over", is_flag=True, help="Also change schedules and alert rules that another file owns."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(epilog=examples("everbeat plan -f schedules.yaml", "everbeat plan -f schedules.yaml --prune -o json"))
@_plan_options
@session_options
@click.pass_context
def plan(context: click.Context, session: Session, path: Path, owner: str | None, prune: bool, take_over: bool) -> None:
    """Show what apply would change, with the old and the new next ticks. The exit code is 6 if there are changes."""
    file = _read(path, owner)
    found = _plan(session, file, prune, take_over)
    _show(session, file, found)
    _refuse_conflicts(found)
    context.exit(ExitCode.CHANGES if found.total else ExitCode.DONE)


@click.command(epilog=examples("everbeat apply -f schedules.yaml", "everbeat apply -f schedules.yaml --prune --yes"))
@_plan_options
@click.option("--yes", is_flag=True, help="Do not ask, for up to 100 changes.")
@click.option("--expect-count", type=click.IntRange(0), help="Confirm this number of changes; any other is refused.")
@session_options
def apply(
    session: Session, path: Path, owner: str | None, prune: bool, take_over: bool, yes: bool, expect_count: int | None
) -> None:
    """Create and update the schedules and alert rules of a file; --prune deletes those no longer in it."""
    file = _read(path, owner)
    found = _plan(session, file, prune, take_over)
    _show(session, file, found)
    _refuse_conflicts(found)
    if found.total:
        confirm_count(f"make {found.total} changes", found.total, yes=yes, expected=expect_count)
    _write(session, file, found)


def _write(session: Session, file: PlanFile, found: FilePlan) -> None:
    """Write in batches. Each step can be repeated, so after an interruption the next run makes the changes that are left."""
    to_write, definitions = found.schedules.to_write, file.schedules.definitions
    deleted = [schedule_path(change.name) for change in found.schedules.changes if change.kind is ChangeKind.DELETE]
    deleted += [_alert_path(change.name) for change in found.alerts.changes if change.kind is ChangeKind.DELETE]
    statuses: list[str] = []
    length = len(to_write) + len(found.alerts.to_write) + len(deleted)
    with click.progressbar(length=length, file=sys.stderr, label="apply") as bar:
        for start in range(0, len(to_write), _BATCH):
            names = to_write[start : start + _BATCH]
            written = session.app.client.schedules.put_many([definitions[name] for name in names])
            statuses += [one.status for one in written]
            bar.update(len(names))
        statuses += [_write_alert(session, name, found.alerts, bar.update) for name in found.alerts.to_write]
        for path in deleted:
            session.send("DELETE", path)
            bar.update(1)
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in ("created", "updated"))
    unchanged = len(file.schedules.specs) + len(file.alerts) - len(statuses) + statuses.count("unchanged")
    click.echo(f"{counts}, {len(deleted)} deleted, {unchanged} unchanged", err=True)


def _write_alert(session: Session, name: str, found: AlertPlan, done: Callable[[int], None]) -> str:
    """Write a rule. Returns what happened to it, as batches of schedules say it."""
    session.send("PUT", _alert_path(name), found.to_write[name])
    done(1)
    planned = {change.name: change.kind for change in found.changes}
    return {ChangeKind.CREATE: "created", ChangeKind.UPDATE: "updated"}.get(planned.get(name, ChangeKind.DELETE), "unchanged")


def _alert_path(name: str) -> str:
    return f"/v1/alerts/{path_segment(name)}"


def _read(path: Path, owner: str | None) -> PlanFile:
    try:
        with click.open_file(str(path), encoding="utf-8") as opened:
            text = opened.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise EverbeatError(f"{path} cannot be read: {reason}") from None
    data = _parse(text, path)
    if owner is not None and isinstance(data, dict):
        data = {**data, "owner": owner}
    return _checked(data, path.stem if str(path) != "-" else "stdin")


def _checked(data: Any, default_owner: str) -> PlanFile:
    """Validate the content of a file. The errors of schedules and of alert rules are reported together."""
    try:
        file = read_schedule_file(data, default_owner)
    except InvalidInput as error:
        if isinstance(data, dict) and "alerts" in data:
            try:
                read_alerts(data["alerts"], default_owner)
            except InvalidInput as other:
                raise InvalidInput(*error.errors, *other.errors) from None
        raise
    return PlanFile(file, read_alerts(data.get("alerts", []), file.owner))


def _parse(text: str, path: Path) -> Any:
    try:
        if path.suffix == ".toml":
            return tomllib.loads(text)
        if path.suffix == ".json" or text.lstrip().startswith("{"):
            return json.loads(text)
        yaml = load_yaml()
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # safe: it creates no Python objects
    except EverbeatError:
        raise
    except Exception as error:  # each parser has its own errors
        raise EverbeatError(f"{path} cannot be parsed: {' '.join(str(error).split())}") from None


def _plan(session: Session, file: PlanFile, prune: bool, take_over: bool) -> FilePlan:
    schedules = session.list("/v1/schedules", None)
    return FilePlan(
        plan_changes(file.schedules, schedules, datetime.now(UTC), prune=prune, take_over=take_over),
        plan_alerts(file.alerts, file.owner, _existing_alerts(session), prune=prune, take_over=take_over),
    )


def _existing_alerts(session: Session) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = session.list("/v1/alerts", None)
    except NotFoundProblem:  # a server of version 0.1
        return []
    return found


def _refuse_conflicts(found: FilePlan) -> None:
    conflicts = {**found.schedules.conflicts, **{f"the alert {name}": owner for name, owner in found.alerts.conflicts.items()}}
    if conflicts:
        name, owner = next(iter(conflicts.items()))
        what = "schedules" if not found.alerts.conflicts else "schedules or alert rules"
        raise OwnedByAnotherFile(
            f"{len(conflicts)} {what} belong to another file, such as {name} to {owner}; "
            "remove them from one of the files, or add --take-over"
        )


def _show(session: Session, file: PlanFile, found: FilePlan) -> None:
    if not session.printer.is_table:
        session.printer.data(_as_data(file, found))
        return
    changes = found.changes
    for change in changes[:_MAX_SHOWN]:
        for line in _lines_of(change, file.schedules):
            click.echo(line)
    if len(changes) > _MAX_SHOWN:
        click.echo(f"… and {len(changes) - _MAX_SHOWN} more; all are in -o json")
    for what, prunable in (("schedules", found.schedules.prunable), ("alert rules", found.alerts.prunable)):
        if prunable:
            click.echo(f"{len(prunable)} {what} of {file.owner} are not in the file; --prune deletes them", err=True)
    counts = ", ".join(f"{found.count_of(kind)} to {kind.value}" for kind in ChangeKind)
    click.echo(f"{counts}, {found.unchanged} unchanged")


def _lines_of(change: ScheduleChange | AlertChange, file: ScheduleFile) -> Iterator[str]:
    sign, color = _SIGNS[change.kind]
    first = f"{sign} {'alert ' if isinstance(change, AlertChange) else ''}{change.name}"
    yield click.style(first, fg=color) if has_colors() else first
    for each in change.fields:
        yield f"    {printable(each.field)}: {_value(each.old)} -> {_value(each.new)}"
    if isinstance(change, ScheduleChange) and change.kind is not ChangeKind.DELETE:
        zone = load_zone(file.specs[change.name].rule.timezone)
        if change.old_ticks:
            yield f"    next ticks were: {_ticks(change.old_ticks, zone)}"
        if change.new_ticks:
            yield f"    next ticks: {_ticks(change.new_ticks, zone)}"


def _value(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))


def _ticks(ticks: Sequence[datetime], zone: ZoneInfo) -> str:
    return ", ".join(tick.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S %Z") for tick in ticks)


def _as_data(file: PlanFile, found: FilePlan) -> dict[str, Any]:
    changes = [
        {
            **_change_data("schedule", change),
            "old_ticks": [rfc3339(tick) for tick in change.old_ticks],
            "new_ticks": [rfc3339(tick) for tick in change.new_ticks],
        }
        for change in found.schedules.changes
    ]
    changes += [_change_data("alert", change) for change in found.alerts.changes]
    return {
        "owner": file.owner,
        "changes": changes,
        "unchanged": found.unchanged,
        "conflicts": dict(found.schedules.conflicts),
        "prunable": list(found.schedules.prunable),
        "alert_conflicts": dict(found.alerts.conflicts),
        "prunable_alerts": list(found.alerts.prunable),
    }


def _change_data(subject: str, change: ScheduleChange | AlertChange) -> dict[str, Any]:
    fields = [each._asdict() for each in change.fields]
    return {"subject": subject, "change": change.kind.value, "name": change.name, "fields": fields}


@click.command(epilog=examples("everbeat export > schedules.yaml", "everbeat export --name-prefix report- -o json"))
@click.option("--name-prefix", help="Only names that begin with this.")
@click.option("--owner", default="exported", show_default=True, help="The owner to write into the file.")
@session_options
def export(session: Session, name_prefix: str | None, owner: str) -> None:
    """Print schedules and alert rules as a file for plan and apply: as YAML, or as JSON with -o json."""
    found = [exported(one) for one in session.list("/v1/schedules", None, name_prefix=name_prefix)]
    for definition in found:
        if headers := redacted_headers(definition):
            session.printer.note(f"{definition['name']}: the values of {', '.join(headers)} are secret and not exported")
    rules = [exported_alert(one) for one in _existing_alerts(session) if one["name"].startswith(name_prefix or "")]
    for rule in rules:
        if REDACTED in str(rule["notify"]):
            session.printer.note(f"the alert {rule['name']}: secrets in its targets are not exported")
    session.printer.format = "json" if session.printer.format == "json" else "yaml"
    session.printer.data({"owner": owner, "schedules": found} | ({"alerts": rules} if rules else {}))


@click.command(epilog=examples("everbeat schema > schedules.schema.json"))
def schema() -> None:
    """Print the JSON Schema of the files of plan and apply, for editors."""
    from everbeat.cli.file_schema import file_schema

    click.echo(json.dumps(file_schema(), indent=2))
