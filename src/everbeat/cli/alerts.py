"""The commands on alert rules and incidents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from everbeat.cli.connection import Session, session_options
from everbeat.cli.examples import examples
from everbeat.cli.output import Column, load_yaml
from everbeat.client.durations import seconds_of
from everbeat.client.errors import NotFoundProblem
from everbeat.client.requests import path_segment
from everbeat.core.alerts import AlertInput, AlertKind
from everbeat.core.incidents import IncidentState

_LIMIT = click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most this many.")
_FIELDS = AlertInput.__struct_fields__

_COLUMNS = [
    Column("NAME", "name"),
    Column("WHEN", lambda item: _when_text(item["when"])),
    Column("MATCH", lambda item: _pairs(item["match"]) or "everything"),
    Column("NOTIFY", lambda item: ", ".join(_target_text(target) for target in item["notify"])),
    Column("ENABLED", "enabled"),
]
_INCIDENT_COLUMNS = [
    Column("ID", "id"),
    Column("STATE", "state"),
    Column("ALERT", "alert"),
    Column("COUNT", "count"),
    Column("OPENED", "opened_at"),
    Column("SUMMARY", "summary"),
]


def _path(name: str) -> str:
    return f"/v1/alerts/{path_segment(name)}"


def _pairs(fields: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)


def _when_text(when: dict[str, Any]) -> str:
    others = {
        name: ",".join(value) if isinstance(value, list) else f"{value:g}" if isinstance(value, float) else value
        for name, value in when.items()
        if name != "kind" and value is not False
    }
    return f"{when['kind']} {_pairs(others)}".rstrip()


def _target_text(target: dict[str, Any]) -> str:
    named = target.get("url") or target.get("endpoint") or target.get("type") or ",".join(target.get("to", []))
    return f"{target['kind']} {named}".rstrip()


@click.group(
    epilog=examples(
        "everbeat alert set late-report --kind deadline --with by=04:00 --schedule nightly-report --notify https://example.org/x",
        "everbeat alert list",
    )
)
def alert() -> None:
    """Create, change, list and delete alert rules."""


@alert.command("list", epilog=examples("everbeat alert list", "everbeat alert list -o yaml"))
@_LIMIT
@session_options
def list_(session: Session, limit: int) -> None:
    """List alert rules by name."""
    found = session.list("/v1/alerts", limit)
    session.printer.items(found, _COLUMNS, empty="there are no alert rules; see: everbeat alert set --help")


@alert.command(epilog=examples("everbeat alert show late-report -o json"))
@click.argument("name")
@session_options
def show(session: Session, name: str) -> None:
    """Show an alert rule."""
    session.printer.item(session.get(_path(name)))


@alert.command(
    "set",
    epilog=examples(
        "everbeat alert set dead --kind dead --label team=billing --notify email:mail:ops@example.org",
        "everbeat alert set slow --kind slow --with times_usual=3 --notify slack:https://hooks.slack.com/services/T0/B0/X",
        "everbeat alert set late-report --file late-report.json",
        "everbeat alert set dead --remind 1h",
    ),
)
@click.argument("name")
@click.option("--file", type=click.File(encoding="utf-8"), help="The rule as JSON or YAML; - for the standard input.")
@click.option("--kind", type=click.Choice([kind.value for kind in AlertKind]), help="What the rule watches.")
@click.option("--with", "parameters", multiple=True, metavar="NAME=VALUE", help="A parameter of the kind. Can be repeated.")
@click.option("--schedule", help="Only this schedule.")
@click.option("--label", help="Only schedules and tasks with this label: KEY or KEY=VALUE.")
@click.option("--queue", help="Only this queue.")
@click.option(
    "--notify",
    "targets",
    multiple=True,
    metavar="TARGET",
    help="A recipient: a URL, endpoint:NAME, slack:URL, email:BROKER:ADDRESS, worker:QUEUE:TYPE, or JSON. Can be repeated.",
)
@click.option("--remind", help="Report an open incident again after this time.")
@click.option("--group", help="Report incidents together that open in this time after a message (1m).")
@click.option("--resolved/--no-resolved", "resolved", default=None, help="Whether to report the end of incidents.")
@click.option("--enable/--disable", "enabled", default=None, help="Whether the rule is evaluated.")
@click.option("--description", help="A description, which messages contain.")
@session_options
def set_(session: Session, name: str, **options: Any) -> None:
    """Create an alert rule, or change the given fields of one."""
    given = _fields(options)
    current = _definition(session, name)
    if current is None and not {"when", "notify"} <= given.keys():
        raise click.UsageError("there is no such alert; to create it, give --kind and --notify, or --file")
    body = given if options["file"] is not None else {**(current or {}), **given}
    saved = session.send("PUT", _path(name), body)
    session.printer.items([saved], _COLUMNS, empty="")


def _fields(options: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {} if options["file"] is None else _parsed(options["file"].read())
    if options["parameters"] and options["kind"] is None:
        raise click.UsageError("--with needs --kind")
    if options["kind"] is not None:
        fields["when"] = {"kind": options["kind"], **dict(map(_parameter, options["parameters"]))}
    match = {key: options[key] for key in ("schedule", "label", "queue") if options[key] is not None}
    fields |= {"match": match} if match else {}
    fields |= {"notify": [_target(text) for text in options["targets"]]} if options["targets"] else {}
    for option, field in (("remind", "remind_seconds"), ("group", "group_seconds")):
        if options[option] is not None:
            fields[field] = seconds_of(options[option], option)
    for option, field in (("resolved", "notify_resolved"), ("enabled", "enabled"), ("description", "description")):
        if options[option] is not None:
            fields[field] = options[option]
    return fields


def _parsed(text: str) -> dict[str, Any]:
    """Return a rule that is written as JSON or YAML, such as the output of `alert show`."""
    try:
        found = json.loads(text)
    except ValueError:
        yaml = load_yaml()
        try:
            found = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise click.UsageError(f"the file is neither JSON nor YAML: {error}") from None
    if not isinstance(found, dict):
        raise click.UsageError("the file must contain an object with the fields of a rule")
    return {key: value for key, value in found.items() if key not in ("name", "revision", "created_at", "updated_at")}


def _parameter(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.UsageError(f"--with {text}: write it as NAME=VALUE")
    if name == "reasons":
        return name, value.split(",")
    try:
        found = json.loads(value)
    except ValueError:
        return name, value
    return name, found if isinstance(found, int | float | bool) else value


def _target(text: str) -> Any:
    kind, _, rest = text.partition(":")
    if text.startswith("{"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise click.UsageError(f"--notify: the JSON is not valid: {error}") from None
    first, _, second = rest.partition(":")
    match kind:
        case "http" | "https":
            return {"kind": "http", "url": text}
        case "endpoint":
            return {"kind": "http", "endpoint": rest}
        case "slack":
            return {"kind": "slack", "url": rest}
        case "email" if second:
            return {"kind": "email", "broker": first, "to": second.split(",")}
        case "worker" if second:
            return {"kind": "worker", "queue": first, "type": second}
    forms = "a URL, endpoint:NAME, slack:URL, email:BROKER:ADDRESS, worker:QUEUE:TYPE or JSON"
    raise click.UsageError(f"--notify {text}: use {forms}")


def _definition(session: Session, name: str) -> dict[str, Any] | None:
    """Return the definition of an existing rule."""
    try:
        found = session.get(_path(name))
    except NotFoundProblem:
        return None
    return {key: found[key] for key in _FIELDS}


@alert.command(epilog=examples("everbeat alert delete late-report"))
@click.argument("name")
@session_options
def delete(session: Session, name: str) -> None:
    """Delete an alert rule. Its incidents are resolved, without notifications."""
    session.send("DELETE", _path(name))
    session.printer.note(f"deleted the alert {name}")


@click.group(epilog=examples("everbeat incident list --state open", "everbeat incident acknowledge 01a1f588-5a4e-7b53-8a2b"))
def incident() -> None:
    """List, show and acknowledge what alert rules have found."""


@incident.command("list", epilog=examples("everbeat incident list --state open", "everbeat incident list --alert late-report"))
@click.option("--state", type=click.Choice([state.value for state in IncidentState]), help="Only incidents in this state.")
@click.option("--alert", help="Only incidents of this alert rule.")
@_LIMIT
@session_options
def list_incidents(session: Session, limit: int, **filters: str | None) -> None:
    """List incidents, newest first."""
    found = session.list("/v1/incidents", limit, **filters)
    session.printer.items(found, _INCIDENT_COLUMNS, empty="there are no such incidents")


@incident.command("show", epilog=examples("everbeat incident show 01a1f588-5a4e-7b53-8a2b-6d2a3c1c2f10"))
@click.argument("id")
@session_options
def show_incident(session: Session, id: str) -> None:
    """Show an incident."""
    session.printer.item(session.get(f"/v1/incidents/{path_segment(id)}"))


@incident.command(epilog=examples('everbeat incident acknowledge 01a1f588-5a4e-7b53-8a2b-6d2a3c1c2f10 --note "disk full"'))
@click.argument("ids", nargs=-1, required=True)
@click.option("--note", help="What you know about it.")
@session_options
def acknowledge(session: Session, ids: Sequence[str], note: str | None) -> None:
    """Acknowledge incidents, so that no more reminders are sent for them."""
    body = {} if note is None else {"note": note}
    found = [session.send("POST", f"/v1/incidents/{path_segment(id_)}/acknowledge", body) for id_ in ids]
    session.printer.items(found, _INCIDENT_COLUMNS, empty="")
