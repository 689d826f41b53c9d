"""What the API stands on: the services it may ask, and whose request it is answering."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from uuid import UUID

from litestar import Request
from litestar.datastructures import State

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.timeline import TimelineCache
from everbeat.services.audit import Auditing
from everbeat.services.calendars import CalendarRoom
from everbeat.services.cluster import ClusterRoom
from everbeat.services.ledger import Ledger
from everbeat.services.schedules import Schedules
from everbeat.store.base import Store

ApiRequest = Request[Any, Any, State]


class Health(NamedTuple):
    """Whether all is well, and what there is to say about it."""

    is_alive: bool
    detail: dict[str, Any]


class Rooms(NamedTuple):
    """Everything the API may ask for. `allowed_hosts` adds to the loopback names; None turns the check of hosts off."""

    schedules: Schedules
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


def rooms_of(request: ApiRequest) -> Rooms:
    rooms: Rooms = request.app.state.rooms
    return rooms


def tenant_of(request: ApiRequest) -> UUID:
    """Whose data the request may see. Until there are keys, everything belongs to one tenant."""
    return DEFAULT_TENANT
