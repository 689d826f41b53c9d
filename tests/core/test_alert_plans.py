"""Plans of alert rules: what a file changes on a server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from everbeat.core.alert_plans import exported_alert, plan_alerts, read_alerts
from everbeat.core.alerts import AlertInput, shown_alert
from everbeat.core.change_plans import FILE_LABEL, ChangeKind, FieldChange
from everbeat.core.definitions import convert
from everbeat.core.errors import InvalidInput

DEAD = {"name": "dead", "when": {"kind": "dead"}, "notify": [{"kind": "worker", "type": "tell", "queue": "ops"}]}
SLACK = {"name": "late", "when": {"kind": "late"}, "notify": [{"kind": "slack", "url": "https://hooks.example.org/x/secret"}]}


def on_server(*rules: dict[str, Any], owner: str | None = "billing") -> list[dict[str, Any]]:
    """Return rules as the server shows them."""
    found = []
    for one in rules:
        given = convert({key: value for key, value in one.items() if key != "name"}, AlertInput)
        shown = msgspec.to_builtins(shown_alert(given))
        labels = shown["labels"] | ({FILE_LABEL: owner} if owner else {})
        found.append({"name": one["name"], **shown, "labels": labels, "revision": 1, "created_at": "", "updated_at": ""})
    return found


def test_rules_are_created_updated_and_deleted() -> None:
    rules = read_alerts([{**DEAD, "remind_seconds": 600}, SLACK], "billing")
    existing = on_server(DEAD, {**DEAD, "name": "old"}, {**DEAD, "name": "other"}, owner="billing")
    existing[2]["labels"] = {}
    plan = plan_alerts(rules, "billing", existing, prune=True)
    assert [(change.kind, change.name) for change in plan.changes] == [
        (ChangeKind.UPDATE, "dead"),
        (ChangeKind.CREATE, "late"),
        (ChangeKind.DELETE, "old"),
    ]
    assert plan.changes[0].fields == (FieldChange("remind_seconds", None, 600),)
    assert list(plan.to_write) == ["dead", "late"]
    assert plan.to_write["late"]["labels"] == {FILE_LABEL: "billing"}
    assert plan_alerts(rules, "billing", existing).prunable == ("old",)


def test_nothing_changes_if_nothing_differs_whatever_the_offset_of_a_time() -> None:
    def quiet(from_: str) -> dict[str, Any]:
        return {"quiet": {"maintenance": [{"from": from_, "to": "2026-12-26T00:00:00Z"}]}}

    rules = read_alerts([{**DEAD, **quiet("2026-12-24T01:00:00+01:00")}], "billing")
    plan = plan_alerts(rules, "billing", on_server({**DEAD, **quiet("2026-12-24T00:00:00Z")}))
    assert (plan.changes, plan.unchanged, plan.to_write) == ((), 1, {})
    (change,) = plan_alerts(rules, "billing", on_server(DEAD)).changes
    assert change.fields[0].new["maintenance"][0]["from"] == "2026-12-24T00:00:00.000000Z"


def test_a_rule_that_was_disabled_by_hand_stays_disabled_unless_the_file_says_more() -> None:
    disabled = on_server({**DEAD, "enabled": False})
    assert plan_alerts(read_alerts([DEAD], "billing"), "billing", disabled).changes == ()
    updated = plan_alerts(read_alerts([{**DEAD, "description": "x"}], "billing"), "billing", disabled)
    assert updated.to_write["dead"]["enabled"] is False
    enabled = plan_alerts(read_alerts([{**DEAD, "enabled": True}], "billing"), "billing", disabled)
    assert enabled.changes[0].fields == (FieldChange("enabled", False, True),)


def test_a_rule_with_secrets_is_sent_although_it_cannot_be_compared() -> None:
    plan = plan_alerts(read_alerts([SLACK], "billing"), "billing", on_server(SLACK))
    assert (plan.changes, plan.unchanged, list(plan.to_write)) == ((), 1, ["late"])


def test_a_rule_of_another_file_is_a_conflict() -> None:
    rules, existing = read_alerts([DEAD], "billing"), on_server(DEAD, owner="ops")
    plan = plan_alerts(rules, "billing", existing)
    assert (plan.changes, plan.conflicts, plan.to_write) == ((), {"dead": "ops"}, {})
    taken = plan_alerts(rules, "billing", existing, take_over=True)
    assert taken.changes[0].fields == (FieldChange(f"labels.{FILE_LABEL}", "ops", "billing"),)


def test_a_rule_with_values_of_a_newer_server_is_replaced() -> None:
    existing = on_server(DEAD)
    existing[0]["when"] = {"kind": "tomorrow"}
    (change,) = plan_alerts(read_alerts([DEAD], "billing"), "billing", existing).changes
    assert "when" in {field.field.partition(".")[0] for field in change.fields}


@pytest.mark.parametrize(
    ("entries", "field"),
    [
        ([{**DEAD, "name": "a b"}], "alerts[0] (a b).name"),
        ([{**DEAD, "x": 1}], "alerts[0] (dead).x"),
        ([DEAD, DEAD], "alerts[1] (dead).name"),
        ([{**DEAD, "when": {"kind": "deadline", "by": "25:00"}}], "alerts[0] (dead).when.by"),
        ([{"name": "x"}], "alerts[0] (x).when"),
        ([3], "alerts[0].name"),
        ({"dead": DEAD}, "alerts"),
    ],
)
def test_every_error_names_its_place(entries: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        read_alerts(entries, "billing")
    assert field in [error.field for error in raised.value.errors]


def test_an_export_is_a_file_again() -> None:
    given = {**DEAD, "match": {"label": "team=a"}, "group_seconds": 0, "labels": {"team": "a"}}
    (shown,) = on_server(given)
    exported = exported_alert(shown)
    assert exported == given
    assert plan_alerts(read_alerts([exported], "billing"), "billing", [shown]).changes == ()
    assert exported_alert(on_server(DEAD)[0]) == DEAD
