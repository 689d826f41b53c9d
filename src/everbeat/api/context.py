"""The services that the API uses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Self

from everbeat.api.body_checks import BodyChecks
from everbeat.api.body_limits import BodyLimits
from everbeat.api.response_limits import ResponseLimits
from everbeat.core.timeline import TimelineCache
from everbeat.engine import Engine
from everbeat.services.access import Authenticator
from everbeat.services.audit import AuditService
from everbeat.services.backfill import BackfillService
from everbeat.services.bulk import BulkService
from everbeat.services.calendars import CalendarService
from everbeat.services.callbacks import CallbackService
from everbeat.services.cluster import ClusterService
from everbeat.services.dead_letters import DeadLetterService
from everbeat.services.endpoints import EndpointService
from everbeat.services.event_stream import EventStream
from everbeat.services.explainer import Explainer
from everbeat.services.forecast import ForecastService
from everbeat.services.idempotent_responses import IdempotentResponses
from everbeat.services.keys import KeyService
from everbeat.services.leases import LeaseService
from everbeat.services.ledger import LedgerService
from everbeat.services.pauses import PauseService
from everbeat.services.schedules import ScheduleService
from everbeat.services.tasks import TaskService
from everbeat.services.tenants import TenantService
from everbeat.services.workers import WorkerDirectory
from everbeat.store.base import Store


class Health(NamedTuple):
    """Whether the node is healthy, and the details that the response shows."""

    is_alive: bool
    detail: dict[str, Any]


class ApiContext(NamedTuple):
    """The services that handlers use.

    `allowed_hosts` are accepted in the Host header in addition to the loopback names. If it is None, or if keys are required,
    the Host header is not checked. Without `access`, requests are not authenticated: the caller is in this process. Without
    `body_checks`, large bodies are checked in a thread. `check_schema` raises an error if the node must not change the
    database.
    """

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
    forecast: ForecastService
    cluster: ClusterService
    workers: WorkerDirectory
    calendars: CalendarService
    endpoints: EndpointService
    callbacks: CallbackService
    tenants: TenantService
    pauses: PauseService
    bulk: BulkService
    keys: KeyService
    timelines: TimelineCache
    store: Store
    health: Callable[[], Health]
    ready: Callable[[], Awaitable[Health]]
    metrics: Callable[[], bytes]
    allowed_hosts: frozenset[str] | None = frozenset()
    access: Authenticator | None = None
    body_limits: BodyLimits | None = None
    body_checks: BodyChecks | None = None
    response_limits: ResponseLimits | None = None
    check_schema: Callable[[], None] = lambda: None

    @classmethod
    def from_engine(
        cls,
        engine: Engine,
        *,
        health: Callable[[], Health],
        ready: Callable[[], Awaitable[Health]],
        metrics: Callable[[], bytes],
        allowed_hosts: frozenset[str] | None = frozenset(),
        access: Authenticator | None = None,
        body_limits: BodyLimits | None = None,
        body_checks: BodyChecks | None = None,
        response_limits: ResponseLimits | None = None,
    ) -> Self:
        return cls(
            schedules=engine.schedules,
            tasks=engine.tasks,
            leases=engine.leases,
            event_stream=engine.event_stream,
            dead_letters=engine.dead_letters,
            backfill=engine.backfill,
            ledger=engine.ledger,
            idempotent_responses=engine.idempotent_responses,
            explainer=engine.explainer,
            audit=engine.audit,
            forecast=engine.forecast,
            cluster=engine.cluster,
            workers=engine.workers,
            calendars=engine.calendars,
            endpoints=engine.endpoints,
            callbacks=engine.callbacks,
            tenants=engine.tenants,
            pauses=engine.pauses,
            bulk=engine.bulk,
            keys=engine.keys,
            timelines=engine.timelines,
            store=engine.store,
            health=health,
            ready=ready,
            metrics=metrics,
            allowed_hosts=allowed_hosts,
            access=access,
            body_limits=body_limits,
            body_checks=body_checks,
            response_limits=response_limits,
            check_schema=engine.schema_guard.check,
        )
