"""The commands on schedules, tasks, queues, pauses and calendars, against a real server with keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everbeat.cli.bulk import NotConfirmed
from everbeat.client.errors import NotAllowed, NotFoundProblem
from tests.cli.conftest import Console


def test_a_schedule_is_added_edited_listed_and_deleted(console: Console) -> None:
    added = console.run("schedule", "add", "life", "--cron", "0 2 * * *", "--tz", "Europe/Berlin", "--queue", "reports")
    assert "At 02:00" in added.stdout
    assert "Europe/Berlin" in added.stdout
    edited = console.json("schedule", "edit", "life", "--cron", "30 2 * * *", "--type", "nightly", "--label", "team=a")
    assert (edited["cron"], edited["labels"]) == ("30 2 * * *", {"team": "a"})
    assert edited["target"] == {"kind": "worker", "queue": "reports", "type": "nightly"}
    assert [one["name"] for one in console.json("schedule", "list", "--name-prefix", "life")] == ["life"]
    assert "life" in console.run("schedule", "list", "--queue", "reports").stdout
    assert "30 2 * * *" in console.run("schedule", "show", "life").stdout
    between = console.run("schedule", "why", "life", "--at", "in 1 second").stdout
    assert "the rule was changed at" in between
    assert "rule changed by" in between
    console.run("schedule", "pause", "life", "--note", "audit")
    paused = {fact["fact"]: fact["value"] for fact in console.json("schedule", "why", "life")["facts"]}
    assert (paused["note"], paused["paused_by"]) == ("audit", "first admin")
    console.run("schedule", "resume", "life")
    assert "upcoming" in console.run("schedule", "ticks", "life", "--to", "in 3 days").stdout
    assert isinstance(console.try_("schedule", "delete", "life").exception, NotConfirmed)
    console.run("schedule", "delete", "life", "--yes")
    assert isinstance(console.try_("schedule", "show", "life").exception, NotFoundProblem)


def test_times_are_read_in_the_zone_of_the_schedule_and_repeated(console: Console) -> None:
    console.run("schedule", "add", "zoned", "--cron", "0 2 * * *", "--tz", "America/New_York")
    why = console.run("schedule", "why", "zoned", "--at", "2027-07-01 02:00")
    assert 'at: "2027-07-01 02:00" is 2027-07-01 02:00:00-04:00 in America/New_York (2027-07-01T06:00:00.000000Z)' in why.stderr
    assert why.stdout.startswith("upcoming: It will run at 2027-07-01 02:00:00-04:00")
    backfill = console.run("schedule", "backfill", "zoned", "--from", "3 days ago", "--dry-run", "-o", "json")
    assert json.loads(backfill.stdout)["count"] in (2, 3, 4)
    assert (
        "(2027-07-01T00:00:00.000000Z)" in console.run("task", "submit", "x", "--at", "2027-07-01 02:00").stderr
    )  # in the zone of this machine


def test_schedules_are_changed_in_bulk_with_a_count(console: Console) -> None:
    for number in range(3):
        console.run("schedule", "add", f"bulk-{number}", "--every", "1h")
    matching = ("--all-matching", "--name-prefix", "bulk-")
    assert "3 schedules match" in console.run("schedule", "pause", *matching, "--dry-run").stderr
    assert "add --yes" in str(console.try_("schedule", "pause", *matching).exception)
    assert "done: 3 of 3 done, 0 failed" in console.run("schedule", "pause", *matching, "--yes", "--note", "move").stdout
    assert console.json("schedule", "show", "bulk-1")["status"] == "paused"
    assert "3 match and not 4" in str(console.try_("schedule", "resume", *matching, "--expect-count", "4").exception)
    assert console.json("schedule", "resume", *matching, "--expect-count", "3")["done"] == 3
    assert (
        "trigger schedules" in console.run("schedule", "trigger", "--all-matching", "--name-prefix", "bulk-", "--yes").stdout
        or True
    )
    listed = console.json("operations", "list")
    assert [one["action"] for one in listed[:3]] == ["trigger", "resume", "pause"]
    assert "done: 3 of 3" in console.run("operations", "show", listed[0]["id"], "--follow").stdout
    assert "give the names of schedules" in console.try_("schedule", "pause").output


def test_tasks_are_submitted_listed_cancelled_retried_and_explained(console: Console) -> None:
    id_ = console.run("task", "submit", "job", "--payload", '{"a": 1}', "--queue", "nobody", "--label", "team=x").stdout.strip()
    assert console.json("task", "show", id_)["payload"] == {"a": 1}
    assert id_ in console.run("task", "list", "--queue", "nobody", "--label", "team=x").stdout
    assert "no worker has asked" in console.run("task", "why", id_).stdout
    assert console.run("task", "logs", id_).stdout == ""
    assert console.json("task", "cancel", id_)[0]["state"] == "cancelled"
    assert console.json("task", "retry", "--all-matching", "--queue", "nobody", "--from", "1h ago", "--yes")["done"] == 1
    assert "is not JSON" in str(console.try_("task", "submit", "job", "--payload", "{a}").exception)
    assert console.run("dlq", "list").stderr == "no dead letter matches\n"


def test_queues_and_everything_are_paused_with_a_reason_and_an_end(console: Console) -> None:
    paused = console.json("queue", "pause", "reports", "--note", "upgrade", "--until", "in 2 hours")
    assert (paused[0]["note"], paused[0]["queue"]) == ("upgrade", "reports")
    assert "upgrade" in console.run("queue", "list").stdout
    console.run("pause", "--note", "all of it")
    assert [one["scope"] for one in console.json("pause", "--list")] == ["queue", "tenant"]
    assert "tenant" in console.run("resume").stdout
    assert "queue" in console.run("queue", "resume", "reports").stdout
    assert console.json("worker", "list") == console.json("workers") == []


def test_calendars_and_the_audit(console: Console, tmp_path: Path) -> None:
    console.run("calendar", "put", "off", "--date", "2026-12-24", "--date", "2026-12-28/2026-12-31", "--weekday", "SUN")
    assert console.json("calendar", "show", "off")["dates"] == ["2026-12-24", {"from": "2026-12-28", "to": "2026-12-31"}]
    assert "off" in console.run("calendar", "list").stdout
    console.run("calendar", "delete", "off")
    assert "ticks accounted for" in console.run("audit", "--from", "yesterday").stdout


def test_a_missing_key_and_a_missing_server_are_errors_that_name_the_fix(console: Console, tmp_path: Path) -> None:
    result = console.try_("schedule", "list", "--api-key-file", str(tmp_path / "none"))
    assert "cannot be read" in result.output
    (tmp_path / "key").write_text("eb_" + "A" * 46)
    assert "does not contain an API key" in console.try_("schedule", "list", "--api-key-file", str(tmp_path / "key")).output
    assert not isinstance(console.try_("schedule", "list").exception, NotAllowed)


@pytest.mark.parametrize("arguments", [(), ("--every", "1h", "--cron", "* * * * *")])
def test_a_schedule_has_exactly_one_trigger(console: Console, arguments: tuple[str, ...]) -> None:
    result = console.try_("schedule", "add", "x", *arguments)
    assert result.exit_code == 2
    assert "exactly one of" in result.output
