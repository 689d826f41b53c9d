"""Converts the jobs of crontabs into schedules of shell tasks.

The defaults do what cron does: a tick that was missed is not caught up, runs may overlap, and nothing is retried.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from everbeat.core.errors import InvalidInput
from everbeat.core.shell import DEFAULT_SHELL, DEFAULT_SHELL_QUEUE, SHELL_TYPE, shell_command
from everbeat.core.zones import load_zone
from everbeat.imports.base import ImportPlan, NotCarriedOver, PlannedSchedule
from everbeat.imports.crontab import DELAY, MAIL, SHELL, ZONE, CrontabJob, read_crontab
from everbeat.imports.crontab_times import NICKNAMES, CrontabTimes, InvalidField

DEFAULT_PATH = "/usr/bin:/bin"
DEFAULT_TIMEOUT_SECONDS = 86_400.0
IMPORT_LABEL = "everbeat.import"
MAX_JITTER_MINUTES = 24 * 60

_NOT_PASSED = frozenset({ZONE, DELAY, MAIL, SHELL, "LOGNAME", "USER"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SLUG_CHARACTERS = 60
_MAX_DESCRIPTION = 1000


@dataclass(frozen=True, kw_only=True)
class CrontabOptions:
    """What applies to all jobs. `user`: of a crontab in the user form. `prefix`: of the names of the schedules."""

    timezone: str = "UTC"
    queue: str = DEFAULT_SHELL_QUEUE
    user: str | None = None
    prefix: str = "cron"
    overlap: str = "allow"
    catch_up: str = "none"
    max_attempts: int = 1
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS


class _NotConvertible(ValueError):
    """A job that no schedule represents, with the reason."""


def plan_crontab(text: str, source: str, options: CrontabOptions, *, is_system: bool) -> ImportPlan:
    """Return the schedules of a crontab, and everything in it that is not carried over."""
    crontab = read_crontab(text, source, is_system=is_system)
    plan = ImportPlan(not_carried_over=list(crontab.not_carried_over))
    names = _Names(options.prefix)
    for job in crontab.jobs:
        try:
            plan.schedules.append(_planned(job, names.of(job), options, source))
        except _NotConvertible as error:
            plan.not_carried_over.append(NotCarriedOver(job.source, job.line[:200], str(error)))
    plan.not_carried_over.sort(key=lambda entry: _line_number(entry.source))
    return plan


def merge_plans(plans: Iterable[ImportPlan]) -> ImportPlan:
    """Return the plans of several files as one."""
    merged = ImportPlan()
    for plan in plans:
        merged.schedules.extend(plan.schedules)
        merged.not_carried_over.extend(plan.not_carried_over)
        merged.notes.extend(plan.notes)
    return merged


def _line_number(source: str) -> int:
    return int(source.rpartition(":")[2])


class _Names:
    """Names that follow from the commands, so that a second import of the same crontab finds its schedules again."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._used: set[str] = set()

    def of(self, job: CrontabJob) -> str:
        slug = slug_of(job.command)
        if job.user is not None:
            slug = f"{job.user}.{slug}"
        name = base = f"{self._prefix}.{slug}"
        number = 2
        while name in self._used:
            name = f"{base}-{number}"
            number += 1
        self._used.add(name)
        return name


def slug_of(text: str) -> str:
    """Return the text with the characters that names allow. A long text is shortened and ends with its hash."""
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.") or "command"
    if len(slug) <= _SLUG_CHARACTERS:
        return slug
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{slug[:_SLUG_CHARACTERS].rstrip('-.')}-{digest}"


def _planned(job: CrontabJob, name: str, options: CrontabOptions, source: str) -> PlannedSchedule:
    zone, zone_name = _zone_of(job, options)
    try:
        times = CrontabTimes(job.expression, zone)
    except InvalidField as error:
        raise _NotConvertible(str(error)) from None
    definition: dict[str, Any] = {
        "name": name,
        "description": f"{source}: {job.line}"[:_MAX_DESCRIPTION],
        "cron": NICKNAMES.get(job.expression, job.expression),
        "timezone": zone_name,
        "target": {"kind": "worker", "queue": options.queue, "type": SHELL_TYPE},
        "payload": _payload(job, options),
        "overlap": options.overlap,
        "catch_up": options.catch_up,
        "max_attempts": options.max_attempts,
        "timeout_seconds": options.timeout_seconds,
        "labels": {IMPORT_LABEL: "crontab"},
    }
    if minutes := _delay_minutes(job):
        definition["jitter_seconds"] = minutes * 60
    return PlannedSchedule(
        source=job.source, definition=definition, expected_times=times.next_times, notes=tuple(_notes(job, zone_name))
    )


def _zone_of(job: CrontabJob, options: CrontabOptions) -> tuple[ZoneInfo, str]:
    name = job.variables.get(ZONE) or options.timezone
    try:
        return load_zone(name), name
    except InvalidInput as error:
        raise _NotConvertible(f"{ZONE}: {error.errors[0].message}") from None


def _payload(job: CrontabJob, options: CrontabOptions) -> dict[str, Any]:
    variables = {name: value for name, value in job.variables.items() if name not in _NOT_PASSED}
    for name in variables:
        if not _VARIABLE.fullmatch(name):
            raise _NotConvertible(f"{name} cannot be the name of a variable in a shell")
    try:
        return shell_command(
            job.command,
            env={"PATH": DEFAULT_PATH, **variables},
            # cron starts commands in the home directory. Without HOME, the worker finds that of the user.
            cwd=variables.get("HOME"),
            user=job.user or options.user,
            stdin=job.stdin,
            shell=job.variables.get(SHELL) or DEFAULT_SHELL,
        )
    except InvalidInput as error:
        raise _NotConvertible(str(error)) from None


def _delay_minutes(job: CrontabJob) -> int:
    text = job.variables.get(DELAY, "")
    return min(int(text), MAX_JITTER_MINUTES) if re.fullmatch(r"[0-9]{1,9}", text) else 0


def _notes(job: CrontabJob, zone_name: str) -> Iterable[str]:
    variables: Mapping[str, str] = job.variables
    if job.command.rstrip().endswith("&") and not job.command.rstrip().endswith("&&"):
        yield "the command ends with &: what it leaves in its process group is ended when the shell has ended; remove the &"
    if minutes := _delay_minutes(job):
        yield (
            f"{DELAY}={minutes}: jitter_seconds {minutes * 60}, a delay that is the same at every tick, as in cronie; "
            "the ticks below are the times before the delay"
        )
    if "TZ" in variables:
        yield f"TZ={variables['TZ']} is passed to the command; the times of the schedule are in {zone_name}"
    if job.is_quiet:
        yield "the leading - suppresses an entry in the log of cron; Everbeat keeps every tick"
