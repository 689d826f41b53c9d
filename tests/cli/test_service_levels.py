"""everbeat slo."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from everbeat.cli.exit_codes import ExitCode
from everbeat.cli.service_levels import ObjectivesMissed
from tests.cli.conftest import Console
from tests.support.processes import wait_until


def test_it_shows_the_objectives_and_what_is_left_of_their_budgets(console: Console) -> None:
    def first_counts() -> bool:
        return console.json("slo")["since"] is not None

    wait_until(first_counts, 30, "the first counts are written")
    assert [one["name"] for one in console.json("slo")["objectives"]] == ["fire", "pickup", "availability", "success"]
    text = console.run("slo").stdout
    assert text.startswith("since 20")
    header, *rows = text.splitlines()[1:]
    assert header.split() == (
        [
            "OBJECTIVE",
            "OF",
            "TARGET",
            "NOW",
            "BAD",
            "BUDGET",
            "LEFT",
            "BURN",
            "5m",
            "BURN",
            "1h",
            "BURN",
            "6h",
            "BURN",
            "30d",
            "STATUS",
        ]
    )
    assert rows[0].startswith("fire          ticks within 1 s            99.9 %")


def test_the_exit_code_says_that_a_budget_is_used_up(console: Console) -> None:
    _write_failures(console.key_file.parent / "x.db")

    def is_exhausted() -> bool:
        return isinstance(console.try_("slo").exception, ObjectivesMissed)

    wait_until(is_exhausted, 30, "the server reads the counts again")
    error = console.try_("slo", "-o", "json").exception
    assert isinstance(error, ObjectivesMissed)
    assert (str(error), error.exit_code) == ("objectives in danger: success; see docs/howto/slos.md", ExitCode.PROBLEMS)


def _write_failures(database: Path) -> None:
    """Write counts as if another node had seen tasks fail."""
    connection = sqlite3.connect(database, timeout=10)
    with connection:
        connection.execute(
            "INSERT INTO service_levels (bucket_at, node, fire_good, fire_total, pickup_good, pickup_total, success_good,"
            " success_total, available_minutes, unavailable_minutes)"
            " SELECT max(bucket_at), zeroblob(16), 0, 0, 0, 0, 0, 100, 0, 0 FROM service_levels"
        )
    connection.close()
