"""A Celery application for the tests of the Celery target. A worker of it is a process: `celery -A tests.delivery.celery_app`.

EFFECTS names a file to which each task appends a line.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery

import everbeat.contrib.celery

app = Celery("shop", broker=os.environ.get("CELERY_BROKER"))
app.conf.update(
    task_acks_late=os.environ.get("ACKS_LATE") == "yes",
    broker_connection_retry_on_startup=True,
    broker_connection_timeout=2,
    worker_prefetch_multiplier=1,
)
reporter = everbeat.contrib.celery.install(app, lease_seconds=float(os.environ.get("LEASE_SECONDS", "3")))


def write_effect(*values: Any) -> None:
    # One small append is atomic, so several processes can share the file.
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(" ".join(str(value) for value in values) + "\n")


@app.task(bind=True)
def add(self: Any, number: int, other: int = 0, **_: Any) -> int:
    write_effect("add", self.request.id, number)
    return number + other


@app.task
def fail(message: str) -> None:
    raise ValueError(message)


@app.task(bind=True, max_retries=5)
def flaky(self: Any, failures: int) -> str:
    write_effect("flaky", self.request.id, self.request.retries)
    if self.request.retries < failures:
        raise self.retry(countdown=0.2, exc=ValueError("not yet"))
    return f"after {self.request.retries} retries"


@app.task(bind=True)
def slow(self: Any, seconds: float) -> str:
    """Report progress until the time is over or the task is cancelled."""
    write_effect("slow", self.request.id, os.getpid())
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if reporter.is_cancelled():
            write_effect("stopped", self.request.id)
            return "stopped"
        reporter.progress(0.5, "half")
        time.sleep(0.05)
    return "done"


@app.task
def die() -> None:
    """End the pool process, as the out-of-memory killer does."""
    os.kill(os.getpid(), signal.SIGKILL)
