"""/v1/dead-letters: read dead letters, replay them as new tasks, and purge them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import msgspec

from everbeat.api import paging
from everbeat.api.bodies import decode_as, idempotency_of, read_as, read_body, read_optional_json
from everbeat.api.filters import schedule_id_of
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import IDEMPOTENCY, Body, Operation, Success
from everbeat.api.paging import Absent, NameText, NoQuery, PageCollector, WindowQuery
from everbeat.api.responses import DeadLetterList
from everbeat.api.routing import get, post
from everbeat.api.tasks import CREATED, EmptyInput, created, task_key_of
from everbeat.core.access import Scope
from everbeat.core.definitions import Instant, convert, utc
from everbeat.core.errors import FieldError, InvalidInput, NotFound
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.responses import DeadLetterResponse, PurgeResponse, ReplayResponse, dead_letter_response
from everbeat.core.tasks import DeadLetter
from everbeat.store.values import DeadFilter

_MAX_IDS = 1000
_SIZE_WITHOUT_CONTENT = 1000
_LINKS = {
    name: {"operationId": name, "parameters": {"task_id": "$response.body#/items/0/task_id"}}
    for name in ("getDeadLetter", "replayDeadLetter")
}

Rate = Annotated[float, msgspec.Meta(ge=0.001, le=100_000, description="Spread the new tasks over time, at this rate.")]


class DeadLetterQuery(WindowQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queue: NameText | Absent = msgspec.UNSET
    type: NameText | Absent = msgspec.UNSET
    schedule: Annotated[NameText, msgspec.Meta(description="The id or the name of a schedule.")] | Absent = msgspec.UNSET


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects the dead letters that meet all given conditions. {} selects all dead letters."""

    queue: str | None = None
    type: str | None = None
    schedule: str | None = None
    from_: Instant | None = msgspec.field(default=None, name="from")
    to: Instant | None = None
    task_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=_MAX_IDS)] | None = None


class ReplayInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    filter: DeadLetterFilter
    rate_per_second: Rate | None = None


class PurgeInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    filter: DeadLetterFilter


@get(
    "/v1/dead-letters",
    Operation(
        id="listDeadLetters",
        tag="Dead letters",
        summary="List dead letters, newest first",
        responses={200: Success("A page of dead letters.", DeadLetterList, links=_LINKS)},
        query=DeadLetterQuery,
    ),
)
async def list_dead_letters(request: ApiRequest) -> Response:
    query = paging.parse_query(request, DeadLetterQuery)
    filter_ = DeadFilter(
        queue=paging.optional_name("queue", query.queue),
        type=paging.optional_name("type", query.type),
        from_at=paging.optional_time("from", query.from_),
        to_at=paging.optional_time("to", query.to),
        schedule_id=await schedule_id_of(request, paging.given(query.schedule)),
    )

    async def fetch(last: DeadLetter | None, count: int) -> Sequence[DeadLetter]:
        before = paging.time_id_before(query.cursor) if last is None else (last.died_at, last.task_id)
        return await request.context.dead_letters.page(request.tenant_id, filter_, before=before, limit=count)

    collector = PageCollector[DeadLetter, DeadLetterResponse](fetch, _size_of, dead_letter_response)
    items, last = await collector.collect(query.limit)
    next_cursor = None if last is None else paging.time_id_cursor(last.died_at, last.task_id)
    return json_response(DeadLetterList(items, next_cursor))


def _size_of(letter: DeadLetter) -> int:
    return len(letter.payload) + len(letter.error or b"") + _SIZE_WITHOUT_CONTENT


@get(
    "/v1/dead-letters/{task_id}",
    Operation(
        id="getDeadLetter",
        tag="Dead letters",
        summary="Read a dead letter",
        responses={200: Success("The dead letter.", DeadLetterResponse)},
        query=NoQuery,
        problems=(404,),
    ),
)
async def get_dead_letter(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    return json_response(dead_letter_response(await request.context.dead_letters.read(request.tenant_id, _id(request))))


@post(
    "/v1/dead-letters/{task_id}/replay",
    Operation(
        id="replayDeadLetter",
        scope=Scope.MANAGE,
        tag="Dead letters",
        summary="Replay a dead letter as a new task, even if it was replayed before",
        responses={201: CREATED},
        query=NoQuery,
        body=Body(EmptyInput, is_required=False),
        headers=IDEMPOTENCY,
        problems=(404, 409),
    ),
)
async def replay_dead_letter(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    convert(await read_optional_json(request), EmptyInput)
    key = task_key_of(request, b"")
    service = request.context.dead_letters
    task = await service.replay(request.tenant_id, _id(request), key=key, by=request.caller)
    return created(task)


@post(
    "/v1/dead-letters/replay",
    Operation(
        id="replayDeadLetters",
        scope=Scope.MANAGE,
        tag="Dead letters",
        summary="Replay all matching dead letters that were never replayed, as new tasks",
        responses={200: Success("The number of new tasks, and the first of their ids.", ReplayResponse)},
        query=NoQuery,
        body=Body(ReplayInput, {"queue": {"filter": {"queue": "reports"}, "rate_per_second": 10}}),
        headers=IDEMPOTENCY,
        problems=(409,),
    ),
)
async def replay_dead_letters(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    raw = await read_body(request)
    body = await decode_as(request, raw, ReplayInput)
    filter_ = await _filter_of(request, body.filter)
    context, tenant_id, by = request.context, request.tenant_id, request.caller

    async def replay() -> bytes:
        done = await context.dead_letters.replay_all(tenant_id, filter_, rate_per_second=body.rate_per_second, by=by)
        return msgspec.json.encode(ReplayResponse(done.count, [str(id_) for id_ in done.ids], done.has_more))

    response = await context.idempotent_responses.once(tenant_id, idempotency_of(request, raw), replay)
    return json_response(response.body, response.status)


@post(
    "/v1/dead-letters/purge",
    Operation(
        id="purgeDeadLetters",
        scope=Scope.MANAGE,
        tag="Dead letters",
        summary="Remove all matching dead letters, with their payloads and errors",
        responses={200: Success("The number of removed dead letters.", PurgeResponse)},
        query=NoQuery,
        body=Body(PurgeInput, {"old": {"filter": {"to": "2026-01-01T00:00:00Z"}}}),
        problems=(409,),
    ),
)
async def purge_dead_letters(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    filter_ = await _filter_of(request, (await read_as(request, PurgeInput)).filter)
    return json_response(PurgeResponse(await request.context.dead_letters.purge(request.tenant_id, filter_, by=request.caller)))


async def _filter_of(request: ApiRequest, given: DeadLetterFilter) -> DeadFilter:
    names = (("queue", given.queue), ("type", given.type), ("schedule", given.schedule))
    errors = [FieldError(f"filter.{field}", NAME_MESSAGE) for field, name in names if name is not None and not is_name(name)]
    if errors:
        raise InvalidInput(*errors)
    return DeadFilter(
        queue=given.queue,
        type=given.type,
        schedule_id=await schedule_id_of(request, given.schedule),
        from_at=None if given.from_ is None else utc(given.from_, "filter.from"),
        to_at=None if given.to is None else utc(given.to, "filter.to"),
        task_ids=None if given.task_ids is None else tuple(given.task_ids),
    )


def _id(request: ApiRequest) -> UUID:
    text = request.path_params["task_id"]
    id_ = paging.uuid_of(text)
    if id_ is None:
        raise NotFound(f"there is no dead letter of task {text}")
    return id_


ROUTES = [list_dead_letters, get_dead_letter, replay_dead_letter, replay_dead_letters, purge_dead_letters]
