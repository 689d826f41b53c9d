"""/v1/schedules: create, read, change, pause, resume and remove schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from everbeat.api import paging
from everbeat.api.bodies import (
    PAYLOAD,
    Items,
    decode,
    decode_items,
    idempotency_of,
    if_match_revision,
    read_body,
    read_json,
    read_optional_json,
)
from everbeat.api.messages import NO_CONTENT, ApiRequest, Response, json_response
from everbeat.api.openapi import SCHEDULE_NAME, SchedulePatch, ScheduleReplacement
from everbeat.api.operations import IDEMPOTENCY, Body, Operation, Success
from everbeat.api.paging import Absent, NameText, NoQuery, PageCollector, PageQuery
from everbeat.api.responses import ScheduleBatchResponse, ScheduleList
from everbeat.api.routing import delete, get, patch, post, put
from everbeat.core.access import Scope
from everbeat.core.definitions import ScheduleDefinition, convert
from everbeat.core.errors import InvalidInput
from everbeat.core.names import has_control_characters
from everbeat.core.responses import RegisteredScheduleResponse, ScheduleResponse, schedule_response
from everbeat.core.schedules import Schedule, Status
from everbeat.core.targets import TargetKind
from everbeat.services.schedules import MAX_BATCH
from everbeat.store.values import ScheduleFilter

MAX_NOTE_LENGTH = 2000
_SIZE_WITHOUT_CONTENT = 2000

_EXAMPLE = {
    "name": "nightly-report",
    "cron": "0 2 * * *",
    "timezone": "America/New_York",
    "target": {"kind": "worker", "queue": "reports", "type": "nightly-report"},
}
_INTERVAL = {"name": "heartbeat", "every_seconds": 30, "target": {"kind": "worker", "type": "heartbeat"}}
IF_MATCH = {
    "If-Match": (
        "Change the object only if this is its current revision.",
        {"type": "string", "pattern": r'^(\*|[0-9]{1,18}|(W/)?"[0-9]{1,18}")$'},
    )
}
_LINKED = (
    *("getSchedule", "patchSchedule", "pauseSchedule", "resumeSchedule", "triggerSchedule"),
    *("why", "listTicks", "listExecutions", "deleteSchedule"),
)
_LINKS = {name: {"operationId": name, "parameters": {"ref": "$response.body#/id"}} for name in _LINKED}
_OK = {200: Success("The schedule.", ScheduleResponse, headers=("ETag",))}
_CREATED = Success("The new schedule.", ScheduleResponse, headers=("ETag", "Location"), links=_LINKS)


class ScheduleQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    status: Status | Absent = msgspec.UNSET
    name_prefix: NameText | Absent = msgspec.UNSET
    queue: NameText | Absent = msgspec.UNSET
    type: NameText | Absent = msgspec.UNSET
    target: TargetKind | Absent = msgspec.UNSET


class ScheduleBatchInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Schedules to create or replace by name, all or nothing."""

    schedules: Annotated[
        list[Any],
        msgspec.Meta(
            extra_json_schema={
                "items": {"$ref": "#/components/schemas/ScheduleDefinition"},
                "minItems": 1,
                "maxItems": MAX_BATCH,
            }
        ),
    ]


class PauseInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    note: Annotated[str, msgspec.Meta(max_length=MAX_NOTE_LENGTH)] | None = None


class ResumeInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An empty object."""


@post(
    "/v1/schedules",
    Operation(
        id="createSchedule",
        scope=Scope.MANAGE,
        tag="Schedules",
        summary="Create a schedule",
        responses={201: _CREATED},
        query=NoQuery,
        body=Body(ScheduleDefinition, {"cron": _EXAMPLE, "interval": _INTERVAL}),
        headers=IDEMPOTENCY,
        problems=(409,),
    ),
)
async def create_schedule(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    raw = await read_body(request)
    idempotency = idempotency_of(request, raw)
    data = await decode(request, raw, PAYLOAD)
    response = await request.context.schedules.create(request.tenant_id, data, idempotency=idempotency, by=request.caller)
    created = msgspec.json.decode(response.body)
    headers = {"Location": f"/v1/schedules/{created['id']}", "ETag": f'"{created["revision"]}"'}
    return json_response(response.body, response.status, headers)


@post(
    "/v1/schedules/batch",
    Operation(
        id="putSchedules",
        scope=Scope.MANAGE,
        tag="Schedules",
        summary="Create or replace up to 1,000 schedules by name, all or nothing",
        responses={200: Success("The result of each schedule, in the order of the request.", ScheduleBatchResponse)},
        query=NoQuery,
        body=Body(ScheduleBatchInput, {"two": {"schedules": [_EXAMPLE, _INTERVAL]}}),
        headers=IDEMPOTENCY,
        problems=(409,),
    ),
)
async def put_schedules(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    raw = await read_body(request)
    context, tenant_id = request.context, request.tenant_id
    items = await decode_items(request, raw, ScheduleBatchInput, Items("schedules", Any, PAYLOAD, MAX_BATCH))

    async def put_all() -> bytes:
        registered = await context.schedules.put_batch(tenant_id, items, by=request.caller)
        results = [RegisteredScheduleResponse(str(one.schedule.id), one.schedule.spec.name, one.status) for one in registered]
        return msgspec.json.encode(ScheduleBatchResponse(results))

    response = await context.idempotent_responses.once(tenant_id, idempotency_of(request, raw), put_all)
    return json_response(response.body, response.status)


@get(
    "/v1/schedules",
    Operation(
        id="listSchedules",
        tag="Schedules",
        summary="List schedules by name",
        responses={200: Success("A page of schedules.", ScheduleList)},
        query=ScheduleQuery,
    ),
)
async def list_schedules(request: ApiRequest) -> Response:
    query = paging.parse_query(request, ScheduleQuery)
    filter_ = ScheduleFilter(
        status=None if isinstance(query.status, Absent) else query.status.value,
        name_prefix=paging.optional_name("name_prefix", query.name_prefix),
        queue=paging.optional_name("queue", query.queue),
        type=paging.optional_name("type", query.type),
        target=paging.given(query.target),
    )

    async def fetch(last: Schedule | None, count: int) -> Sequence[Schedule]:
        after_name = paging.name_after(query.cursor) if last is None else last.spec.name
        return await request.context.schedules.page(request.tenant_id, filter_, after_name=after_name, limit=count)

    collector = PageCollector[Schedule, ScheduleResponse](fetch, _size_of, schedule_response)
    items, last = await collector.collect(query.limit)
    return json_response(ScheduleList(items, None if last is None else paging.name_cursor(last.spec.name)))


def _size_of(schedule: Schedule) -> int:
    return len(schedule.spec.payload) + _SIZE_WITHOUT_CONTENT


@get(
    "/v1/schedules/{ref}",
    Operation(
        id="getSchedule",
        tag="Schedules",
        summary="Read a schedule",
        responses=_OK,
        query=NoQuery,
        problems=(404,),
    ),
)
async def get_schedule(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    return _response(await request.context.schedules.get(request.tenant_id, request.path_params["ref"]))


@put(
    "/v1/schedules/{ref}",
    Operation(
        id="putSchedule",
        scope=Scope.MANAGE,
        tag="Schedules",
        summary="Create or replace a schedule by name; an identical definition changes nothing",
        responses={**_OK, 201: _CREATED},
        query=NoQuery,
        body=Body(ScheduleReplacement, {"cron": {key: _EXAMPLE[key] for key in ("cron", "timezone", "target")}}),
        path=SCHEDULE_NAME,
        problems=(409,),
    ),
)
async def put_schedule(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    data = await read_json(request, PAYLOAD)
    registered = await request.context.schedules.put(request.tenant_id, request.path_params["ref"], data, by=request.caller)
    return _response(registered.schedule, 201 if registered.status == "created" else 200)


@patch(
    "/v1/schedules/{ref}",
    Operation(
        id="patchSchedule",
        scope=Scope.MANAGE,
        tag="Schedules",
        summary="Change some fields of a schedule",
        responses=_OK,
        query=NoQuery,
        body=Body(SchedulePatch, {"pace": {"every_seconds": 60}, "off": {"enabled": False}}),
        headers=IF_MATCH,
        problems=(404, 409),
    ),
)
async def patch_schedule(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    if_match = if_match_revision(request)
    data = await read_json(request, PAYLOAD)
    schedules, ref = request.context.schedules, request.path_params["ref"]
    return _response(await schedules.patch(request.tenant_id, ref, data, if_match=if_match, by=request.caller))


@delete(
    "/v1/schedules/{ref}",
    Operation(
        id="deleteSchedule",
        scope=Scope.MANAGE,
        tag="Schedules",
        summary="Remove a schedule; its ledger is kept",
        responses={204: Success("The schedule was removed.")},
        query=NoQuery,
        problems=(404,),
    ),
)
async def delete_schedule(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    await request.context.schedules.delete(request.tenant_id, request.path_params["ref"], by=request.caller)
    return NO_CONTENT


@post(
    "/v1/schedules/{ref}/pause",
    Operation(
        id="pauseSchedule",
        scope=Scope.MANAGE,
        tag="Schedules",
        summary="Pause a schedule; its ticks are recorded as skipped",
        responses=_OK,
        query=NoQuery,
        body=Body(PauseInput, {"note": {"note": "until the migration is done"}}, is_required=False),
        problems=(404, 409),
    ),
)
async def pause_schedule(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    note = convert(await read_optional_json(request), PauseInput).note
    if note is not None and has_control_characters(note):
        raise InvalidInput.of("note", "must not contain control characters")
    schedules = request.context.schedules
    return _response(await schedules.pause(request.tenant_id, request.path_params["ref"], note=note, by=request.caller))


@post(
    "/v1/schedules/{ref}/resume",
    Operation(
        id="resumeSchedule",
        scope=Scope.MANAGE,
        tag="Schedules",
        summary="Resume a paused schedule, from its next tick",
        responses=_OK,
        query=NoQuery,
        body=Body(ResumeInput, is_required=False),
        problems=(404, 409),
    ),
)
async def resume_schedule(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    convert(await read_optional_json(request), ResumeInput)
    return _response(await request.context.schedules.resume(request.tenant_id, request.path_params["ref"], by=request.caller))


def _response(schedule: Schedule, status: int = 200) -> Response:
    headers = {"ETag": f'"{schedule.revision}"'}
    if status == 201:
        headers["Location"] = f"/v1/schedules/{schedule.id}"
    return json_response(schedule_response(schedule), status, headers)


ROUTES = [
    *(create_schedule, put_schedules, list_schedules, get_schedule, put_schedule),
    *(patch_schedule, delete_schedule, pause_schedule, resume_schedule),
]
