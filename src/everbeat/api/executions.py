"""/v1/schedules/{ref}/trigger, /backfill and /executions: run a schedule on request, and list its tasks."""

from __future__ import annotations

import msgspec

from everbeat.api import paging
from everbeat.api.bodies import PAYLOAD, decode_as, idempotency_of, read_body
from everbeat.api.dead_letters import Rate
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import IDEMPOTENCY, Body, Operation, Success
from everbeat.api.paging import NoQuery
from everbeat.api.responses import TaskList
from everbeat.api.routing import get, post
from everbeat.api.tasks import CREATED, StateQuery, created, page_of, task_key_of
from everbeat.core.access import Scope
from everbeat.core.definitions import Instant, rfc3339, utc
from everbeat.core.responses import BackfillResponse
from everbeat.store.values import TaskFilter

_MAX_TICKS_SHOWN = 100
_NULL = msgspec.Raw(b"null")


class TriggerScheduleInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """If the payload is null, that of the schedule is used."""

    payload: msgspec.Raw = msgspec.field(default_factory=lambda: _NULL)


class BackfillInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A window in the past: `from` is inclusive, `to` is exclusive."""

    from_: Instant = msgspec.field(name="from")
    to: Instant
    missing_only: bool = True
    dry_run: bool = False
    rate_per_second: Rate | None = None


@post(
    "/v1/schedules/{ref}/trigger",
    Operation(
        id="triggerSchedule",
        scope=Scope.MANAGE,
        tag="Schedules",
        summary="Create a task of the schedule now, in addition to its ticks",
        responses={201: CREATED},
        query=NoQuery,
        body=Body(TriggerScheduleInput, {"other": {"payload": {"account": 7}}}, is_required=False),
        headers=IDEMPOTENCY,
        problems=(404, 409),
    ),
)
async def trigger_schedule(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    raw = await read_body(request, is_required=False)
    key = task_key_of(request, raw)
    body = await decode_as(request, raw or b"{}", TriggerScheduleInput, opaque=PAYLOAD)
    payload = None if body.payload == _NULL else bytes(body.payload)
    backfill, ref = request.context.backfill, request.path_params["ref"]
    return created(await backfill.trigger(request.tenant_id, ref, payload, key=key, by=request.caller))


@post(
    "/v1/schedules/{ref}/backfill",
    Operation(
        id="backfillSchedule",
        scope=Scope.MANAGE,
        tag="Schedules",
        summary="Create tasks for past ticks, by default only for ticks without a task",
        responses={200: Success("The number of tasks, and the first of their ticks.", BackfillResponse)},
        query=NoQuery,
        body=Body(
            BackfillInput,
            {"dry": {"from": "2026-01-01T00:00:00Z", "to": "2026-01-03T00:00:00Z", "dry_run": True}},
        ),
        headers=IDEMPOTENCY,
        problems=(404, 409),
    ),
)
async def backfill_schedule(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    raw = await read_body(request)
    body = await decode_as(request, raw, BackfillInput)
    context, tenant_id = request.context, request.tenant_id
    idempotency = idempotency_of(request, raw)

    async def backfill() -> bytes:
        done = await context.backfill.backfill(
            tenant_id,
            request.path_params["ref"],
            from_=paging.bounded("from", utc(body.from_, "from")),
            to=paging.bounded("to", utc(body.to, "to")),
            missing_only=body.missing_only,
            dry_run=body.dry_run,
            rate_per_second=body.rate_per_second,
            key=None if idempotency is None else idempotency.key,
            by=request.caller,
        )
        return msgspec.json.encode(BackfillResponse(done.count, [rfc3339(tick) for tick in done.ticks[:_MAX_TICKS_SHOWN]]))

    response = await context.idempotent_responses.once(tenant_id, idempotency, backfill)
    return json_response(response.body, response.status)


@get(
    "/v1/schedules/{ref}/executions",
    Operation(
        id="listExecutions",
        tag="Schedules",
        summary="List the tasks of a schedule, live and finished, newest first",
        responses={200: Success("A page of tasks.", TaskList)},
        query=StateQuery,
        problems=(404,),
    ),
)
async def list_executions(request: ApiRequest) -> Response:
    query = paging.parse_query(request, StateQuery)
    schedule = await request.context.schedules.get(request.tenant_id, request.path_params["ref"])
    return await page_of(request, query, TaskFilter(schedule_id=schedule.id))


ROUTES = [trigger_schedule, backfill_schedule, list_executions]
