"""/v1/pauses, /v1/pause, /v1/resume, /v1/queues/{queue}/pause and /resume: pauses of a queue, of a tenant, or of everything."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec

from everbeat.api import paging
from everbeat.api.bodies import read_optional_json
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import Body, Operation, Success
from everbeat.api.paging import NoQuery
from everbeat.api.responses import PauseList, PauseResponse, ResumeResponse
from everbeat.api.routing import get, post
from everbeat.core.access import Scope
from everbeat.core.definitions import Instant, convert, optional_rfc3339, rfc3339, utc
from everbeat.core.errors import Forbidden, InvalidInput
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.pauses import Pause

Note = Annotated[str, msgspec.Meta(max_length=1000, description="Why. Shown in the list of pauses and by why.")]
Until = Annotated[Instant, msgspec.Meta(description="When the pause ends by itself. Without it, the pause ends with a resume.")]
AllTenants = Annotated[
    bool, msgspec.Meta(description="Not only the tenant of the key, but all tenants. Needs the scope admin.")
]


class QueuePauseInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    note: Note | None = None
    until: Until | None = None


class TenantPauseInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    note: Note | None = None
    until: Until | None = None
    all_tenants: AllTenants = False


class QueueResumeInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class TenantResumeInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    all_tenants: AllTenants = False


_PAUSED = "During the pause, ticks are skipped with the reason `paused`, tasks are accepted and wait, and manual triggers run."


@get(
    "/v1/pauses",
    Operation(
        id="listPauses",
        tag="Queues and workers",
        summary="List the active pauses of the tenant and those of all tenants, the oldest first",
        responses={200: Success("The active pauses.", PauseList)},
        query=NoQuery,
        description="Paused schedules are not in this list: see `GET /v1/schedules?status=paused`.",
    ),
)
async def list_pauses(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    found = await request.context.pauses.active(request.tenant_id)
    return json_response(PauseList([pause_response(pause) for pause in found], None))


@post(
    "/v1/queues/{queue}/pause",
    Operation(
        id="pauseQueue",
        scope=Scope.MANAGE,
        tag="Queues and workers",
        summary="Pause a queue, or change the note and the end of its pause",
        responses={200: Success("The pause.", PauseResponse)},
        query=NoQuery,
        body=Body(QueuePauseInput, {"deploy": {"note": "deploying"}}, is_required=False),
        description=_PAUSED,
    ),
)
async def pause_queue(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    body = convert(await read_optional_json(request), QueuePauseInput)
    until = None if body.until is None else utc(body.until, "until")
    queue, caller = _queue(request), request.caller
    return json_response(
        pause_response(await request.context.pauses.pause(request.tenant_id, queue, note=body.note, until=until, by=caller))
    )


@post(
    "/v1/queues/{queue}/resume",
    Operation(
        id="resumeQueue",
        scope=Scope.MANAGE,
        tag="Queues and workers",
        summary="End the pause of a queue",
        responses={200: Success("The pause that has ended, if there was one.", ResumeResponse)},
        query=NoQuery,
        body=Body(QueueResumeInput, is_required=False),
    ),
)
async def resume_queue(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    convert(await read_optional_json(request), QueueResumeInput)
    ended = await request.context.pauses.resume(request.tenant_id, _queue(request), by=request.caller)
    return json_response(ResumeResponse([pause_response(pause) for pause in ended]))


@post(
    "/v1/pause",
    Operation(
        id="pauseAll",
        scope=Scope.MANAGE,
        tag="Queues and workers",
        summary="Pause all schedules and queues of the tenant, or of all tenants",
        responses={200: Success("The pause.", PauseResponse)},
        query=NoQuery,
        body=Body(TenantPauseInput, {"maintenance": {"note": "maintenance"}}, is_required=False),
        description=_PAUSED,
    ),
)
async def pause_all(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    body = convert(await read_optional_json(request), TenantPauseInput)
    until = None if body.until is None else utc(body.until, "until")
    tenant_id = _tenant(request, body.all_tenants)
    pause = await request.context.pauses.pause(tenant_id, note=body.note, until=until, by=request.caller)
    return json_response(pause_response(pause))


@post(
    "/v1/resume",
    Operation(
        id="resumeAll",
        scope=Scope.MANAGE,
        tag="Queues and workers",
        summary="End the pause of the tenant, or that of all tenants",
        responses={200: Success("The pause that has ended, if there was one.", ResumeResponse)},
        query=NoQuery,
        body=Body(TenantResumeInput, {"maintenance": {"all_tenants": False}}, is_required=False),
        description="Queues and schedules that were paused by themselves stay paused.",
    ),
)
async def resume_all(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    body = convert(await read_optional_json(request), TenantResumeInput)
    ended = await request.context.pauses.resume(_tenant(request, body.all_tenants), by=request.caller)
    return json_response(ResumeResponse([pause_response(pause) for pause in ended]))


def _tenant(request: ApiRequest, all_tenants: bool) -> UUID | None:
    if not all_tenants:
        return request.tenant_id
    if Scope.ADMIN not in request.caller.scopes:
        raise Forbidden("all_tenants requires an API key with the scope admin.")
    return None


def _queue(request: ApiRequest) -> str:
    queue = request.path_params["queue"]
    if not is_name(queue):
        raise InvalidInput.of("queue", NAME_MESSAGE)
    return queue


def pause_response(pause: Pause) -> PauseResponse:
    return PauseResponse(
        id=pause.id,
        scope=pause.scope,
        queue=pause.queue,
        by=pause.paused_by,
        note=pause.note,
        since=rfc3339(pause.since_at),
        until=optional_rfc3339(pause.until_at),
    )


ROUTES = [list_pauses, pause_queue, resume_queue, pause_all, resume_all]
