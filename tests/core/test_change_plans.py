"""Plans: what a file changes on a server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from everbeat.core.change_plans import FILE_LABEL, ChangeKind, exported, plan_changes, read_schedule_file
from everbeat.core.definitions import parse_definition
from everbeat.core.errors import InvalidInput

NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)
NIGHTLY = {"name": "nightly", "cron": "0 2 * * *", "target": {"kind": "worker", "type": "nightly"}}


def file_of(*schedules: Any, **more: Any) -> Any:
    return read_schedule_file({"schedules": list(schedules), **more}, "billing")


def on_server(*schedules: dict[str, Any], owner: str | None = "billing") -> list[dict[str, Any]]:
    """Return schedules as the server shows them."""
    from everbeat.core.definitions import definition_from_spec

    shown = []
    for one in schedules:
        definition = definition_from_spec(parse_definition(one))
        labels = definition["labels"] | ({FILE_LABEL: owner} if owner else {})
        shown.append({**definition, "labels": labels, "status": "active", "id": "1", "revision": 1})
    return shown


def test_a_schedule_that_is_not_on_the_server_is_created_and_shows_its_next_ticks() -> None:
    found = plan_changes(file_of(NIGHTLY), [], NOW)
    assert [(change.kind, change.name) for change in found.changes] == [(ChangeKind.CREATE, "nightly")]
    assert found.changes[0].new_ticks[0] == datetime(2026, 11, 20, 2, tzinfo=UTC)
    assert found.to_write == ("nightly",)


def test_nothing_changes_if_nothing_differs_and_defaults_are_written_out_on_the_server() -> None:
    every = {"name": "ping", "every_seconds": 30, "target": {"kind": "worker", "type": "ping"}}
    shown = on_server(NIGHTLY, every)
    shown[1]["anchor"] = "2026-11-01T00:00:00.000000Z"  # set by the server
    found = plan_changes(file_of(NIGHTLY, every), shown, NOW)
    assert (found.changes, found.unchanged, found.to_write) == ((), 2, ())


def test_an_update_shows_the_fields_and_the_old_and_new_ticks() -> None:
    new = {**NIGHTLY, "cron": "0 3 * * *", "retry": {"factor": 3}}
    (change,) = plan_changes(file_of(new), on_server(NIGHTLY), NOW).changes
    assert [(each.field, each.old, each.new) for each in change.fields] == [
        ("cron", "0 2 * * *", "0 3 * * *"),
        ("retry.factor", 2, 3),
    ]
    assert (change.old_ticks[0].hour, change.new_ticks[0].hour) == (2, 3)
    (change,) = plan_changes(file_of({**NIGHTLY, "priority": 5}), on_server(NIGHTLY), NOW).changes
    assert (change.old_ticks, change.new_ticks) == ((), ())


def test_a_pause_by_hand_is_kept_unless_the_file_sets_enabled() -> None:
    shown = on_server({**NIGHTLY, "enabled": False})
    assert plan_changes(file_of(NIGHTLY), shown, NOW).changes == ()
    assert len(plan_changes(file_of({**NIGHTLY, "enabled": True}), shown, NOW).changes) == 1


def test_only_own_schedules_are_deleted_and_only_with_prune() -> None:
    shown = on_server({**NIGHTLY, "name": "old"}) + on_server({**NIGHTLY, "name": "theirs"}, owner="other")
    shown += on_server({**NIGHTLY, "name": "by-hand"}, owner=None)
    found = plan_changes(file_of(), shown, NOW)
    assert (found.changes, found.prunable) == ((), ("old",))
    found = plan_changes(file_of(), shown, NOW, prune=True)
    assert [(change.kind, change.name) for change in found.changes] == [(ChangeKind.DELETE, "old")]


def test_a_schedule_of_another_file_is_a_conflict_unless_it_is_taken_over() -> None:
    shown = on_server(NIGHTLY, owner="other")
    assert plan_changes(file_of(NIGHTLY), shown, NOW).conflicts == {"nightly": "other"}
    (change,) = plan_changes(file_of(NIGHTLY), shown, NOW, take_over=True).changes
    assert [(each.field, each.new) for each in change.fields] == [(f"labels.{FILE_LABEL}", "billing")]


def test_a_definition_with_a_secret_is_always_written_because_it_cannot_be_compared() -> None:
    secret = {**NIGHTLY, "target": {"kind": "http", "url": "https://x.example", "headers": {"Authorization": "Bearer 1"}}}
    shown = on_server({**secret, "target": {**secret["target"], "headers": {"Authorization": "***"}}})  # type: ignore[dict-item]
    found = plan_changes(file_of(secret), shown, NOW)
    assert (found.changes, found.to_write) == ((), ("nightly",))


def test_defaults_are_merged_and_a_trigger_of_a_schedule_replaces_that_of_the_defaults() -> None:
    defaults = {"cron": "0 0 * * *", "timezone": "Europe/Berlin", "labels": {"team": "a"}, "target": {"kind": "worker"}}
    file = file_of({"name": "x", "every_seconds": 60, "labels": {"b": "c"}, "target": {"type": "x"}}, defaults=defaults)
    assert file.definitions["x"]["labels"] == {"team": "a", "b": "c", FILE_LABEL: "billing"}
    assert "cron" not in file.definitions["x"]
    assert file.specs["x"].rule.timezone == "Europe/Berlin"


def test_all_errors_are_reported_with_their_place() -> None:
    with pytest.raises(InvalidInput) as found:
        file_of(
            {**NIGHTLY, "cron": "61 * * * *"}, {"name": "y"}, NIGHTLY, {**NIGHTLY}, {**NIGHTLY, "name": "z", "tmiezone": "UTC"}
        )
    fields = [one.field for one in found.value.errors]
    assert fields[0] == "schedules[0] (nightly).cron"
    assert [field.partition(" ")[0] for field in fields] == ["schedules[0]", "schedules[1]", "schedules[3]", "schedules[4]"]
    wrong: list[Any] = [{}, {"schedules": {}}, {"schedules": [], "x": 1}, {"schedules": [], "owner": "a b"}, {"schedules": [1]}]
    for data in wrong:
        with pytest.raises(InvalidInput):
            read_schedule_file(data, "x")


def test_an_export_is_a_file_that_changes_nothing() -> None:
    given = {**NIGHTLY, "payload": {"a": 1}, "timezone": "Europe/Berlin", "max_attempts": 5, "labels": {"team": "a"}}
    shown = on_server(given)
    definition = exported(shown[0])
    assert definition == {**given, "target": {"kind": "worker", "queue": "default", "type": "nightly"}}
    assert plan_changes(file_of(definition), shown, NOW).changes == ()
