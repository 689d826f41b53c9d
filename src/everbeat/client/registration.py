"""Registers the declared schedules on a server, and deletes schedules of the app that are no longer declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from everbeat.client.api import delete_schedule, fetch_all, put_schedules
from everbeat.client.declarations import APP_LABEL, timeline_of
from everbeat.client.errors import NotFoundProblem
from everbeat.client.operations import Operation
from everbeat.client.registry import Registry
from everbeat.core.responses import ScheduleResponse


@dataclass(frozen=True, kw_only=True)
class Registration:
    """The names of the schedules, by result. Those in `over` have no tick left and are not registered."""

    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    over: list[str] = field(default_factory=list)
    pruned: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{len(names)} {what}" for what, names in vars(self).items() if names]
        return "schedules: " + (", ".join(parts) or "none declared")


def register_schedules(registry: Registry, *, prune: bool) -> Operation[Registration]:
    remaining = unfinished(registry, datetime.now(UTC))
    registration = Registration(over=[name for name in registry.schedules if name not in remaining])
    for item in (yield from put_schedules(list(remaining.values()))):
        getattr(registration, item.status).append(item.name)
    if prune:
        yield from _prune(registry, registration)
    return registration


def unfinished(registry: Registry, now: datetime) -> dict[str, dict[str, Any]]:
    """Return the declared schedules that will tick again.

    The server rejects a new schedule that has no tick. A declaration in code must not become an error after its last tick.
    """
    return {name: definition for name, definition in registry.schedules.items() if not _is_over(definition, now)}


def _is_over(definition: Mapping[str, Any], now: datetime) -> bool:
    if "at" not in definition and "ends_at" not in definition and "rrule" not in definition:
        return False
    return timeline_of(definition).next_tick(now) is None


def _prune(registry: Registry, registration: Registration) -> Operation[None]:
    for schedule in (yield from fetch_all("/v1/schedules", ScheduleResponse, None, {"target": "worker"})):
        if schedule.labels.get(APP_LABEL) != registry.app or schedule.name in registry.schedules:
            continue
        try:
            yield from delete_schedule(schedule.id)
        except NotFoundProblem:
            continue  # deleted by another process of this app
        registration.pruned.append(schedule.name)
