"""The API as an ASGI app: all routes behind one middleware."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from everbeat.api import (
    alerts,
    audit,
    audit_findings,
    audit_log,
    bulk,
    calendars,
    callbacks,
    check_history,
    checks,
    cluster,
    dead_letters,
    endpoints,
    events,
    executions,
    health,
    keys,
    pauses,
    pings,
    preview,
    queues,
    schedules,
    service_levels,
    tasks,
    tenants,
    ticks,
    why,
    workers,
)
from everbeat.api.context import ApiContext, Health
from everbeat.api.messages import OpenApiDocuments
from everbeat.api.middleware import Pages, RequestMiddleware
from everbeat.api.openapi import build_document, with_optional_security
from everbeat.api.routing import Route, Router

__all__ = ["ApiContext", "Health", "build_app", "openapi_document"]


ROUTES: tuple[Route, ...] = (
    *schedules.ROUTES,
    *ticks.ROUTES,
    *why.ROUTES,
    *executions.ROUTES,
    *tasks.ROUTES,
    *workers.ROUTES,
    *queues.ROUTES,
    *pauses.ROUTES,
    *bulk.ROUTES,
    *dead_letters.ROUTES,
    *preview.ROUTES,
    *audit.ROUTES,
    *audit_findings.ROUTES,
    *audit_log.ROUTES,
    *tenants.ROUTES,
    *keys.ROUTES,
    *cluster.ROUTES,
    *service_levels.ROUTES,
    *events.ROUTES,
    *calendars.ROUTES,
    *endpoints.ROUTES,
    *alerts.ROUTES,
    *callbacks.ROUTES,
    *checks.ROUTES,
    *check_history.ROUTES,
    *pings.ROUTES,
    *health.ROUTES,
)


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of a server that serves the whole API."""
    return build_document(ROUTES)


def build_app(context: ApiContext, *, only_health: bool = False, pages: Pages | None = None) -> RequestMiddleware:
    """Return the ASGI app: the whole API with the dashboard or, for a node without the role `api`, only health and metrics."""
    routes = tuple(health.ROUTES) if only_health else ROUTES
    open_paths = {route.path for route in routes if route.operation.scope is None}
    return RequestMiddleware(
        Router(routes).handle, context, openapi_documents(only_health), open_paths, None if only_health else pages
    )


@functools.cache
def openapi_documents(only_health: bool = False) -> OpenApiDocuments:
    document = build_document(health.ROUTES if only_health else ROUTES)
    return OpenApiDocuments(msgspec.json.encode(document), msgspec.json.encode(with_optional_security(document)))
