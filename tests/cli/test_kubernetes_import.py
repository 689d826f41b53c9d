"""`everbeat import k8s` as a user types it."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from everbeat.app import Everbeat
from everbeat.cli.main import cli

MANIFESTS = """
apiVersion: batch/v1
kind: CronJob
metadata: {name: backup, namespace: db}
spec:
  schedule: "30 3 * * *"
  timeZone: Europe/Berlin
  concurrencyPolicy: Forbid
  jobTemplate:
    spec:
      template:
        spec:
          containers:
          - {name: backup, image: "postgres:17", command: [pg_dump, shop]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: report}
spec:
  schedule: "@daily"
  jobTemplate: {spec: {template: {spec: {containers: [{name: report, image: "shop:1"}]}}}}
"""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["import", "k8s", *arguments], input=MANIFESTS)


def test_cron_jobs_are_shown_compared_and_created_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/import.db"
    shown = invoke("-", "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert "k8s.db.backup  (-, document 1)\n    cron 30 3 * * *  pg_dump shop" in shown.output
    assert "(the next 20 are equal to the original's)" in shown.output
    assert "1 schedules to create or update, 1 not carried over" in shown.output
    assert "the entry point of the image shop:1" in shown.output
    assert "1 created, 0 updated, 0 unchanged" in invoke("-", "--yes", "--url", url).output
    assert "0 created, 0 updated, 1 unchanged" in invoke("-", "--yes", "--url", url).output
    app = Everbeat(url)
    try:
        backup = app.client.schedules.get("k8s.db.backup")
    finally:
        app.close()
    assert (backup.cron, backup.timezone, backup.overlap) == ("30 3 * * *", "Europe/Berlin", "skip")


def test_a_target_and_its_url_are_used_together() -> None:
    assert "--target http and --http-url are used together" in invoke("-", "--target", "http").output
    assert (
        "2 schedules to create" in invoke("-", "--target", "http", "--http-url", "https://x.example/{name}", "--dry-run").output
    )
