"""The commands that compare schedules with a file, apply the file, and export schedules to a file."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import click

from everbeat.cli.bulk import confirm_count
from everbeat.cli.connection import Session, session_options
from everbeat.cli.examples import examples
from everbeat.cli.exit_codes import ExitCode
from everbeat.cli.output import has_colors, load_yaml, printable
from everbeat.cli.schedules import schedule_path
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
from everbeat.core.errors import EverbeatError
from everbeat.core.zones import load_zone

F = TypeVar("F", bound=Callable[..., Any])

_BATCH = 500
_MAX_SHOWN = 200
_SIGNS = {ChangeKind.CREATE: ("+", "green"), ChangeKind.UPDATE: ("~", "yellow"), ChangeKind.DELETE: ("-", "red")}


class OwnedByAnotherFile(EverbeatError):
    """A schedule of the file belongs to another file."""


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
        click.option("--prune", is_flag=True, help="Delete schedules of this owner that are not in the file."),
        click.option("--take-over", is_flag=True, help="Also change schedules that another file owns."),
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
    context.exit(ExitCode.CHANGES if found.changes else ExitCode.DONE)


@click.command(epilog=examples("everbeat apply -f schedules.yaml", "everbeat apply -f schedules.yaml --prune --yes"))
@_plan_options
@click.option("--yes", is_flag=True, help="Do not ask, for up to 100 changes.")
@click.option("--expect-count", type=click.IntRange(0), help="Confirm this number of changes; any other is refused.")
@session_options
def apply(
    session: Session, path: Path, owner: str | None, prune: bool, take_over: bool, yes: bool, expect_count: int | None
) -> None:
    """Create and update the schedules of a file, and with --prune delete those that it no longer has."""
    file = _read(path, owner)
    found = _plan(session, file, prune, take_over)
    _show(session, file, found)
    _refuse_conflicts(found)
    if found.changes:
        count = len(found.changes)
        confirm_count(f"make {count} changes", count, yes=yes, expected=expect_count)
    _write(session, file, found)


def _write(session: Session, file: ScheduleFile, found: ChangePlan) -> None:
    """Write in batches. Each step can be repeated, so after an interruption the next run makes the changes that are left."""
    deleted = [change.name for change in found.changes if change.kind is ChangeKind.DELETE]
    statuses: list[str] = []
    with click.progressbar(length=len(found.to_write) + len(deleted), file=sys.stderr, label="apply") as bar:
        for start in range(0, len(found.to_write), _BATCH):
            names = found.to_write[start : start + _BATCH]
            written = session.app.client.schedules.put_many([file.definitions[name] for name in names])
            statuses += [one.status for one in written]
            bar.update(len(names))
        for name in deleted:
            session.send("DELETE", schedule_path(name))
            bar.update(1)
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in ("created", "updated"))
    click.echo(
        f"{counts}, {len(deleted)} deleted, {len(file.specs) - len(statuses) + statuses.count('unchanged')} unchanged", err=True
    )


def _read(path: Path, owner: str | None) -> ScheduleFile:
    try:
        with click.open_file(str(path), encoding="utf-8") as opened:
            text = opened.read()
    except (OSError, UnicodeDecodeError) as error:
        raise EverbeatError(f"{path} cannot be read ({error})") from None
    data = _parse(text, path)
    if owner is not None and isinstance(data, dict):
        data = {**data, "owner": owner}
    return read_schedule_file(data, path.stem if str(path) != "-" else "stdin")


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
        raise EverbeatError(f"{path} cannot be parsed: {error}") from None


def _plan(session: Session, file: ScheduleFile, prune: bool, take_over: bool) -> ChangePlan:
    existing = session.list("/v1/schedules", None)
    return plan_changes(file, existing, datetime.now(UTC), prune=prune, take_over=take_over)


def _refuse_conflicts(found: ChangePlan) -> None:
    if found.conflicts:
        name, owner = next(iter(found.conflicts.items()))
        raise OwnedByAnotherFile(
            f"{len(found.conflicts)} schedules belong to another file, such as {name} to {owner}; "
            "remove them from one of the files, or add --take-over"
        )


def _show(session: Session, file: ScheduleFile, found: ChangePlan) -> None:
    if not session.printer.is_table:
        session.printer.data(_as_data(file, found))
        return
    for change in found.changes[:_MAX_SHOWN]:
        for line in _lines_of(change, file):
            click.echo(line)
    if len(found.changes) > _MAX_SHOWN:
        click.echo(f"… and {len(found.changes) - _MAX_SHOWN} more; all are in -o json")
    if found.prunable:
        click.echo(f"{len(found.prunable)} schedules of {file.owner} are not in the file; --prune deletes them", err=True)
    counts = ", ".join(f"{found.count(kind)} to {kind.value}" for kind in ChangeKind)
    click.echo(f"{counts}, {found.unchanged} unchanged")


def _lines_of(change: ScheduleChange, file: ScheduleFile) -> Iterator[str]:
    sign, color = _SIGNS[change.kind]
    first = f"{sign} {change.name}"
    yield click.style(first, fg=color) if has_colors() else first
    for each in change.fields:
        yield f"    {printable(each.field)}: {_value(each.old)} -> {_value(each.new)}"
    if change.kind is not ChangeKind.DELETE:
        zone = load_zone(file.specs[change.name].rule.timezone)
        if change.old_ticks:
            yield f"    next ticks were: {_ticks(change.old_ticks, zone)}"
        if change.new_ticks:
            yield f"    next ticks: {_ticks(change.new_ticks, zone)}"


def _value(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))


def _ticks(ticks: Sequence[datetime], zone: ZoneInfo) -> str:
    return ", ".join(tick.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S %Z") for tick in ticks)


def _as_data(file: ScheduleFile, found: ChangePlan) -> dict[str, Any]:
    changes = [
        {
            "change": change.kind.value,
            "name": change.name,
            "fields": [each._asdict() for each in change.fields],
            "old_ticks": [rfc3339(tick) for tick in change.old_ticks],
            "new_ticks": [rfc3339(tick) for tick in change.new_ticks],
        }
        for change in found.changes
    ]
    rest = {"unchanged": found.unchanged, "conflicts": dict(found.conflicts), "prunable": list(found.prunable)}
    return {"owner": file.owner, "changes": changes, **rest}


@click.command(epilog=examples("everbeat export > schedules.yaml", "everbeat export --name-prefix report- -o json"))
@click.option("--name-prefix", help="Only names that begin with this.")
@click.option("--owner", default="exported", show_default=True, help="The owner to write into the file.")
@session_options
def export(session: Session, name_prefix: str | None, owner: str) -> None:
    """Print schedules as a file for plan and apply: as YAML, or as JSON with -o json."""
    found = [exported(one) for one in session.list("/v1/schedules", None, name_prefix=name_prefix)]
    for definition in found:
        if headers := redacted_headers(definition):
            session.printer.note(f"{definition['name']}: the values of {', '.join(headers)} are secret and not exported")
    session.printer.format = "json" if session.printer.format == "json" else "yaml"
    session.printer.data({"owner": owner, "schedules": found})


@click.command(epilog=examples("everbeat schema > schedules.schema.json"))
def schema() -> None:
    """Print the JSON Schema of the files of plan and apply, for editors."""
    from everbeat.cli.file_schema import file_schema

    click.echo(json.dumps(file_schema(), indent=2))
