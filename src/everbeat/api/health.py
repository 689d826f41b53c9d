"""/healthz, /readyz, /metrics and the OpenAPI document: what machines ask."""

from __future__ import annotations

from typing import Any

from litestar import Response, get

from everbeat.api.context import ApiRequest, Health, context_of
from everbeat.api.openapi import JSON, Operation, Success, documented
from everbeat.api.responses import HealthResponse, json_response
from everbeat.version import __version__

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _answers(good: str, bad: str) -> dict[int, Success]:
    return {
        200: Success(good, HealthResponse),
        503: Success(bad, HealthResponse, headers=("Retry-After",), may_be_problem=True),
    }


@get(
    "/healthz",
    opt=documented(
        Operation(
            id="healthz",
            scope=None,
            tag="Health",
            summary="Does the process live, and does its tick loop go round?",
            responses=_answers("It lives.", "It is stuck; restart it."),
        )
    ),
)
async def healthz(request: ApiRequest) -> Response[bytes]:
    return _health(context_of(request).health(), "stuck")


@get(
    "/readyz",
    opt=documented(
        Operation(
            id="readyz",
            scope=None,
            tag="Health",
            summary="Can it serve: database, migrations, ownership?",
            responses=_answers("It can serve.", "It cannot serve yet, or not now."),
        )
    ),
)
async def readyz(request: ApiRequest) -> Response[bytes]:
    return _health(await context_of(request).ready(), "unready")


@get(
    "/metrics",
    opt=documented(
        Operation(
            id="metrics",
            tag="Health",
            summary="Metrics in the text format of Prometheus",
            responses={200: Success("The metrics.", str, media_type="text/plain")},
        )
    ),
)
async def metrics(request: ApiRequest) -> Response[bytes]:
    return Response(content=context_of(request).metrics(), headers={"Content-Type": METRICS_TYPE})


@get(
    "/v1/openapi.json",
    opt=documented(
        Operation(
            id="openapi",
            for_any_key=True,
            tag="Health",
            summary="This document",
            responses={200: Success("The OpenAPI document.", dict[str, Any], media_type=JSON)},
        )
    ),
)
async def openapi(request: ApiRequest) -> Response[bytes]:
    access = context_of(request).access
    is_open = access is not None and not access.is_required
    return json_response(request.app.state.openapi_without_keys if is_open else request.app.state.openapi)


@get(
    "/",
    opt=documented(
        Operation(
            id="root",
            for_any_key=True,
            tag="Health",
            summary="Where to go from here",
            responses={200: Success("The first addresses to know.", dict[str, str], media_type=JSON)},
        )
    ),
)
async def root(request: ApiRequest) -> Response[bytes]:
    return json_response({"everbeat": __version__, "api": "/v1/openapi.json", "schedules": "/v1/schedules"})


def _health(health: Health, bad: str) -> Response[bytes]:
    body = {"status": "ok" if health.is_alive else bad, **health.detail}
    return json_response(body) if health.is_alive else json_response(body, 503, {"Retry-After": "1"})


HANDLERS = [root, healthz, readyz, metrics, openapi]
