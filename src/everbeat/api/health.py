"""/healthz, /readyz, /metrics and the OpenAPI document: what machines ask."""

from __future__ import annotations

from typing import Any

from everbeat.api.context import Health
from everbeat.api.messages import JSON, ApiRequest, Response, json_response
from everbeat.api.operations import Operation, Success
from everbeat.api.responses import HealthResponse
from everbeat.api.routing import get
from everbeat.version import __version__

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _answers(good: str, bad: str) -> dict[int, Success]:
    return {
        200: Success(good, HealthResponse),
        503: Success(bad, HealthResponse, headers=("Retry-After",), may_be_problem=True),
    }


@get(
    "/healthz",
    Operation(
        id="healthz",
        scope=None,
        tag="Health",
        summary="Does the process live, and does its tick loop go round?",
        responses=_answers("It lives.", "It is stuck; restart it."),
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
        summary="Can it serve: database, migrations, ownership?",
        responses=_answers("It can serve.", "It cannot serve yet, or not now."),
    ),
)
async def readyz(request: ApiRequest) -> Response:
    return _health(await request.context.ready(), "unready")


@get(
    "/metrics",
    Operation(
        id="metrics",
        tag="Health",
        summary="Metrics in the text format of Prometheus",
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
        summary="This document",
        responses={200: Success("The OpenAPI document.", dict[str, Any], media_type=JSON)},
    ),
)
async def openapi(request: ApiRequest) -> Response:
    access = request.context.access
    is_open = access is not None and not access.is_required
    return json_response(request.documents.without_keys if is_open else request.documents.with_keys)


@get(
    "/",
    Operation(
        id="root",
        for_any_key=True,
        tag="Health",
        summary="Where to go from here",
        responses={200: Success("The first addresses to know.", dict[str, str], media_type=JSON)},
    ),
)
async def root(request: ApiRequest) -> Response:
    return json_response({"everbeat": __version__, "api": "/v1/openapi.json", "schedules": "/v1/schedules"})


def _health(health: Health, bad: str) -> Response:
    body = {"status": "ok" if health.is_alive else bad, **health.detail}
    return json_response(body) if health.is_alive else json_response(body, 503, {"Retry-After": "1"})


ROUTES = [root, healthz, readyz, metrics, openapi]
