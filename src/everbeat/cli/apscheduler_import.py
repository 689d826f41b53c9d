"""The command that imports the jobs of APScheduler. The others, and what they share, are in imports.py."""

from __future__ import annotations

import importlib
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from everbeat.cli.examples import examples
from everbeat.cli.imports import ImportFailed, ImportOptions, import_, import_options, run_import
from everbeat.imports.apscheduler_jobs import jobs_of
from everbeat.imports.apscheduler_schedules import APSchedulerOptions, plan_apscheduler
from everbeat.imports.crontab_schedules import DEFAULT_TIMEOUT_SECONDS


@import_.command(
    epilog=examples(
        "everbeat import apscheduler shop.jobs:scheduler --dry-run",
        "everbeat import apscheduler shop.jobs:make_scheduler --queue jobs --yes",
    )
)
@click.argument("scheduler", metavar="MODULE:SCHEDULER")
@click.option("--queue", default="default", show_default=True, help="The queue of the workers that run the functions.")
@click.option("--prefix", default="aps", show_default=True, help="The beginning of the schedules' names.")
@click.option("--max-attempts", type=click.IntRange(1, 100), default=1, show_default=True)
@click.option("--timeout-seconds", type=click.FloatRange(1, 7 * 86_400), default=DEFAULT_TIMEOUT_SECONDS, show_default=True)
@import_options
def apscheduler(scheduler: str, **options: Any) -> None:
    """Create schedules from the jobs of an APScheduler 3 scheduler, or of a function that returns one. It is not started."""
    shared = ImportOptions(**{name: options.pop(name) for name in ImportOptions._fields})
    plan = plan_apscheduler(jobs_of(_load(scheduler)), datetime.now(UTC), APSchedulerOptions(**options))
    plan.notes.append("stop APScheduler when the schedules exist: otherwise both run the functions")
    run_import(plan, shared)


def _load(name: str) -> Any:
    try:
        from apscheduler.schedulers.base import BaseScheduler
    except ImportError:
        raise ImportFailed(
            "APScheduler 3 is not installed here; run the import in the environment of the application"
        ) from None
    module_name, _, attributes = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
        for attribute in (attributes or "scheduler").split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ImportFailed(f"there is no scheduler {name}: {error}") from None
    if callable(found) and not isinstance(found, BaseScheduler):
        found = found()
    if not isinstance(found, BaseScheduler):
        raise ImportFailed(f"{name} is not a scheduler of APScheduler 3")
    if found.running:
        raise ImportFailed(f"{name} was started when it was imported; start it only in the program that runs it (__main__)")
    return found
