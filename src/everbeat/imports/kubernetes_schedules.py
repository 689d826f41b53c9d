"""Converts CronJobs of Kubernetes into schedules: their policies, and the command of the container or another target.

The command of a container depends on its image, volumes and variables. What is missing on the machine of a worker is named. A
CronJob whose command cannot be the same without it becomes no schedule, unless the user allows it or chooses another target.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from everbeat.core.definitions import rfc3339
from everbeat.core.errors import InvalidInput
from everbeat.core.schedules import Overlap
from everbeat.core.shell import DEFAULT_SHELL_QUEUE, SHELL_TYPE, shell_command
from everbeat.core.triggers.interval import read_every
from everbeat.core.zones import load_zone
from everbeat.imports.base import FireTimes, ImportPlan, NotCarriedOver, PlannedSchedule
from everbeat.imports.crontab_schedules import DEFAULT_TIMEOUT_SECONDS, IMPORT_LABEL, slug_of
from everbeat.imports.crontab_times import InvalidField
from everbeat.imports.kubernetes import CRON_JOB, Manifest
from everbeat.imports.kubernetes_times import CronJobTimes, everbeat_expression

DEFAULT_BACKOFF_LIMIT = 6
MAX_GRACE_SECONDS = 366 * 86_400
MAX_TIMEOUT_SECONDS = 7 * 86_400
MAX_KILL_AFTER_SECONDS = 300
DEFAULT_TERMINATION_SECONDS = 30
# Kubernetes waits 10 s, 20 s, 40 s, … up to 6 minutes between the pods of a job.
RETRY: Mapping[str, Any] = {"kind": "exponential", "base_seconds": 10, "factor": 2, "max_seconds": 360, "jitter": False}
INTERVAL_ANCHOR = datetime(2000, 1, 1, tzinfo=UTC)

_OVERLAPS = {"Allow": Overlap.ALLOW, "Forbid": Overlap.SKIP, "Replace": Overlap.CANCEL_PREVIOUS}
_ZONE_PREFIX = re.compile(r"(?:CRON_)?TZ=(\S+)\s+(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")
_WITHOUT_EFFECT = (
    "affinity",
    "hostNetwork",
    "imagePullSecrets",
    "nodeName",
    "nodeSelector",
    "priorityClassName",
    "securityContext",
    "serviceAccountName",
    "tolerations",
    "topologySpreadConstraints",
)
_HISTORY = ("successfulJobsHistoryLimit", "failedJobsHistoryLimit")


@dataclass(frozen=True, kw_only=True)
class KubernetesOptions:
    """What applies to all CronJobs. `timezone`: of those without one. `http_url`: with {namespace} and {name}.

    `allow_missing`: create the schedule of a command whose volumes or variables exist only in the cluster.
    """

    timezone: str = "UTC"
    target: str = "shell"
    queue: str = DEFAULT_SHELL_QUEUE
    http_url: str | None = None
    prefix: str = "k8s"
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    allow_missing: bool = False


class _NotConvertible(ValueError):
    """A CronJob that no schedule represents, with the reason."""


def plan_kubernetes(manifests: Iterable[Manifest], options: KubernetesOptions) -> ImportPlan:
    """Return the schedules of the CronJobs, and what is not carried over."""
    plan = ImportPlan()
    others: Counter[str] = Counter()
    names: set[str] = set()
    for manifest in manifests:
        if manifest.kind != CRON_JOB:
            others[manifest.kind] += 1
            continue
        try:
            planned = _CronJob(manifest, options).planned()
            if planned.name in names:
                raise _NotConvertible(f"another CronJob has the name {planned.name} as well")
        except (_NotConvertible, InvalidField, InvalidInput) as error:
            plan.not_carried_over.append(NotCarriedOver(manifest.source, _shown_name(manifest), str(error)))
            continue
        names.add(planned.name)
        plan.schedules.append(planned)
    if others:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(others.items()))
        plan.notes.append(f"objects that are not CronJobs were ignored: {counts}")
    return plan


def _shown_name(manifest: Manifest) -> str:
    metadata = manifest.content.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""


def _object(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = parent.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _NotConvertible(f"{name} is not an object")
    return value


def _number(parent: Mapping[str, Any], name: str, default: int | None) -> int | None:
    value = parent.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _NotConvertible(f"{name} is not a number from 0")
    return value


def _texts(parent: Mapping[str, Any], name: str) -> list[str]:
    value = parent.get(name) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _NotConvertible(f"{name} is not a list of strings; Kubernetes does not accept it")
    return value


class _CronJob:
    """One CronJob. The notes are collected while its parts are converted."""

    def __init__(self, manifest: Manifest, options: KubernetesOptions) -> None:
        self._source = manifest.source
        self._options = options
        self._metadata = _object(manifest.content, "metadata")
        self._spec = _object(manifest.content, "spec")
        self._job = _object(_object(self._spec, "jobTemplate"), "spec")
        self._pod = _object(_object(self._job, "template"), "spec")
        self._notes: list[str] = []

    def planned(self) -> PlannedSchedule:
        trigger, expected = self._trigger()
        grace = _number(self._spec, "startingDeadlineSeconds", MAX_GRACE_SECONDS)
        definition = {
            "name": self._name(),
            "description": f"CronJob {self._full_name}",
            **trigger,
            **self._destination(),
            "overlap": self._overlap(),
            "catch_up": "latest",
            "misfire_grace_seconds": min(grace or 0, MAX_GRACE_SECONDS),
            "max_attempts": self._max_attempts(),
            "retry": dict(RETRY),
            "timeout_seconds": self._timeout_seconds(),
            "labels": {IMPORT_LABEL: "k8s"},
            "enabled": not self._spec.get("suspend", False),
        }
        self._note_history()
        return PlannedSchedule(
            source=self._source, definition=definition, expected_times=expected, notes=tuple(dict.fromkeys(self._notes))
        )

    @property
    def _namespace(self) -> str:
        return str(self._metadata.get("namespace") or "")

    @property
    def _job_name(self) -> str:
        name = self._metadata.get("name")
        if not isinstance(name, str) or not name:
            raise _NotConvertible("it has no metadata.name")
        return name

    @property
    def _full_name(self) -> str:
        return "/".join(filter(None, (self._namespace, self._job_name)))

    def _name(self) -> str:
        return ".".join(slug_of(part) for part in (self._options.prefix, self._namespace, self._job_name) if part)

    # Trigger

    def _trigger(self) -> tuple[dict[str, Any], FireTimes | None]:
        text = self._spec.get("schedule")
        if not isinstance(text, str) or not text.strip():
            raise _NotConvertible("it has no spec.schedule")
        zone, expression = self._zone_and_expression(text.strip())
        if (every := read_every(expression)) is not None:
            self._notes.append("Kubernetes counts @every from the last run; the schedule counts from 2000-01-01 UTC")
            return {"every_seconds": float(every.seconds), "anchor": rfc3339(INTERVAL_ANCHOR)}, None
        times = CronJobTimes(expression, load_zone(zone))
        trigger = {
            "cron": everbeat_expression(expression),
            "timezone": zone,
            # Kubernetes loses local times in a gap, and runs twice in a fold.
            "dst": {"gap": "skip", "fold": "both"},
        }
        return trigger, times.next_times

    def _zone_and_expression(self, text: str) -> tuple[str, str]:
        zone = self._spec.get("timeZone")
        if (prefixed := _ZONE_PREFIX.fullmatch(text)) is None:
            return str(zone or self._options.timezone), text
        if zone is not None:
            raise _NotConvertible("it has a timeZone, and a zone in its schedule; Kubernetes does not accept both")
        return prefixed[1], prefixed[2]

    # Policies

    def _overlap(self) -> str:
        policy = self._spec.get("concurrencyPolicy") or "Allow"
        if policy not in _OVERLAPS:
            raise _NotConvertible(f"the concurrencyPolicy {policy} does not exist")
        return _OVERLAPS[policy].value

    def _max_attempts(self) -> int:
        for name in ("completions", "parallelism"):
            if (count := _number(self._job, name, 1)) != 1:
                raise _NotConvertible(f"{name} is {count}: a tick creates one task; let it submit the others")
        if self._job.get("podFailurePolicy") is not None:
            self._notes.append("podFailurePolicy is not carried over: every failure is retried, up to max_attempts")
        attempts = (_number(self._job, "backoffLimit", DEFAULT_BACKOFF_LIMIT) or 0) + 1
        if attempts > 100:
            self._notes.append(f"backoffLimit {attempts - 1} is reduced to 99")
        if self._pod.get("restartPolicy") == "OnFailure":
            self._notes.append("restartPolicy OnFailure: restarts of the container are attempts of the task")
        return min(attempts, 100)

    def _timeout_seconds(self) -> float:
        limits = [_number(parent, "activeDeadlineSeconds", None) for parent in (self._job, self._pod)]
        given = [limit for limit in limits if limit]
        if not given:
            return self._options.timeout_seconds
        if limits[0]:
            self._notes.append("activeDeadlineSeconds limits each attempt; in Kubernetes it limits all attempts together")
        return min(*given, MAX_TIMEOUT_SECONDS)

    def _note_history(self) -> None:
        if named := [name for name in _HISTORY if name in self._spec] + [
            name for name in ("ttlSecondsAfterFinished",) if name in self._job
        ]:
            self._notes.append(f"{', '.join(named)}: Everbeat keeps the history of all schedules for retention_days")

    # Target

    def _destination(self) -> dict[str, Any]:
        containers = [each for each in self._pod.get("containers") or [] if isinstance(each, dict)]
        if not containers:
            raise _NotConvertible("it has no containers")
        if self._options.target == "worker":
            self._note_image(containers, "a task of a worker takes the place of the containers")
            return {"target": {"kind": "worker", "queue": self._options.queue, "type": self._job_name}, "payload": {}}
        if self._options.target == "http":
            self._note_image(containers, "a request takes the place of the containers")
            url = (self._options.http_url or "").replace("{namespace}", self._namespace).replace("{name}", self._job_name)
            return {"target": {"kind": "http", "url": url}, "payload": {}}
        return {
            "target": {"kind": "worker", "queue": self._options.queue, "type": SHELL_TYPE},
            "payload": self._shell_payload(containers),
        }

    def _note_image(self, containers: list[dict[str, Any]], text: str) -> None:
        self._notes.append(f"{text} ({', '.join(str(each.get('image')) for each in containers)})")

    def _shell_payload(self, containers: list[dict[str, Any]]) -> dict[str, Any]:
        if len(containers) > 1 or self._pod.get("initContainers"):
            raise _NotConvertible("it has several containers, and a task runs one command; use --target worker")
        container = containers[0]
        if not container.get("command"):
            raise _NotConvertible(
                f"its command is the entry point of the image {container.get('image')}, which is not in the CronJob; "
                "add a command, or use --target worker"
            )
        missing = list(self._missing(container))
        if missing and not self._options.allow_missing:
            raise _NotConvertible(f"{'; '.join(missing)}. Provide them on the machine of the worker and use --allow-missing")
        self._notes += missing
        self._note_environment(container)
        variables = _variables(container)
        words = [_expanded(word, variables) for name in ("command", "args") for word in _texts(container, name)]
        grace = _number(self._pod, "terminationGracePeriodSeconds", DEFAULT_TERMINATION_SECONDS)
        return shell_command(
            words,
            env=variables,
            cwd=container.get("workingDir"),
            kill_after_seconds=min(grace or 0, MAX_KILL_AFTER_SECONDS),
        )

    def _missing(self, container: Mapping[str, Any]) -> Iterator[str]:
        """Return what the command has only in the cluster."""
        for entry in _entries(container, "env"):
            if (origin := entry.get("valueFrom")) is not None:
                yield f"the variable {entry.get('name')} comes from {_shown_origin(origin)}"
        for entry in _entries(container, "envFrom"):
            yield f"all variables of {_shown_origin(entry)}"
        for mount in _entries(container, "volumeMounts"):
            yield f"the volume {mount.get('name')} at {mount.get('mountPath')}"

    def _note_environment(self, container: Mapping[str, Any]) -> None:
        self._notes.append(f"the image {container.get('image')} is not used: its programs must be on the machine of the worker")
        named = [name for name in _WITHOUT_EFFECT if self._pod.get(name)]
        named += [name for name in ("resources", "securityContext", "lifecycle") if container.get(name) and name not in named]
        if named:
            self._notes.append(f"without effect outside Kubernetes: {', '.join(sorted(named))}")


def _entries(container: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    return [each for each in container.get(name) or [] if isinstance(each, dict)]


def _shown_origin(origin: Any) -> str:
    """Return the kind and the name of what a variable refers to, such as `secretKeyRef db password`."""
    if not isinstance(origin, dict):
        return "an unknown origin"
    texts = []
    for kind, reference in origin.items():
        if isinstance(reference, dict):
            names = [str(reference[name]) for name in ("name", "key", "fieldPath", "resource") if name in reference]
            texts.append(" ".join((kind, *names)))
    return ", ".join(texts) or "an unknown origin"


def _variables(container: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables with a value. A value may refer to variables before it, as $(NAME)."""
    variables: dict[str, str] = {}
    for entry in _entries(container, "env"):
        if "valueFrom" in entry:
            continue
        value = entry.get("value") or ""
        if not isinstance(value, str):
            raise _NotConvertible(
                f"the value of the variable {entry.get('name')} is not a string; Kubernetes does not accept it"
            )
        variables[str(entry.get("name"))] = _expanded(value, variables)
    return variables


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """Replace $(NAME) as Kubernetes does: $$ is one dollar sign, and a reference to an unknown variable stays as it is."""

    def replacement(match: re.Match[str]) -> str:
        return "$" if match[1] is None else variables.get(match[1], match[0])

    return _REFERENCE.sub(replacement, text)
