"""`everbeat import celery-beat` as a user types it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from everbeat.app import Everbeat
from everbeat.cli.main import cli

ROOT = Path(__file__).parents[2]
BROKERS = '[brokers.celery]\nkind = "celery"\nurl = "redis://127.0.0.1:1/0"\n'
APP = """
from celery import Celery
from celery.schedules import crontab
app = Celery("shop")
app.conf.beat_schedule = {
    "report": {"task": "shop.report", "schedule": crontab(hour=2, minute=30), "args": (1,)},
    "poll": {"task": "shop.poll", "schedule": 10.0},
}
"""


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def import_from(folder: Path, app: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "everbeat.toml").write_text(BROKERS)
    url = f"sqlite:///{folder}/import.db"
    return run(folder, "-m", "everbeat", "import", "celery-beat", app, "--url", url, *options, **environment)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the Celery application `beat_shop`, as the current folder."""
    (tmp_path / "everbeat.toml").write_text(BROKERS)
    (tmp_path / "beat_shop.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("beat_shop", None)


def invoke(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["import", "celery-beat", *arguments, "--url", f"sqlite:///{folder}/import.db"])


def test_the_beat_schedule_of_an_application_is_compared_and_created_once(shop: Path) -> None:
    shown = invoke(shop, "beat_shop:app", "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("(the next 20 are equal to the original's)") == 2
    assert "2 created, 0 updated, 0 unchanged" in invoke(shop, "beat_shop:app", "--yes").output
    assert "0 created, 0 updated, 2 unchanged" in invoke(shop, "beat_shop:app", "--yes").output
    app = Everbeat(f"sqlite:///{shop}/import.db")
    try:
        report = app.client.schedules.get("beat.report")
    finally:
        app.close()
    assert (report.cron, report.timezone, report.payload) == ("30 2 * * *", "UTC", {"args": [1]})


def test_an_application_that_does_not_exist_is_a_clear_error(shop: Path) -> None:
    assert "there is no Celery application nowhere:app" in str(invoke(shop, "nowhere:app").exception)


def test_the_tables_of_django_celery_beat_are_read(tmp_path: Path) -> None:
    environment = {"DJANGO_SETTINGS_MODULE": "tests.imports.django_project", "DATABASE": str(tmp_path / "django.db")}
    filled = run(tmp_path, str(ROOT / "tests/imports/fill_django_tables.py"), **environment)
    assert filled.returncode == 0, filled.stderr
    result = import_from(tmp_path, "tests.imports.django_project:app", "--yes", **environment)
    assert "3 created, 0 updated, 0 unchanged" in result.stdout, result.stdout + result.stderr
    for text in (
        "beat.poll  (django-celery-beat 'poll')\n    every_seconds 900",
        "cron 0 9 * * 1-5",
        "next: 2030-01-01 09:00 EST, 2030-01-02 09:00 EST, 2030-01-03 09:00 EST (the next 20 are equal",
        "at 2035-01-02T03:04:05",
        "Everbeat has no triggers for sunrise and sunset",
        "it is a one-off task on a repeating schedule",
    ):
        assert text in result.stdout, result.stdout
