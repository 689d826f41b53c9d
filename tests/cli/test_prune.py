"""`everbeat prune` as an operator types it."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from everbeat.cli.main import cli
from everbeat.core.changes import ScheduleWrite
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.sqlite.store import SqliteStore
from tests.factories import count_rows, make_schedule, skip

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "prune.db"

    async def write() -> None:
        store = SqliteStore(path)
        await store.migrate()
        skips = (skip(LONG_AGO), skip(datetime.now(UTC).replace(microsecond=0)))
        assert await store.schedule_write(DEFAULT_TENANT, [ScheduleWrite(make_schedule(), skips=skips)])
        await store.close()

    asyncio.run(write())
    return path


def prune(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["prune", "--database-url", f"sqlite:///{path}", *arguments])


def rows(path: Path) -> int:
    async def count() -> int:
        store = SqliteStore(path)
        found = await count_rows(store, "ticks")
        await store.close()
        return found

    return asyncio.run(count())


def test_a_dry_run_shows_rows_by_table_and_month_and_changes_nothing(path: Path) -> None:
    shown = prune(path, "--dry-run", "-o", "json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout) == [{"table": "ticks", "month": "2020-01", "rows": 1, "bytes": None, "reason": "retention"}]
    assert prune(path, "--dry-run").stdout.split() == [
        "TABLE",
        "MONTH",
        "ROWS",
        "SIZE",
        "WHY",
        "ticks",
        "2020-01",
        "1",
        "-",
        "retention",
    ]
    assert rows(path) == 2


def test_prune_removes_with_progress_and_is_repeatable(path: Path) -> None:
    done = prune(path, "-o", "json")
    assert done.exit_code == 0, done.output
    assert "removed rows of months: 1" in done.stderr
    assert json.loads(done.stdout) == [{"what": "rows of months", "removed": 1}]
    assert rows(path) == 1
    again = prune(path)
    assert (again.exit_code, again.stdout) == (0, "")
    assert "nothing is past its retention" in again.stderr
