"""examples/replace_celery_beat: imported, and run by a Celery worker that reports back."""

from __future__ import annotations

import os
import subprocess
import sys

from everbeat.app import Everbeat
from tests.examples.conftest import EXAMPLES, ExampleRun
from tests.support.processes import wait_until
from tests.support.redis_server import RedisServer


def test_the_beat_schedule_moves_to_everbeat_and_the_worker_reports_each_run(
    example: ExampleRun, redis_server: RedisServer
) -> None:
    broker = redis_server.url.replace("/0", "/7")
    example.env["SHOP_BROKER_URL"] = broker
    config = str(EXAMPLES / "replace_celery_beat" / "everbeat.toml")
    worker = example.run("replace_celery_beat", "-A", "shop:app", "worker", "-c", "1", name="celery", module="celery")
    example._ready(example.run("replace_celery_beat", "serve", "--config", config, *example.where(), name="server"))
    command = [sys.executable, "-m", "everbeat", "import", "celery-beat", "shop:app", "--yes", "--url", example.url]
    done = subprocess.run(
        command,
        cwd=EXAMPLES / "replace_celery_beat",
        env={**os.environ, **example.env},
        capture_output=True,
        text=True,
    )
    assert "3 created, 0 updated, 0 unchanged" in done.stdout, done.stdout + done.stderr
    eb = Everbeat(example.url)
    try:
        eb.client.schedules.trigger("beat.inventory")
        wait_until(lambda: worker.logs().count("shelf A is full") >= 1, 30, lambda: worker.logs())
        wait_until(lambda: eb.client.tasks.list(schedule="beat.inventory", state="completed"), 30, worker.logs)
        assert [task.result for task in eb.client.tasks.list(schedule="beat.inventory")] == [3]
    finally:
        eb.close()
