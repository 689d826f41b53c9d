"""doctor and top, against a real server."""

from __future__ import annotations

from pathlib import Path

from everbeat.cli.doctor import ProblemsFound
from tests.cli.conftest import Console


def test_the_doctor_finds_queues_without_workers_and_says_what_to_do(console: Console) -> None:
    healthy = {one["check"]: one["result"] for one in console.json("doctor")}
    assert set(healthy.values()) == {"ok"}
    assert {"clock", "ownership", "lag", "busiest second", "nodes", "bloat", "slow queries", "workers", "audit"} <= set(healthy)
    console.run("schedule", "add", "lonely", "--cron", "0 2 * * *", "--queue", "nobody")
    console.run("queue", "pause", "other")
    result = console.try_("doctor")
    assert isinstance(result.exception, ProblemsFound)
    assert "no worker asks for the queue nobody of lonely; 0 tasks wait" in result.stdout
    assert "everbeat worker MODULE:APP --queues nobody" in result.stdout
    assert "everbeat queue resume other" in result.stdout


def test_the_doctor_checks_the_database(console: Console, tmp_path: Path) -> None:
    found = console.try_("doctor", "--database-url", f"sqlite:///{tmp_path}/new.db")
    assert isinstance(found.exception, ProblemsFound)
    assert "everbeat migrate" in found.stdout
    console.run("migrate", "--database-url", f"sqlite:///{tmp_path}/new.db")
    assert "nothing found" in console.try_("doctor", "--database-url", f"sqlite:///{tmp_path}/new.db").stdout
    unreachable = console.try_("doctor", "--url", "http://127.0.0.1:9")
    assert "cannot reach Everbeat" in unreachable.stdout


def test_top_prints_once_if_stdout_is_not_a_terminal(console: Console) -> None:
    console.run("task", "submit", "x", "--queue", "waiting")
    shown = console.run("top").stdout
    assert "ticks/s" in shown
    assert "waiting" in shown
    assert console.json("top", "--once")["unowned"] == 0
