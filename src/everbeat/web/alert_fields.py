"""The form of an alert rule: its fields, and the rule that they describe. What the form has no field for is JSON."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from everbeat.core.alerts import AlertInput, AlertKind, AlertRule, shown_alert
from everbeat.core.definitions import convert
from everbeat.core.errors import InvalidInput
from everbeat.core.targets import HttpTarget
from everbeat.web.forms import Form
from everbeat.web.inputs import json_of


class Parameter(NamedTuple):
    """A field of `when`. `kinds`: those that have it."""

    name: str
    label: str
    kinds: str
    hint: str
    is_number: bool = True


PARAMETERS = (
    Parameter("seconds", "Seconds", "late, slow, queue_age, no_worker", "How long is too long."),
    Parameter("times_usual", "Times the usual duration", "slow", "Compared with the median of the last 20 runs."),
    Parameter("by", "Done by", "deadline", "A time of day such as 04:00.", False),
    Parameter("timezone", "Time zone", "deadline", "Empty: that of the schedule.", False),
    Parameter("below", "Below", "success_rate", "A fraction such as 0.9."),
    Parameter("window_seconds", "Window in seconds", "success_rate", "3600 if it is empty."),
    Parameter("min_runs", "At least this many runs", "success_rate", "10 if it is empty."),
    Parameter("in_a_row", "Skips in a row", "skipped", "3 if it is empty."),
    Parameter("reasons", "Reasons", "skipped", "Separated by spaces: overlap misfire quota paused …", False),
)
KIND_LABELS = {
    AlertKind.DEAD: "A task becomes a dead letter",
    AlertKind.MISSED: "A tick is missing",
    AlertKind.LATE: "A tick fires late",
    AlertKind.DEADLINE: "A schedule is not done by a time of day",
    AlertKind.SLOW: "A run takes too long",
    AlertKind.SUCCESS_RATE: "Too few runs succeed",
    AlertKind.QUEUE_AGE: "A task waits too long in its queue",
    AlertKind.NO_WORKER: "A queue has tasks and no worker",
    AlertKind.SKIPPED: "Ticks are skipped in a row",
}
_MATCHES = ("schedule", "label", "queue")
_NUMBERS = ("remind_seconds", "group_seconds")


def fields_of_alert(rule: AlertRule) -> dict[str, str]:
    """Return the rule as the fields of the form."""
    given: dict[str, Any] = msgspec.to_builtins(shown_alert(rule.given))
    fields = {"name": rule.name, "description": given["description"], "kind": given["when"]["kind"]}
    for parameter in PARAMETERS:
        value = given["when"].get(parameter.name)
        if value is not None:
            fields[parameter.name] = " ".join(value) if isinstance(value, list) else _number_text(value)
    fields |= {name: given["match"][name] for name in _MATCHES if given["match"][name] is not None}
    fields |= {name: _number_text(given[name]) for name in _NUMBERS if given[name] is not None}
    for name, is_set in (
        ("even_if_paused", given["when"].get("even_if_paused")),
        ("notify_resolved", given["notify_resolved"]),
        ("enabled", given["enabled"]),
    ):
        if is_set:
            fields[name] = "1"
    if given["quiet"] is not None:
        fields["quiet"] = _json_text(given["quiet"])
    return fields | _fields_of_targets(given["notify"])


def _fields_of_targets(targets: list[dict[str, Any]]) -> dict[str, str]:
    fields: dict[str, str] = {}
    others = []
    for shown in targets:
        target = {name: value for name, value in shown.items() if value is not None}
        simple = _simple_target(shown)
        if simple and not simple.keys() & fields.keys():
            fields |= simple
        else:
            others.append(target)
    return fields | ({"targets": _json_text(others)} if others else {})


def _simple_target(target: dict[str, Any]) -> dict[str, str]:
    """Return the fields for a target that the form can show; none for others."""
    kind = target["kind"]
    if kind == "slack":
        return {"slack_url": target["url"]}
    if kind == "email" and target["subject"] is None:
        return {"email_to": " ".join(target["to"]), "email_broker": target["broker"]}
    if kind == "http":
        fields = {"url": target["url"], "endpoint": target["endpoint"]}
        if msgspec.to_builtins(HttpTarget(**fields)) == target:
            return {name: value for name, value in fields.items() if value}
    return {}


def alert_of_form(form: Form) -> AlertInput:
    """Return the rule that a form describes. Raises InvalidInput with the names of wrong fields."""
    when: dict[str, Any] = {"kind": form.text("kind")}
    for parameter in PARAMETERS:
        if form.is_set(parameter.name):
            text = form.text(parameter.name)
            when[parameter.name] = text.split() if parameter.name == "reasons" else text
            if parameter.is_number:
                when[parameter.name] = _number(parameter.name, text)
    if form.is_set("even_if_paused"):
        when["even_if_paused"] = True
    body: dict[str, Any] = {
        "when": when,
        "match": {name: form.text(name) for name in _MATCHES if form.is_set(name)},
        "notify": _targets(form),
        "description": form.text("description"),
        "notify_resolved": form.is_set("notify_resolved"),
        "enabled": form.is_set("enabled"),
    }
    body |= {name: _number(name, form.text(name)) for name in _NUMBERS if form.is_set(name)}
    if form.is_set("quiet"):
        body["quiet"] = json_of("quiet", form.text("quiet"))
    return convert(body, AlertInput)


def _targets(form: Form) -> list[Any]:
    targets: list[Any] = [{"kind": "http", name: form.text(name)} for name in ("url", "endpoint") if form.is_set(name)]
    if form.is_set("slack_url"):
        targets.append({"kind": "slack", "url": form.text("slack_url")})
    if form.is_set("email_to"):
        targets.append({"kind": "email", "to": form.text("email_to").split(), "broker": form.text("email_broker")})
    if form.is_set("targets"):
        others = json_of("targets", form.text("targets"))
        if not isinstance(others, list):
            raise InvalidInput.of("targets", "must be a JSON list of targets")
        targets += others
    return targets


def _number(field: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInput.of(field, "must be a number") from None


def _number_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _json_text(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
