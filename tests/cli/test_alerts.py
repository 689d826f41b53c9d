"""`everbeat alert` and `everbeat incident` against a real server."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx

from everbeat.client.errors import NotFoundProblem
from tests.cli.conftest import Console

NOTIFY = ("--notify", "worker:alerts:tell")


def test_a_rule_is_set_changed_listed_and_deleted(console: Console) -> None:
    console.run("alert", "set", "a", "--kind", "slow", "--with", "seconds=60", "--with", "times_usual=2.5", *NOTIFY)
    listed = console.run("alert", "list").stdout
    assert "slow seconds=60 times_usual=2.5" in listed
    assert "worker tell" in listed
    console.run("alert", "set", "a", "--remind", "1h", "--group", "0s", "--label", "team=b", "--no-resolved", "--disable")
    found = console.json("alert", "show", "a")
    assert (found["when"]["seconds"], found["remind_seconds"], found["group_seconds"]) == (60, 3600, 0)
    assert (found["match"]["label"], found["notify_resolved"], found["enabled"]) == ("team=b", False, False)
    console.run("alert", "delete", "a")
    assert isinstance(console.try_("alert", "show", "a").exception, NotFoundProblem)


def test_whom_to_notify_is_written_in_short_forms(console: Console) -> None:
    targets = ["https://example.org/x", "endpoint:billing", "slack:https://hooks.example.org/T0/secret", "worker:q:t"]
    targets.append('{"kind": "http", "url": "https://example.org/y", "method": "PUT"}')
    options = [option for target in targets for option in ("--notify", target)]
    console.run("alert", "set", "b", "--kind", "skipped", "--with", "reasons=overlap,quota", *options)
    found = console.json("alert", "show", "b")
    assert found["when"]["reasons"] == ["overlap", "quota"]
    shown = [(one["kind"], one.get("url") or one.get("endpoint") or one["type"]) for one in found["notify"]]
    assert shown == [
        ("http", "https://example.org/x"),
        ("http", "billing"),
        ("slack", "https://hooks.example.org/***"),
        ("worker", "t"),
        ("http", "https://example.org/y"),
    ]
    console.run("alert", "set", "b", "--description", "kept")
    assert console.json("alert", "show", "b")["notify"] == found["notify"]


def test_what_show_prints_can_be_set_again_from_a_file(console: Console, tmp_path: Path) -> None:
    console.run("alert", "set", "c", "--kind", "deadline", "--with", "by=04:00", "--schedule", "report", *NOTIFY)
    shown = console.json("alert", "show", "c")
    file = tmp_path / "rule.json"
    file.write_text(json.dumps(shown), encoding="utf-8")
    console.run("alert", "set", "d", "--file", str(file))
    yaml = console.run("alert", "show", "c", "-o", "yaml").stdout
    console.run("alert", "set", "e", "--file", "-", text=yaml)
    for name in ("d", "e"):
        found = console.json("alert", "show", name)
        assert {**found, "name": "c", "created_at": "", "updated_at": ""} == {**shown, "created_at": "", "updated_at": ""}


def test_wrong_options_say_what_is_wrong(console: Console) -> None:
    for arguments, text in [
        (("--remind", "1h"), "there is no such alert"),
        (("--kind", "dead", "--notify", "nobody"), "use a URL, endpoint:NAME"),
        (("--with", "seconds=1"), "--with needs --kind"),
        (("--kind", "dead", "--notify", "{"), "the JSON is not valid"),
        (("--kind", "dead", "--with", "seconds", *NOTIFY), "NAME=VALUE"),
    ]:
        result = console.try_("alert", "set", "nothing", *arguments)
        assert result.exit_code == 2
        assert text in result.output
    refused = console.try_("alert", "set", "nothing", "--kind", "slow", *NOTIFY)
    assert "when.seconds" in str(refused.exception)


def test_incidents_are_listed_shown_and_acknowledged(console: Console) -> None:
    console.run("alert", "set", "dead", "--kind", "dead", "--queue", "broken", *NOTIFY)
    headers = {"Authorization": f"Bearer {console.key_file.read_text().strip()}"}
    with httpx.Client(base_url=console.url, headers=headers) as api:
        api.post("/v1/tasks", json={"type": "x", "queue": "broken", "max_attempts": 1})
        claim = {"worker": "w", "queues": ["broken"], "wait_seconds": 5}
        (task,) = api.post("/v1/worker/claim", json=claim).json()["tasks"]
        failure = {"id": task["id"], "fence": task["fence"], "error": {"message": "no table"}}
        api.post("/v1/worker/fail", json={"worker": "w", "failures": [failure]})
    deadline = time.monotonic() + 30
    while not (found := console.json("incident", "list", "--alert", "dead")) and time.monotonic() < deadline:
        time.sleep(0.1)
    (incident,) = found
    assert "no table" in console.run("incident", "list", "--state", "open").stdout
    assert "why" in console.run("incident", "show", incident["id"]).stdout
    console.run("incident", "acknowledge", incident["id"], "--note", "known")
    assert console.json("incident", "show", incident["id"])["note"] == "known"
    assert "there are no such incidents" in console.run("incident", "list", "--state", "resolved").stderr
