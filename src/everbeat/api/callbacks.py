"""/v1/callbacks: destinations report on tasks that they have accepted, with the token of the attempt instead of an API key."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec

from everbeat.api import paging
from everbeat.api.bodies import RESULT, Opaque, decode_as, read_body
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import Body, Operation, Success
from everbeat.api.paging import NoQuery
from everbeat.api.responses import CallbackHeartbeatResponse, CallbackResponse
from everbeat.api.routing import post
from everbeat.core.callbacks import CallbackClaims
from everbeat.core.definitions import optional_rfc3339
from everbeat.core.protocol import MAX_DELAY_SECONDS, ErrorInput, LeaseFailure, LeaseHeartbeat, Progress

MAX_LEASE_SECONDS = 7 * 86_400.0
_NO_RESULT = msgspec.Raw(b"null")
_STALE = "`stale`: the attempt has ended, and nothing changed."


class CallbackResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    result: msgspec.Raw = msgspec.field(default_factory=lambda: _NO_RESULT)


class CallbackFailure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    error: ErrorInput
    retryable: bool = True
    retry_in_seconds: Annotated[float, msgspec.Meta(ge=0, le=MAX_DELAY_SECONDS)] | None = None


class CallbackHeartbeat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    progress: Progress | None = None
    log: str | None = None
    lease_seconds: Annotated[float, msgspec.Meta(ge=1, le=MAX_LEASE_SECONDS)] | None = None


@post(
    "/v1/callbacks/{id}/complete",
    Operation(
        id="completeCallback",
        scope=None,
        tag="Callbacks",
        summary="Complete a task that its destination has accepted",
        description=_STALE,
        responses={200: Success("Whether the task is completed.", CallbackResponse)},
        query=NoQuery,
        body=Body(CallbackResult, {"result": {"result": {"rows": 12}}}, is_required=False),
        problems=(401,),
    ),
)
async def complete_callback(request: ApiRequest) -> Response:
    claims, body = await _read(request, CallbackResult, is_required=False, opaque=RESULT)
    result = await request.context.callbacks.complete(claims, body.result)
    return json_response(CallbackResponse(result.status))


@post(
    "/v1/callbacks/{id}/fail",
    Operation(
        id="failCallback",
        scope=None,
        tag="Callbacks",
        summary="Fail the attempt of a task that its destination has accepted",
        description=_STALE,
        responses={200: Success("Whether the failure is recorded, and what follows.", CallbackResponse)},
        query=NoQuery,
        body=Body(CallbackFailure, {"failure": {"error": {"message": "out of paper"}, "retry_in_seconds": 60}}),
        problems=(401,),
    ),
)
async def fail_callback(request: ApiRequest) -> Response:
    claims, body = await _read(request, CallbackFailure)
    failure = LeaseFailure(
        id=claims.task_id,
        fence=claims.fence,
        error=body.error,
        retryable=body.retryable,
        retry_in_seconds=body.retry_in_seconds,
    )
    result = await request.context.callbacks.fail(claims, failure)
    return json_response(CallbackResponse(result.status, result.next))


@post(
    "/v1/callbacks/{id}/heartbeat",
    Operation(
        id="heartbeatCallback",
        scope=None,
        tag="Callbacks",
        summary="Report the progress of a task that its destination has accepted, and ask whether it is cancelled",
        description=f"{_STALE} `cancel`: the task is cancelled; stop, and report a failure of the kind `cancelled`. "
        "With `lease_seconds`, the attempt ends when no heartbeat arrives for this time; without it, only at the timeout.",
        responses={200: Success("Whether the task is still running.", CallbackHeartbeatResponse)},
        query=NoQuery,
        body=Body(CallbackHeartbeat, {"progress": {"progress": {"fraction": 0.5, "message": "half"}}}, is_required=False),
        problems=(401,),
    ),
)
async def heartbeat_callback(request: ApiRequest) -> Response:
    claims, body = await _read(request, CallbackHeartbeat, is_required=False)
    heartbeat = LeaseHeartbeat(id=claims.task_id, fence=claims.fence, progress=body.progress, log=body.log)
    result = await request.context.callbacks.heartbeat(claims, heartbeat, body.lease_seconds)
    status = "stale" if result.status == "lost" else result.status
    return json_response(CallbackHeartbeatResponse(status, optional_rfc3339(result.lease_until)))


async def _read(
    request: ApiRequest, type_: Any, *, is_required: bool = True, opaque: Opaque | None = None
) -> tuple[CallbackClaims, Any]:
    """Check the token before the body is read, and return what it allows, and the body."""
    claims = await request.context.callbacks.claims(_task_id(request.path_params["id"]), _token(request))
    paging.parse_query(request, NoQuery)
    raw = await read_body(request, is_required=is_required)
    return claims, await decode_as(request, raw or b"{}", type_, opaque=opaque)


def _task_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        return UUID(int=0)  # no token is valid for it


def _token(request: ApiRequest) -> str | None:
    values = request.header_values(b"authorization")
    scheme, _, token = values[0].decode("latin-1").strip().partition(" ") if len(values) == 1 else ("", "", "")
    return token.strip() if scheme.lower() == "bearer" else None


ROUTES = [complete_callback, fail_callback, heartbeat_callback]
