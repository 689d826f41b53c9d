"""The API as one ASGI app: its routes, its gate, its one way to answer problems."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Litestar, Response, route
from litestar.handlers import HTTPRouteHandler

from everbeat.api import (
    audit,
    audit_log,
    calendars,
    cluster,
    dead_letters,
    events,
    executions,
    health,
    keys,
    preview,
    schedules,
    tasks,
    tenants,
    ticks,
    why,
    workers,
)
from everbeat.api.authorization import FOR_ANY_KEY, guard
from everbeat.api.context import ApiContext, ApiRequest, Health
from everbeat.api.hot import Hot
from everbeat.api.middleware import RequestMiddleware
from everbeat.api.openapi import build_document, operations_of, with_optional_security
from everbeat.api.problems import problem_response

__all__ = ["Health", "ApiContext", "build_app"]


_HANDLERS: tuple[HTTPRouteHandler, ...] = (
    *schedules.HANDLERS,
    *ticks.HANDLERS,
    *why.HANDLERS,
    *executions.HANDLERS,
    *tasks.HANDLERS,
    *workers.HANDLERS,
    *dead_letters.HANDLERS,
    *preview.HANDLERS,
    *audit.HANDLERS,
    *audit_log.HANDLERS,
    *tenants.HANDLERS,
    *keys.HANDLERS,
    *cluster.HANDLERS,
    *events.HANDLERS,
    *calendars.HANDLERS,
    *health.HANDLERS,
)


def openapi_document() -> dict[str, Any]:
    """The document of a server with the whole API, without a server."""
    return build_document(Litestar(route_handlers=list(_HANDLERS), openapi_config=None, logging_config=None))


def build_app(context: ApiContext, *, only_health: bool = False) -> Litestar:
    """The whole API, or for a node without it only what its supervisor and its monitoring ask."""
    handlers = tuple(health.HANDLERS) if only_health else _HANDLERS
    app = Litestar(
        route_handlers=[_options(handlers), *handlers],
        exception_handlers={Exception: problem_response},
        guards=[guard],
        # Ours is written from the structs that decode the bodies, and the bodies are read within our own limits.
        openapi_config=None,
        request_max_body_size=None,
        logging_config=None,
        debug=False,
        pdb_on_exception=False,
    )
    document = build_document(app)
    app.state.openapi = msgspec.json.encode(document)
    app.state.openapi_without_keys = msgspec.json.encode(with_optional_security(document))
    operations = list(operations_of(app))
    posts = {path: operation for path, method, operation in operations if method == "POST"}
    hot = Hot(app.asgi_handler, {} if only_health else {**tasks.HOT, **workers.HOT}, posts)
    # Litestar's own middleware does not see requests that match no route.
    app.asgi_handler = RequestMiddleware(hot, context, {path for path, _, operation in operations if operation.scope is None})
    return app


def _options(handlers: tuple[HTTPRouteHandler, ...]) -> HTTPRouteHandler:
    """OPTIONS of every path; Litestar's own answer forgets the methods that were registered after the first."""
    methods: dict[str, list[str]] = {}
    for handler in handlers:
        for path in handler.paths:
            methods.setdefault(path.replace(":str}", "}"), ["OPTIONS"]).extend(handler.http_methods)

    @route([template.replace("}", ":str}") for template in methods], http_method=["OPTIONS"], status_code=204, opt=FOR_ANY_KEY)
    async def options(request: ApiRequest) -> Response[None]:
        template = request.scope["path_template"]
        return Response(None, status_code=204, headers={"Allow": ", ".join(sorted(methods[template]))})

    return options
