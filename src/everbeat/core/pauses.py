"""Pauses of a queue, of a tenant or of everything: who paused what, why, since when and until when.

A pause of a schedule is part of the schedule (core/changes.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec


class PauseScope(StrEnum):
    """What a pause stops: one queue of a tenant, all of a tenant, or all tenants."""

    QUEUE = "queue"
    TENANT = "tenant"
    ALL = "all"


def pause_scope(tenant_id: UUID | None, queue: str | None) -> PauseScope:
    if tenant_id is None:
        return PauseScope.ALL
    return PauseScope.TENANT if queue is None else PauseScope.QUEUE


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause. `tenant_id` None: of all tenants. `queue` None: of all queues. `until_at` None: until it is resumed.

    `ended_at` is set when it was resumed, or when the next pause found it expired.
    """

    id: UUID
    tenant_id: UUID | None = None
    queue: str | None = None
    note: str | None = None
    paused_by: str
    since_at: datetime
    until_at: datetime | None = None
    ended_at: datetime | None = None
    ended_by: str | None = None

    @property
    def scope(self) -> PauseScope:
        return pause_scope(self.tenant_id, self.queue)

    def is_active_at(self, at: datetime) -> bool:
        ends = [end for end in (self.ended_at, self.until_at) if end is not None]
        return self.since_at <= at and all(at < end for end in ends)

    def covers(self, tenant_id: UUID, queue: str) -> bool:
        return self.tenant_id in (None, tenant_id) and self.queue in (None, queue)


def pause_of(pauses: Iterable[Pause], tenant_id: UUID, queue: str, at: datetime) -> Pause | None:
    """Return the pause that stops the queue of the tenant at that time: the widest one, if there are several."""
    found = [pause for pause in pauses if pause.covers(tenant_id, queue) and pause.is_active_at(at)]
    return min(found, key=lambda pause: (pause.tenant_id is not None, pause.queue is not None), default=None)
