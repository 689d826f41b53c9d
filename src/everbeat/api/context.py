"""What the API stands on: the services it may ask, and whose request it is answering."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from litestar import Request
from litestar.datastructures import State
from litestar.types import Receive, Scope

from everbeat.api.body_limits import BodyLimits
from everbeat.core.access import LOCAL_CALLER, Caller
from everbeat.core.timeline import TimelineCache
from everbeat.services.access import Authenticator
from everbeat.services.audit import AuditService
from everbeat.services.backfill import BackfillService
from everbeat.services.calendars import CalendarService
from everbeat.services.cluster import ClusterService
from everbeat.services.dead_letters import DeadLetterService
from everbeat.services.event_stream import EventStream
from everbeat.services.explainer import Explainer
from everbeat.services.idempotent_responses import IdempotentResponses
from everbeat.services.keys import KeyService
from everbeat.services.leases import LeaseService
from everbeat.services.ledger import LedgerService
from everbeat.services.schedules import ScheduleService
from everbeat.services.sessions import KeySession, KeySessions
from everbeat.services.tasks import TaskService
from everbeat.services.tenants import TenantService
from everbeat.store.base import Store

ApiRequest = Request[Any, Any, State]


class RequestView(Protocol):
    """As much of a request as bodies, queries and rooms need; Litestar's request is one, and so is that of the hot path."""

    @property
    def scope(self) -> Scope: ...

    @property
    def receive(self) -> Receive: ...


class Health(NamedTuple):
    """Whether all is well, and what there is to say about it."""

    is_alive: bool
    detail: dict[str, Any]


class ApiContext(NamedTuple):
    """Everything the API may ask for. `allowed_hosts` adds to the loopback names; None turns the check of hosts off, and so do
    keys that are required. Without `access` there are no keys: whoever asks is in this process."""

    schedules: ScheduleService
    tasks: TaskService
    leases: LeaseService
    event_stream: EventStream
    dead_letters: DeadLetterService
    backfill: BackfillService
    ledger: LedgerService
    idempotent_responses: IdempotentResponses
    explainer: Explainer
    audit: AuditService
    cluster: ClusterService
    calendars: CalendarService
    tenants: TenantService
    keys: KeyService
    timelines: TimelineCache
    store: Store
    health: Callable[[], Health]
    ready: Callable[[], Awaitable[Health]]
    metrics: Callable[[], bytes]
    allowed_hosts: frozenset[str] | None = frozenset()
    access: Authenticator | None = None
    body_limits: BodyLimits | None = None


def context_of(request: RequestView) -> ApiContext:
    context: ApiContext = request.scope["state"]["rooms"]
    return context


def caller_of(request: RequestView) -> Caller:
    """Who asks."""
    caller: Caller = request.scope["state"].get("caller", LOCAL_CALLER)
    return caller


def tenant_of(request: RequestView) -> UUID:
    """Whose data the request may see."""
    return caller_of(request).tenant_id


def session_of(request: RequestView) -> KeySession:
    """For a request that stays open: `with session_of(request) as session`, which ends when the caller's key does."""
    access = context_of(request).access
    sessions = KeySessions() if access is None else access.sessions
    return sessions.open(caller_of(request))
