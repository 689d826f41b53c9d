"""The commands that import the schedules of other schedulers. They show what they create and compare fire times before."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import click

from everbeat.cli.connection import API_KEY_FILE, URL, connect
from everbeat.cli.examples import examples
from everbeat.cli.zones import find_local_zone
from everbeat.core.errors import EverbeatError, InvalidInput
from everbeat.core.schedules import CatchUp, Overlap
from everbeat.core.shell import DEFAULT_SHELL_QUEUE
from everbeat.imports.base import ComparedTimes, ImportPlan, NotCarriedOver, PlannedSchedule, compare_times
from everbeat.imports.crontab_schedules import (
    DEFAULT_TIMEOUT_SECONDS,
    CrontabOptions,
    merge_plans,
    plan_crontab,
    slug_of,
)

F = TypeVar("F", bound=Callable[..., Any])

_SHOWN_TICKS = 3
_SYSTEM_FILES = ("/etc/crontab", "/etc/cron.d/")


class ImportFailed(EverbeatError):
    """The import cannot be made, or was not confirmed."""


class ImportOptions(NamedTuple):
    """The options of every import."""

    url: str | None
    api_key_file: Path | None
    dry_run: bool
    yes: bool


def import_options(command: F) -> F:
    """Add the options of every import. The command passes them on as ImportOptions(**its remaining keyword arguments)."""
    options = (
        URL,
        API_KEY_FILE,
        click.option("--dry-run", is_flag=True, help="Show what would be created, and stop."),
        click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def policy_options(*, overlap: Overlap, catch_up: CatchUp, max_attempts: int) -> Callable[[F], F]:
    """Add the options for the policies of the created schedules. The defaults are what the other scheduler does."""

    def add(command: F) -> F:
        options = (
            click.option(
                "--overlap", type=click.Choice([each.value for each in Overlap]), default=overlap.value, show_default=True
            ),
            click.option(
                "--catch-up", type=click.Choice([each.value for each in CatchUp]), default=catch_up.value, show_default=True
            ),
            click.option("--max-attempts", type=click.IntRange(1, 100), default=max_attempts, show_default=True),
        )
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.group("import", epilog=examples("everbeat import crontab /etc/cron.d/* --dry-run"))
def import_() -> None:
    """Create schedules from those of another scheduler."""


@import_.command(epilog=examples("everbeat import crontab /etc/cron.d/* --dry-run", "crontab -l | everbeat import crontab -"))
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(allow_dash=True, path_type=Path))
@click.option("--system", "is_system", is_flag=True, help="The files name a user in each line, as /etc/crontab does.")
@click.option("--user", help="The user to run the commands as; for a user's crontab (the user of the worker).")
@click.option("--tz", help="The time zone of lines without CRON_TZ (the zone of this machine).")
@click.option("--queue", default=DEFAULT_SHELL_QUEUE, show_default=True, help="The queue of the workers that run the commands.")
@click.option("--prefix", help="The beginning of the schedules' names (cron, with the user or the file).")
@click.option("--timeout-seconds", type=click.FloatRange(1, 7 * 86_400), default=DEFAULT_TIMEOUT_SECONDS, show_default=True)
@policy_options(overlap=Overlap.ALLOW, catch_up=CatchUp.NONE, max_attempts=1)
@import_options
def crontab(
    files: Sequence[Path], is_system: bool, user: str | None, tz: str | None, prefix: str | None, **options: Any
) -> None:
    """Create schedules of shell commands from crontabs. A file named - is standard input, as in crontab -l | … import -."""
    shared = ImportOptions(**{name: options.pop(name) for name in ImportOptions._fields})
    zone = tz or local_zone()
    if is_system and user is not None:
        raise click.UsageError("--system and --user cannot be combined: a system crontab names the users")
    plans = []
    for file in files:
        in_system_form = is_system or (user is None and str(file).startswith(_SYSTEM_FILES))
        chosen = CrontabOptions(timezone=zone, user=user, prefix=prefix or _prefix(file, user, in_system_form), **options)
        plans.append(plan_crontab(read_text(file), str(file), chosen, is_system=in_system_form))
    plan = merge_plans(plans)
    plan.notes.append(f"lines without CRON_TZ are in the zone {zone}")
    plan.notes.append(
        "the variables of a crontab are stored in the payloads; the commands run on workers started with: "
        f"everbeat worker --allow-shell --queues {options['queue']}"
    )
    run_import(plan, shared)


def run_import(plan: ImportPlan, options: ImportOptions) -> None:
    """Show a plan, compare the fire times, ask for confirmation, and write the schedules whose times agree."""
    compared = _compare(plan, datetime.now(UTC))
    agreeing = [each for each in compared if not each.differs]
    for each in agreeing:
        _show_schedule(each)
    _show_left_out(plan.not_carried_over, [each for each in compared if each.differs])
    for note in plan.notes:
        click.echo(f"note: {note}")
    count = len(agreeing)
    click.echo(f"{count} schedules to create or update, {len(plan.not_carried_over) + len(compared) - count} not carried over")
    if options.dry_run or not agreeing:
        return
    if not options.yes:
        _confirm(count)
    definitions = [each.planned.definition for each in agreeing]
    with contextlib.closing(connect(options.url, options.api_key_file)) as app:
        written = app.client.schedules.put_many(definitions)
    statuses = [item.status for item in written]
    click.echo(", ".join(f"{statuses.count(status)} {status}" for status in ("created", "updated", "unchanged")))


def _compare(plan: ImportPlan, now: datetime) -> list[ComparedTimes]:
    compared = []
    for planned in plan.schedules:
        try:
            compared.append(compare_times(planned, now))
        except InvalidInput as error:
            plan.not_carried_over.append(NotCarriedOver(planned.source, planned.name, str(error)))
    return compared


def _show_schedule(compared: ComparedTimes) -> None:
    planned = compared.planned
    click.echo(f"{planned.name}  ({planned.source})")
    click.echo(f"    {_rule_of(planned)}")
    zone = ZoneInfo(str(planned.definition.get("timezone", "UTC")))
    times = ", ".join(tick.astimezone(zone).strftime("%Y-%m-%d %H:%M %Z") for tick in compared.ticks[:_SHOWN_TICKS])
    agreement = "" if compared.expected is None else f" (the next {len(compared.ticks)} are equal to the original's)"
    click.echo(f"    next: {times or 'none'}{agreement}")
    for note in planned.notes:
        click.echo(f"    note: {note}")


def _rule_of(planned: PlannedSchedule) -> str:
    definition = planned.definition
    rule = next(
        (f"{field} {definition[field]}" for field in ("cron", "every_seconds", "rrule", "at") if field in definition), ""
    )
    payload = definition.get("payload", {})
    if not isinstance(payload, dict):
        return rule
    argv = payload.get("argv")
    command = shlex.join(argv) if isinstance(argv, list) else payload.get("command")
    return f"{rule}  {command}" if command else rule


def _show_left_out(not_carried_over: Sequence[NotCarriedOver], differing: Sequence[ComparedTimes]) -> None:
    if not_carried_over or differing:
        click.echo("not carried over:")
    for entry in not_carried_over:
        click.echo(f"  {entry.source}  {entry.text}\n    {entry.reason}")
    for each in differing:
        tick, expected = each.first_difference or (None, None)
        click.echo(
            f"  {each.planned.source}  {each.planned.name}\n    the fire times differ: the original runs at {expected}, "
            f"a schedule would at {tick}; create the schedule by hand"
        )


def _confirm(count: int) -> None:
    if not sys.stdin.isatty():
        raise ImportFailed("nothing was created; run it again with --yes to create the schedules without a question")
    if not click.confirm(f"Create or update {count} schedules?"):
        raise ImportFailed("nothing was created")


def read_text(file: Path) -> str:
    try:
        with click.open_file(str(file), encoding="utf-8", errors="replace") as opened:
            return str(opened.read())
    except OSError as error:
        raise ImportFailed(f"{file} cannot be read: {error.strerror}") from None


def _prefix(file: Path, user: str | None, is_system: bool) -> str:
    if is_system:
        return f"cron.{slug_of(file.name)}" if str(file) != "-" else "cron.system"
    return "cron" if user is None else f"cron.{slug_of(user)}"


def local_zone() -> str:
    """Return the IANA name of this machine's time zone. Raises ImportFailed if it cannot be found."""
    name = find_local_zone()
    if name is None:
        raise ImportFailed(
            "the time zone of this machine is unknown; name the zone in which cron runs, as in --tz Europe/Berlin"
        )
    return name


# Their modules add their commands to the group above.
from everbeat.cli import (  # noqa: E402
    apscheduler_import,  # noqa: F401
    celery_beat_import,  # noqa: F401
    kubernetes_import,  # noqa: F401
)
