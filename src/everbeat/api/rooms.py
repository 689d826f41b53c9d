"""What the API stands on: the services it may ask, and whose request it is answering."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from litestar import Request
from litestar.datastructures import State
from litestar.types import Receive, Scope

from everbeat.api.intake import Intake
from everbeat.core.access import LOCAL_CALLER, Caller
from everbeat.core.timeline import TimelineCache
from everbeat.services.access import Access
from everbeat.services.answers import Answers
from everbeat.services.audit import Auditing
from everbeat.services.backfill import Backfill
from everbeat.services.calendars import CalendarRoom
from everbeat.services.cluster import ClusterRoom
from everbeat.services.dead_letters import DeadLetters
from everbeat.services.feed import Feed
from everbeat.services.keys import Keys
from everbeat.services.ledger import Ledger
from everbeat.services.schedules import Schedules
from everbeat.services.sessions import Session, Sessions
from everbeat.services.tasks import Tasks
from everbeat.services.tenants import TenantRoom
from everbeat.services.why import Reasons
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
    """Everything the API may ask for. `allowed_hosts` adds to the loopback names; None turns the check of hosts off, and so do
    keys that are required. Without `access` there are no keys: whoever asks is in this process."""

    schedules: Schedules
    tasks: Tasks
    work: Work
    feed: Feed
    dead_letters: DeadLetters
    backfill: Backfill
    ledger: Ledger
    answers: Answers
    why: Reasons
    audit: Auditing
    cluster: ClusterRoom
    calendars: CalendarRoom
    tenants: TenantRoom
    keys: Keys
    timelines: TimelineCache
    store: Store
    health: Callable[[], Health]
    ready: Callable[[], Awaitable[Health]]
    metrics: Callable[[], bytes]
    allowed_hosts: frozenset[str] | None = frozenset()
    access: Access | None = None
    intake: Intake | None = None


def rooms_of(request: Asked) -> Rooms:
    rooms: Rooms = request.scope["state"]["rooms"]
    return rooms


def caller_of(request: Asked) -> Caller:
    """Who asks."""
    caller: Caller = request.scope["state"].get("caller", LOCAL_CALLER)
    return caller


def tenant_of(request: Asked) -> UUID:
    """Whose data the request may see."""
    return caller_of(request).tenant_id


def session_of(request: Asked) -> Session:
    """For a request that stays open: `with session_of(request) as session`, which ends when the caller's key does."""
    access = rooms_of(request).access
    sessions = Sessions() if access is None else access.sessions
    return sessions.open(caller_of(request))
