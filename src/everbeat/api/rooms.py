"""What the API stands on: the services it may ask, and whose request it is answering."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from litestar import Request
from litestar.datastructures import State
from litestar.types import Receive, Scope

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.timeline import TimelineCache
from everbeat.services.audit import Auditing
from everbeat.services.backfill import Backfill
from everbeat.services.calendars import CalendarRoom
from everbeat.services.cluster import ClusterRoom
from everbeat.services.dead_letters import DeadLetters
from everbeat.services.ledger import Ledger
from everbeat.services.schedules import Schedules
from everbeat.services.tasks import Tasks
from everbeat.services.work import Work
from everbeat.store.base import Store

ApiRequest = Request[Any, Any, State]


class Asked(Protocol):
    """As much of a request as bodies, queries and rooms need; Litestar's request is one, and so is that of the hot path."""

    @property
    def scope(self) -> Scope: ...

    @property
    def receive(self) -> Receive: ...


class Health(NamedTuple):
    """Whether all is well, and what there is to say about it."""

    is_alive: bool
    detail: dict[str, Any]


class Rooms(NamedTuple):
    """Everything the API may ask for. `allowed_hosts` adds to the loopback names; None turns the check of hosts off."""

    schedules: Schedules
    tasks: Tasks
    work: Work
    dead_letters: DeadLetters
    backfill: Backfill
    ledger: Ledger
    audit: Auditing
    cluster: ClusterRoom
    calendars: CalendarRoom
    timelines: TimelineCache
    store: Store
    health: Callable[[], Health]
    ready: Callable[[], Awaitable[Health]]
    metrics: Callable[[], bytes]
    allowed_hosts: frozenset[str] | None = frozenset()


def rooms_of(request: Asked) -> Rooms:
    rooms: Rooms = request.scope["state"]["rooms"]
    return rooms


def tenant_of(request: Asked) -> UUID:
    """Whose data the request may see. Until there are keys, everything belongs to one tenant."""
    return DEFAULT_TENANT
