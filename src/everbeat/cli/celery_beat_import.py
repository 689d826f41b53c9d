"""The command that imports the schedules of Celery Beat. The others, and what they share, are in imports.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from everbeat.cli.examples import examples
from everbeat.cli.imports import ImportFailed, ImportOptions, import_, import_options, policy_options, run_import
from everbeat.core.schedules import CatchUp, Overlap
from everbeat.delivery.base import ExtraMissing
from everbeat.imports.celery_beat import CeleryBeatOptions, beat_schedule_entries, plan_celery_beat
from everbeat.imports.django_celery_beat import django_entries


@import_.command("celery-beat", epilog=examples("everbeat import celery-beat project.celery:app --dry-run"))
@click.argument("app", metavar="MODULE:APP")
@click.option("--broker", default="celery", show_default=True, help="The broker connection of the server, [brokers.NAME].")
@click.option("--mode", type=click.Choice(["sync", "callback"]), help="When a task is completed (that of the connection).")
@click.option("--prefix", default="beat", show_default=True, help="The beginning of the schedules' names.")
@policy_options(overlap=Overlap.ALLOW, catch_up=CatchUp.LATEST, max_attempts=1)
@import_options
def celery_beat(app: str, **options: Any) -> None:
    """Create schedules from the beat_schedule of a Celery application and the tables of django-celery-beat."""
    shared = ImportOptions(**{name: options.pop(name) for name in ImportOptions._fields})
    found = _load(app)
    entries = [*beat_schedule_entries(found), *django_entries()]
    plan = plan_celery_beat(found, entries, CeleryBeatOptions(**options))
    plan.notes.append(f"the server needs the connection [brokers.{options['broker']}], with the broker URL of this application")
    plan.notes.append("stop Celery Beat when the schedules exist: otherwise both send the tasks")
    run_import(plan, shared)


def _load(name: str) -> Any:
    try:
        from celery.app.utils import find_app
    except ImportError:
        raise ExtraMissing("celery", "celery") from None
    sys.path.insert(0, str(Path.cwd()))
    try:
        return find_app(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ImportFailed(f"there is no Celery application {name}: {error}") from None
