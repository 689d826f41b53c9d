"""The options that define a schedule, and the definition that they make."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import click

from everbeat.client.durations import seconds_of
from everbeat.core.errors import InvalidInput

F = TypeVar("F", bound=Callable[..., Any])

TRIGGERS = ("cron", "every", "rrule", "at")


def schedule_field_options(command: F) -> F:
    """Add the options that define a schedule. The command receives those that were given as keyword arguments."""
    options = (
        click.option("--cron", help='A cron expression, such as "0 2 * * *".'),
        click.option("--every", help="An interval, such as 30s, 10m or 1h30m."),
        click.option("--rrule", help="A recurrence rule of RFC 5545, such as FREQ=MONTHLY;BYDAY=-1FR."),
        click.option("--at", help="One time, as people write it: in 10 minutes, tomorrow 02:00."),
        click.option("--tz", help="The time zone (UTC)."),
        click.option("--queue", help="The queue of the tasks (default)."),
        click.option("--type", "type_", help="The type of the tasks: the name of the handler (the schedule's name)."),
        click.option("--http", help="Call this URL, instead of giving tasks to workers."),
        click.option("--payload", help="The payload of each task, as JSON."),
        click.option("--description", help="A description."),
        click.option("--overlap", help="If an earlier task is unfinished: skip, queue, cancel_previous or allow (skip)."),
        click.option("--catch-up", help="Of missed ticks, run: latest, all or none (latest)."),
        click.option("--jitter", help="A stable delay of up to this duration, such as 5m."),
        click.option("--max-attempts", type=int, help="How often a task is tried (3)."),
        click.option("--timeout", help="The time limit of an attempt, such as 10m (1h)."),
        click.option("--priority", type=int, help="The priority of the tasks; smaller is sooner (100)."),
        click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="A label. Can be repeated."),
        click.option("--exclude", multiple=True, metavar="CALENDAR", help="Do not run on the days of this calendar."),
        click.option("--only", multiple=True, metavar="CALENDAR", help="Run only on the days of this calendar."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def fields_of(
    options: Mapping[str, Any], name: str | None, time_of: Callable[[str, ZoneInfo | None], datetime]
) -> dict[str, Any]:
    """Return the fields of a definition that the options set. `name` None: of a change, so no default is added."""
    given = {option: value for option, value in options.items() if value not in (None, ())}
    fields: dict[str, Any] = {
        key: given[key] for key in ("cron", "rrule", "description", "overlap", "catch_up") if key in given
    }
    fields |= {key: given[key] for key in ("max_attempts", "priority") if key in given}
    if "every" in given:
        fields["every_seconds"] = seconds_of(given["every"], "every")
    if "tz" in given:
        fields["timezone"] = given["tz"]
    if "at" in given:
        fields["at"] = time_of(given["at"], ZoneInfo(given["tz"]) if "tz" in given else None)
    for option, field in (("jitter", "jitter_seconds"), ("timeout", "timeout_seconds")):
        if option in given:
            fields[field] = seconds_of(given[option], option)
    if "payload" in given:
        fields["payload"] = json_of(given["payload"])
    if "labels" in given:
        fields["labels"] = labels_of(given["labels"])
    if calendars := {key: list(given[key]) for key in ("exclude", "only") if key in given}:
        fields["calendars"] = calendars
    if name is not None or {"queue", "type_", "http"} & set(given):
        fields["target"] = _target(given, name)
    return fields


def _target(given: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    if "http" in given:
        if "queue" in given or "type_" in given:
            raise click.UsageError("--http cannot be combined with --queue and --type: those are of worker tasks")
        return {"kind": "http", "url": given["http"]}
    target = {"kind": "worker", **({"queue": given["queue"]} if "queue" in given else {})}
    if name is not None or "type_" in given:
        target["type"] = given.get("type_") or name
    return target


def json_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput.of("payload", f"is not JSON ({error}); write it as in '{{\"account\": 7}}'") from None


def labels_of(labels: tuple[str, ...]) -> dict[str, str]:
    if any("=" not in label for label in labels):
        raise click.BadParameter("must be KEY=VALUE", param_hint="--label")
    return dict(label.partition("=")[::2] for label in labels)
