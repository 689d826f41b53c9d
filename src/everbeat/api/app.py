"""The API as one ASGI app: its routes, its gate, its one way to answer problems."""

from __future__ import annotations

import msgspec
from litestar import Litestar, Response, route
from litestar.handlers import HTTPRouteHandler

from everbeat.api import (
    audit,
    calendars,
    cluster,
    dead_letters,
    executions,
    health,
    preview,
    schedules,
    tasks,
    ticks,
    workers,
)
from everbeat.api.gate import Gate
from everbeat.api.hot import Hot
from everbeat.api.openapi import build_document
from everbeat.api.problems import answer_problem
from everbeat.api.rooms import ApiRequest, Health, Rooms

__all__ = ["Health", "Rooms", "build_app"]


_HANDLERS: tuple[HTTPRouteHandler, ...] = (
    *schedules.HANDLERS,
    *ticks.HANDLERS,
    *executions.HANDLERS,
    *tasks.HANDLERS,
    *workers.HANDLERS,
    *dead_letters.HANDLERS,
    *preview.HANDLERS,
    *audit.HANDLERS,
    *cluster.HANDLERS,
    *calendars.HANDLERS,
    *health.HANDLERS,
)


def build_app(rooms: Rooms, *, only_health: bool = False) -> Litestar:
    """The whole API, or for a node without it only what its supervisor and its monitoring ask."""
    handlers = tuple(health.HANDLERS) if only_health else _HANDLERS
    app = Litestar(
        route_handlers=[_options(handlers), *handlers],
        exception_handlers={Exception: answer_problem},
        # Ours is written from the structs that decode the bodies, and the bodies are read within our own limits.
        openapi_config=None,
        request_max_body_size=None,
        logging_config=None,
        debug=False,
        pdb_on_exception=False,
    )
    app.state.openapi = msgspec.json.encode(build_document(app))
    hot = Hot(app.asgi_handler, {} if only_health else {**tasks.HOT, **workers.HOT})
    # Litestar's own middleware does not see requests that match no route.
    app.asgi_handler = Gate(hot, rooms)
    return app


def _options(handlers: tuple[HTTPRouteHandler, ...]) -> HTTPRouteHandler:
    """OPTIONS of every path; Litestar's own answer forgets the methods that were registered after the first."""
    methods: dict[str, list[str]] = {}
    for handler in handlers:
        for path in handler.paths:
            methods.setdefault(path.replace(":str}", "}"), ["OPTIONS"]).extend(handler.http_methods)

    @route([template.replace("}", ":str}") for template in methods], http_method=["OPTIONS"], status_code=204)
    async def options(request: ApiRequest) -> Response[None]:
        template = request.scope["path_template"]
        return Response(None, status_code=204, headers={"Allow": ", ".join(sorted(methods[template]))})

    return options
