"""/healthz, /readyz, /metrics and the OpenAPI document: endpoints for monitoring and tools."""

from __future__ import annotations

from typing import Any

import msgspec

from everbeat.api.context import Health
from everbeat.api.messages import JSON, ApiRequest, Response, json_response
from everbeat.api.operations import Operation, Success
from everbeat.api.responses import HealthResponse
from everbeat.api.routing import get
from everbeat.version import __version__

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _responses(healthy: str, unhealthy: str) -> dict[int, Success]:
    return {
        200: Success(healthy, HealthResponse),
        503: Success(unhealthy, HealthResponse, headers=("Retry-After",), may_be_problem=True),
    }


@get(
    "/healthz",
    Operation(
        id="healthz",
        scope=None,
        tag="Health",
        summary="Check that the process is alive and its main loops are running",
        responses=_responses("The process is alive.", "The process is stuck; restart it."),
    ),
)
async def healthz(request: ApiRequest) -> Response:
    return _health(request.context.health(), "stuck")


@get(
    "/readyz",
    Operation(
        id="readyz",
        scope=None,
        tag="Health",
        summary="Check that the node can serve requests: database, migrations, ownership",
        responses=_responses("The node can serve requests.", "The node cannot serve requests now."),
    ),
)
async def readyz(request: ApiRequest) -> Response:
    return _health(await request.context.ready(), "unready")


@get(
    "/metrics",
    Operation(
        id="metrics",
        tag="Health",
        summary="Metrics in the Prometheus text format",
        responses={200: Success("The metrics.", str, media_type="text/plain")},
    ),
)
async def metrics(request: ApiRequest) -> Response:
    return Response(200, request.context.metrics(), ((b"content-type", METRICS_TYPE.encode()),))


@get(
    "/v1/openapi.json",
    Operation(
        id="openapi",
        for_any_key=True,
        tag="Health",
        summary="The OpenAPI document",
        responses={200: Success("The OpenAPI document.", dict[str, Any], media_type=JSON)},
    ),
)
async def openapi(request: ApiRequest) -> Response:
    access = request.context.access
    are_keys_optional = access is not None and not access.is_required
    return json_response(request.documents.without_keys if are_keys_optional else request.documents.with_keys)


@get(
    "/",
    Operation(
        id="root",
        for_any_key=True,
        tag="Health",
        summary="The version and the main paths",
        responses={200: Success("The version and the main paths.", dict[str, str], media_type=JSON)},
    ),
)
async def root(request: ApiRequest) -> Response:
    return json_response(
        msgspec.json.encode({"everbeat": __version__, "api": "/v1/openapi.json", "schedules": "/v1/schedules"})
    )


def _health(health: Health, unhealthy_status: str) -> Response:
    body = msgspec.json.encode({"status": "ok" if health.is_alive else unhealthy_status, **health.detail})
    return json_response(body) if health.is_alive else json_response(body, 503, {"Retry-After": "1"})


ROUTES = [root, healthz, readyz, metrics, openapi]
