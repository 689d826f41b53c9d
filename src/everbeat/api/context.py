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
from everbeat.services.alerts import AlertService
from everbeat.services.audit import AuditService
from everbeat.services.audit_findings import AuditFindingService
from everbeat.services.backfill import BackfillService
from everbeat.services.bulk import BulkService
from everbeat.services.calendars import CalendarService
from everbeat.services.callbacks import CallbackService
from everbeat.services.capacity import CapacityService
from everbeat.services.check_explainer import CheckExplainer
from everbeat.services.check_ledger import CheckLedgerService
from everbeat.services.checks import CheckService
from everbeat.services.cluster import ClusterService
from everbeat.services.dead_letters import DeadLetterService
from everbeat.services.endpoints import EndpointService
from everbeat.services.event_stream import EventStream
from everbeat.services.explainer import Explainer
from everbeat.services.forecast import ForecastService
from everbeat.services.idempotent_responses import IdempotentResponses
from everbeat.services.keys import KeyService
from everbeat.services.lag_history import LagHistory
from everbeat.services.leases import LeaseService
from everbeat.services.ledger import LedgerService
from everbeat.services.live_updates import LiveUpdates
from everbeat.services.pauses import PauseService
from everbeat.services.pings import PingService
from everbeat.services.schedule_counts import ScheduleCounts
from everbeat.services.schedules import ScheduleService
from everbeat.services.service_levels import ServiceLevels
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
    live_updates: LiveUpdates
    dead_letters: DeadLetterService
    backfill: BackfillService
    ledger: LedgerService
    idempotent_responses: IdempotentResponses
    explainer: Explainer
    audit: AuditService
    findings: AuditFindingService
    forecast: ForecastService
    cluster: ClusterService
    schedule_counts: ScheduleCounts
    capacity: CapacityService
    lag_history: LagHistory
    service_levels: ServiceLevels
    workers: WorkerDirectory
    calendars: CalendarService
    endpoints: EndpointService
    alerts: AlertService
    callbacks: CallbackService
    checks: CheckService
    check_ledger: CheckLedgerService
    check_explainer: CheckExplainer
    pings: PingService
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
    public_url: str | None = None

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
            live_updates=engine.live_updates,
            dead_letters=engine.dead_letters,
            backfill=engine.backfill,
            ledger=engine.ledger,
            idempotent_responses=engine.idempotent_responses,
            explainer=engine.explainer,
            audit=engine.audit,
            findings=engine.findings,
            forecast=engine.forecast,
            cluster=engine.cluster,
            schedule_counts=engine.schedule_counts,
            capacity=engine.capacity,
            lag_history=engine.lag_history,
            service_levels=engine.service_levels,
            workers=engine.workers,
            calendars=engine.calendars,
            endpoints=engine.endpoints,
            alerts=engine.alerts,
            callbacks=engine.callbacks,
            checks=engine.checks,
            check_ledger=engine.check_ledger,
            check_explainer=engine.check_explainer,
            pings=engine.pings,
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
            public_url=engine.settings.public_url and engine.settings.public_url.rstrip("/"),
        )
