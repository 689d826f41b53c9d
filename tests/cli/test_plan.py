"""plan, apply, export and schema, against a real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from click.testing import Result

from everbeat.cli.file_schema import file_schema
from everbeat.cli.plan import OwnedByAnotherFile
from tests.cli.conftest import Console
from tests.support.processes import wait_until

ROOT = Path(__file__).parents[2]


def content(owner: str, *names: str, **more: Any) -> str:
    schedules = [{"name": name, "cron": "0 2 * * *", "target": {"type": name}, **more} for name in names]
    text: str = yaml.safe_dump(
        {"owner": owner, "defaults": {"timezone": "Europe/Berlin", "target": {"kind": "worker"}}, "schedules": schedules}
    )
    return text


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "schedules.yaml"


def test_a_file_is_planned_applied_and_then_changes_nothing(console: Console, file: Path) -> None:
    file.write_text(content("one", "one-a", "one-b"))
    planned = console.try_("plan", "-f", str(file))
    assert planned.exit_code == 6
    assert "+ one-a" in planned.stdout
    assert "2 to create, 0 to update, 0 to delete, 0 unchanged" in planned.stdout
    assert "2 created, 0 updated, 0 deleted, 0 unchanged" in console.run("apply", "-f", str(file), "--yes").stderr
    assert console.run("plan", "-f", str(file)).stdout == "0 to create, 0 to update, 0 to delete, 2 unchanged\n"
    revisions = [one["revision"] for one in console.json("schedule", "list", "--name-prefix", "one-")]
    assert "0 created, 0 updated, 0 deleted, 2 unchanged" in console.run("apply", "-f", str(file)).stderr
    assert [one["revision"] for one in console.json("schedule", "list", "--name-prefix", "one-")] == revisions
    file.write_text(content("one", "one-a", cron="30 2 * * *"))
    changed = console.try_("plan", "-f", str(file), "--prune")
    assert changed.exit_code == 6
    assert 'cron: "0 2 * * *" -> "30 2 * * *"' in changed.stdout
    assert "next ticks were: " in changed.stdout
    assert "- one-b" in changed.stdout
    assert "add --yes" in str(console.try_("apply", "-f", str(file), "--prune").exception)
    assert "0 created, 1 updated, 1 deleted" in console.run("apply", "-f", str(file), "--prune", "--yes").stderr
    assert [one["name"] for one in console.json("schedule", "list", "--name-prefix", "one-")] == ["one-a"]


def test_two_files_do_not_change_the_schedules_of_each_other(console: Console, file: Path) -> None:
    file.write_text(content("first", "shared"))
    console.run("apply", "-f", str(file), "--yes")
    result = console.try_("apply", "-f", str(file), "--owner", "second", "--yes")
    assert isinstance(result.exception, OwnedByAnotherFile)
    assert "shared to first" in str(result.exception)
    console.run("apply", "-f", str(file), "--owner", "second", "--yes", "--take-over")
    assert console.json("schedule", "show", "shared")["labels"] == {"everbeat.file": "second"}


def test_an_apply_that_was_killed_is_completed_by_the_next_one(console: Console, file: Path) -> None:
    file.write_text(
        json.dumps(
            {
                "schedules": [
                    {"name": f"many-{n:04}", "cron": "0 2 * * *", "target": {"kind": "worker", "type": "x"}}
                    for n in range(1100)
                ]
            }
        )
    )
    environment = {**os.environ, "EVERBEAT_URL": console.url, "EVERBEAT_API_KEY": console.key_file.read_text().strip()}
    command = [sys.executable, "-m", "everbeat", "apply", "-f", str(file), "--expect-count", "1100"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: console.json("schedule", "list", "--name-prefix", "many-", "--limit", "1"), 30, "the first batch")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    # The server may still execute the last request, so the count can change once more.
    applied = wait_until(lambda: _complete(console, file), 30, "an apply with the number of changes that are left")
    assert applied is not None
    written = int(applied.stderr.rpartition(" unchanged")[0].rpartition(" ")[2])
    assert 0 < written < 1100
    assert f"{1100 - written} created, 0 updated, 0 deleted, {written} unchanged" in applied.stderr
    assert console.run("plan", "-f", str(file)).stdout.endswith("1100 unchanged\n")


def _complete(console: Console, file: Path) -> Result | None:
    left = len(json.loads(console.try_("plan", "-f", str(file), "-o", "json").stdout)["changes"])
    result = console.try_("apply", "-f", str(file), "--expect-count", str(left))
    return result if result.exit_code == 0 else None


def test_an_export_is_a_file_for_plan(console: Console, file: Path) -> None:
    console.run("schedule", "add", "exp-a", "--every", "1h", "--payload", '{"a": [1]}', "--jitter", "5m")
    console.run("schedule", "add", "exp-b", "--cron", "0 2 * * *", "--tz", "Europe/Berlin", "--http", "https://x.example/y")
    exported = console.run("export", "--name-prefix", "exp-", "--owner", "exp").stdout
    file.write_text(exported)
    changes = json.loads(console.try_("plan", "-f", str(file), "-o", "json").stdout)["changes"]
    assert [[each["field"] for each in change["fields"]] for change in changes] == [["labels.everbeat.file"]] * 2


def test_alert_rules_are_part_of_a_file(console: Console, file: Path) -> None:
    notify = [{"kind": "worker", "queue": "ops", "type": "tell"}]
    rules = [{"name": "plan-dead", "when": {"kind": "dead"}, "match": {"label": "team=a"}, "notify": notify}]
    rules.append({"name": "plan-late", "when": {"kind": "late", "seconds": 300}, "notify": notify})
    file.write_text(yaml.safe_dump({"owner": "rules", "alerts": rules}))
    planned = console.try_("plan", "-f", str(file))
    assert planned.exit_code == 6
    assert "+ alert plan-dead" in planned.stdout
    assert "2 created, 0 updated, 0 deleted, 0 unchanged" in console.run("apply", "-f", str(file), "--yes").stderr
    assert console.run("plan", "-f", str(file)).stdout == "0 to create, 0 to update, 0 to delete, 2 unchanged\n"
    exported = yaml.safe_load(console.run("export", "--name-prefix", "plan-", "--owner", "rules").stdout)
    assert exported["alerts"] == rules
    console.run("alert", "set", "plan-dead", "--description", "changed by hand")
    file.write_text(yaml.safe_dump({"owner": "rules", "alerts": rules[:1]}))
    changed = console.try_("plan", "-f", str(file), "--prune", "-o", "json")
    assert [(one["subject"], one["change"], one["name"]) for one in json.loads(changed.stdout)["changes"]] == [
        ("alert", "update", "plan-dead"),
        ("alert", "delete", "plan-late"),
    ]
    conflict = console.try_("apply", "-f", str(file), "--owner", "another", "--yes")
    assert isinstance(conflict.exception, OwnedByAnotherFile)
    assert "the alert plan-dead to rules" in str(conflict.exception)
    assert "0 created, 1 updated, 1 deleted" in console.run("apply", "-f", str(file), "--prune", "--yes").stderr
    assert [one["name"] for one in console.json("alert", "list")] == ["plan-dead"]
    console.run("alert", "delete", "plan-dead")


def test_errors_of_schedules_and_alert_rules_are_reported_together(console: Console, file: Path) -> None:
    file.write_text(yaml.safe_dump({"schedules": [{"name": "a"}], "alerts": [{"name": "b"}]}))
    message = str(console.try_("plan", "-f", str(file)).exception)
    assert "schedules[0] (a)" in message
    assert "alerts[0] (b)" in message


def test_the_published_schema_accepts_files_and_rejects_mistakes(file: Path) -> None:
    published = ROOT / "docs/reference/schedules.schema.json"
    assert json.loads(published.read_text()) == file_schema(), "run: make docs"
    valid = yaml.safe_load(content("x", "a", "b"))
    validator = jsonschema.Draft202012Validator(file_schema())
    assert validator.is_valid(valid)
    rule = {"name": "x", "when": {"kind": "dead"}, "notify": [{"kind": "worker", "type": "x"}]}
    assert validator.is_valid({**valid, "alerts": [rule]})
    assert validator.is_valid({"alerts": [rule]})
    for wrong in (
        {"alerts": [{**rule, "name": "a b"}]},
        {"alerts": [{**rule, "when": {"kind": "x"}}]},
        {},
        {**valid, "x": 1},
        {"schedules": [{"cron": "0 2 * * *"}]},
        {"schedules": [{"name": "x", "overlap": "x"}]},
    ):
        assert not validator.is_valid(wrong)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schedules: [", "cannot be parsed"),
        ("schedules: 3", "must be an object"),
        ("a: !!python/object/apply:os.system [id]", "cannot be parsed"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_clear_error(console: Console, file: Path, text: str, message: str) -> None:
    file.write_text(text)
    result = console.try_("plan", "-f", str(file))
    assert result.exit_code == 1
    assert message in str(result.exception)
