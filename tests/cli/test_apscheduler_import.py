"""`everbeat import apscheduler` as a user types it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from everbeat.app import Everbeat
from everbeat.cli.main import cli

JOBS = """
from apscheduler.schedulers.background import BackgroundScheduler

def report(account): ...

scheduler = BackgroundScheduler(timezone="Europe/Berlin")
scheduler.add_job(report, "cron", hour=2, minute=30, args=[1], id="nightly")
scheduler.add_job(report, "interval", minutes=10, args=[2])
scheduler.add_job(report, "interval", minutes=10, args=[object()], id="odd")

def started():
    scheduler.start(paused=True)
    return scheduler
"""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a database, in a folder with the module `aps_shop`."""
    (tmp_path / "aps_shop.py").write_text(JOBS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield f"sqlite:///{tmp_path}/import.db"
    sys.modules.pop("aps_shop", None)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["import", "apscheduler", *arguments])


def test_the_jobs_of_a_scheduler_are_compared_and_created_once(url: str) -> None:
    shown = invoke("aps_shop:scheduler", "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("(the next 20 are equal to the original's)") == 2
    assert "the functions need @eb.task(queue='default'): report" in shown.output
    assert "2 created, 0 updated, 0 unchanged" in invoke("aps_shop", "--yes", "--url", url).output
    assert "0 created, 0 updated, 2 unchanged" in invoke("aps_shop", "--yes", "--url", url).output
    app = Everbeat(url)
    try:
        nightly = app.client.schedules.get("aps.nightly")
    finally:
        app.close()
    assert (nightly.cron, nightly.timezone, nightly.payload) == ("30 2 * * *", "Europe/Berlin", {"account": 1})


def test_a_scheduler_that_does_not_exist_or_was_started_is_a_clear_error(url: str) -> None:
    assert "there is no scheduler nowhere:scheduler" in str(invoke("nowhere:scheduler").exception)
    assert "is not a scheduler" in str(invoke("aps_shop:__name__").exception)
    assert "was started when it was imported" in str(invoke("aps_shop:started").exception)
    sys.modules["aps_shop"].scheduler.shutdown()
