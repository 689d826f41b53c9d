"""Converts the jobs of APScheduler 3 into schedules of tasks with the names of their functions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from everbeat.client.arguments import bind
from everbeat.client.errors import InvalidArguments
from everbeat.core.names import is_name
from everbeat.imports.apscheduler_jobs import FoundJob
from everbeat.imports.apscheduler_triggers import convert_trigger
from everbeat.imports.base import ImportPlan, NotCarriedOver, PlannedSchedule
from everbeat.imports.celery_beat import NotConvertible
from everbeat.imports.crontab_schedules import DEFAULT_TIMEOUT_SECONDS, IMPORT_LABEL, slug_of

MAX_GRACE_SECONDS = 366 * 86_400

_RANDOM_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True)
class APSchedulerOptions:
    """What applies to all schedules."""

    queue: str = "default"
    prefix: str = "aps"
    max_attempts: int = 1
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS


def plan_apscheduler(jobs: Iterable[FoundJob], now: datetime, options: APSchedulerOptions) -> ImportPlan:
    """Return the schedules of these jobs, and what is not carried over."""
    plan = ImportPlan()
    names: set[str] = set()
    types: set[str] = set()
    for job in jobs:
        try:
            planned = _planned(job, _unused(_name(job, options), names), now, options)
        except NotConvertible as error:
            plan.not_carried_over.append(NotCarriedOver(f"job {job.id}", str(getattr(job.job, "name", "")), str(error)))
            continue
        names.add(planned.name)
        types.add(planned.definition["target"]["type"])
        plan.schedules.append(planned)
    if types:
        plan.notes.append(f"the functions need @eb.task(queue={options.queue!r}): {', '.join(sorted(types))}")
    return plan


def _name(job: FoundJob, options: APSchedulerOptions) -> str:
    """Return the name of a schedule: the id of the job, or that of its function if APScheduler has chosen a random id."""
    label = str(job.job.name) if job.job is not None and _RANDOM_ID.fullmatch(job.id) else job.id
    return f"{options.prefix}.{slug_of(label)}" if options.prefix else slug_of(label)


def _unused(name: str, used: set[str]) -> str:
    found, number = name, 2
    while found in used:
        found, number = f"{name}-{number}", number + 1
    return found


def _planned(found: FoundJob, name: str, now: datetime, options: APSchedulerOptions) -> PlannedSchedule:
    if found.problem is not None:
        raise NotConvertible(found.problem)
    trigger = convert_trigger(found.job.trigger, now, is_stored=found.is_stored)
    grace = found.option("misfire_grace_time")
    definition = {
        "name": name,
        "description": f"APScheduler job {found.job.name}"[:1000],
        **trigger.fields,
        "target": {"kind": "worker", "queue": options.queue, "type": _type(found.job.func)},
        "payload": _payload(found.job),
        "overlap": "skip",
        "max_concurrent": found.option("max_instances"),
        "catch_up": "latest" if found.option("coalesce") else "all",
        "misfire_grace_seconds": MAX_GRACE_SECONDS if grace is None else min(grace, MAX_GRACE_SECONDS),
        "max_attempts": options.max_attempts,
        "timeout_seconds": options.timeout_seconds,
        "labels": {IMPORT_LABEL: "apscheduler"},
        "enabled": not found.is_paused,
    }
    return PlannedSchedule(
        source=f"job {found.id}",
        definition=definition,
        expected_times=trigger.expected_times,
        notes=(*trigger.notes, *_notes(found.job)),
    )


def _type(function: Any) -> str:
    if inspect.ismethod(function) and not inspect.isclass(function.__self__):
        raise NotConvertible("it calls a method of an object, which a worker in another process does not have")
    name = getattr(function, "__name__", "")
    if not is_name(name):
        raise NotConvertible("its function has no name, as a lambda; give it one with def")
    return str(name)


def _payload(job: Any) -> dict[str, Any]:
    try:
        signature = inspect.signature(job.func)
    except ValueError:
        raise NotConvertible("the parameters of its function are unknown") from None
    if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in signature.parameters.values()):
        raise NotConvertible("its function has a parameter with a star; a task has arguments with names")
    try:
        return bind(str(job.name), signature, tuple(job.args), job.kwargs)
    except InvalidArguments as error:
        raise NotConvertible(f"its arguments are not JSON: {error}") from None


def _notes(job: Any) -> Iterator[str]:
    if job.executor != "default":
        yield f"the executor {job.executor} is not carried over; use a queue with workers of its own"
