"""/v1/schedules/bulk, /v1/tasks/bulk and /v1/operations: actions on all schedules or tasks that match a filter."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from everbeat.api import paging
from everbeat.api.bodies import key_of, read_as
from everbeat.api.filters import LabelText, label_of, schedule_id_of
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import IDEMPOTENCY, Body, Operation, Success
from everbeat.api.paging import NameText, NoQuery, PageQuery
from everbeat.api.responses import BulkErrorResponse, BulkOperationList, BulkOperationResponse
from everbeat.api.routing import get, post
from everbeat.core.access import Scope
from everbeat.core.bulk import BulkAction, BulkOperation, BulkState
from everbeat.core.definitions import Instant, optional_rfc3339, rfc3339, utc
from everbeat.core.errors import FieldError, InvalidInput, NotFound
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.schedules import Status
from everbeat.core.targets import TargetKind
from everbeat.core.tasks import TaskState
from everbeat.services.bulk import BulkRequest, request_of
from everbeat.store.values import ScheduleFilter, TaskMatch

_ALL = "Set it to act on everything, with an otherwise empty filter."
_MAX_COUNT = 2**31 - 1

AllOfThem = Annotated[bool, msgspec.Meta(description=_ALL)]
ExpectCount = Annotated[
    int,
    msgspec.Meta(ge=0, le=_MAX_COUNT, description="Refuse with 409 if another number matches."),
]
DryRun = Annotated[bool, msgspec.Meta(description="Only count what matches.")]
BulkNote = Annotated[str, msgspec.Meta(max_length=1000, description="The note of the schedules that are paused.")]


class ScheduleBulkFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects the schedules that meet all given conditions: those of the list of schedules."""

    status: Status | None = None
    name_prefix: NameText | None = None
    queue: NameText | None = None
    type: NameText | None = None
    target: TargetKind | Literal["custom"] | None = None
    all: AllOfThem = False


class TaskBulkFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects the tasks that meet all given conditions: those of the list of tasks, the kind of the last error, and the time of
    the creation, from `from` until before `to`."""

    state: TaskState | None = None
    queue: NameText | None = None
    type: NameText | None = None
    schedule: NameText | None = None
    label: LabelText | None = None
    error_kind: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    from_: Instant | None = msgspec.field(default=None, name="from")
    to: Instant | None = None
    all: AllOfThem = False


class ScheduleBulkInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    action: Literal["pause", "resume", "trigger", "delete"]
    filter: ScheduleBulkFilter
    dry_run: DryRun = False
    expect_count: ExpectCount | None = None
    note: BulkNote | None = None


class TaskBulkInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`cancel` acts on tasks that have not ended, `retry` on those that have ended."""

    action: Literal["cancel", "retry"]
    filter: TaskBulkFilter
    dry_run: DryRun = False
    expect_count: ExpectCount | None = None


_RESPONSES = {
    200: Success("A dry run: only counted.", BulkOperationResponse),
    202: Success("The operation, which has begun.", BulkOperationResponse, headers=("Location",)),
}
_HOW = (
    "The server executes the operation in the background; `GET /v1/operations/{id}` shows its progress. It continues after a "
    "crash of a node, and acts once on each schedule or task that existed at its creation. An empty filter is refused, unless "
    "it has `all`."
)


@post(
    "/v1/schedules/bulk",
    Operation(
        id="changeSchedules",
        scope=Scope.MANAGE,
        tag="Schedules",
        summary="Pause, resume, trigger or delete all schedules that match a filter",
        responses=_RESPONSES,
        query=NoQuery,
        body=Body(ScheduleBulkInput, {"pause": {"action": "pause", "filter": {"name_prefix": "report-"}, "note": "migration"}}),
        headers=IDEMPOTENCY,
        problems=(409,),
        description=_HOW,
    ),
)
async def change_schedules(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    body = await read_as(request, ScheduleBulkInput)
    given = body.filter
    _check_names({"queue": given.queue, "type": given.type, "name_prefix": given.name_prefix})
    filter_ = ScheduleFilter(
        status=None if given.status is None else given.status.value,
        name_prefix=given.name_prefix,
        queue=given.queue,
        type=given.type,
        target=given.target,
    )
    _check_not_empty(filter_, given.all)
    return await _create(request, BulkRequest(BulkAction(body.action), filter_, body.note, body.expect_count), body.dry_run)


@post(
    "/v1/tasks/bulk",
    Operation(
        id="changeTasks",
        scope=Scope.MANAGE,
        tag="Tasks",
        summary="Cancel or retry all tasks that match a filter",
        responses=_RESPONSES,
        query=NoQuery,
        body=Body(TaskBulkInput, {"retry": {"action": "retry", "filter": {"state": "dead", "error_kind": "TimeoutError"}}}),
        headers=IDEMPOTENCY,
        problems=(409,),
        description=_HOW,
    ),
)
async def change_tasks(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    body = await read_as(request, TaskBulkInput)
    given = body.filter
    _check_names({"queue": given.queue, "type": given.type})
    try:
        label_key, label_value = label_of(given.label)
        schedule_id = await schedule_id_of(request, given.schedule)
    except InvalidInput as error:
        raise error.under("filter") from None
    filter_ = TaskMatch(
        state=None if given.state is None else given.state.value,
        queue=given.queue,
        type=given.type,
        schedule_id=schedule_id,
        label_key=label_key,
        label_value=label_value,
        error_kind=given.error_kind,
        from_at=None if given.from_ is None else utc(given.from_, "filter.from"),
        to_at=None if given.to is None else utc(given.to, "filter.to"),
    )
    _check_not_empty(filter_, given.all)
    return await _create(request, BulkRequest(BulkAction(body.action), filter_, None, body.expect_count), body.dry_run)


@get(
    "/v1/operations",
    Operation(
        id="listOperations",
        tag="Operations",
        summary="List bulk operations, newest first",
        responses={200: Success("A page of operations.", BulkOperationList)},
        query=PageQuery,
    ),
)
async def list_operations(request: ApiRequest) -> Response:
    query = paging.parse_query(request, PageQuery)
    before = paging.time_id_before(query.cursor)
    found = await request.context.bulk.page(request.tenant_id, before=before, limit=query.limit + 1)
    page, last = paging.split_page(found, query.limit)
    next_cursor = None if last is None else paging.time_id_cursor(last.created_at, last.id)
    return json_response(BulkOperationList([bulk_response(operation) for operation in page], next_cursor))


@get(
    "/v1/operations/{id}",
    Operation(
        id="getOperation",
        tag="Operations",
        summary="Read a bulk operation and its progress",
        responses={200: Success("The operation.", BulkOperationResponse)},
        query=NoQuery,
        problems=(404,),
    ),
)
async def get_operation(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    return json_response(bulk_response(await request.context.bulk.get(request.tenant_id, _id(request))))


@post(
    "/v1/operations/{id}/cancel",
    Operation(
        id="cancelOperation",
        scope=Scope.MANAGE,
        tag="Operations",
        summary="Stop a bulk operation; what it has changed stays changed",
        responses={200: Success("The operation.", BulkOperationResponse)},
        query=NoQuery,
        problems=(404, 409),
    ),
)
async def cancel_operation(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    return json_response(bulk_response(await request.context.bulk.cancel(request.tenant_id, _id(request), by=request.caller)))


async def _create(request: ApiRequest, bulk: BulkRequest, dry_run: bool) -> Response:
    service, key = request.context.bulk, key_of(request)
    if dry_run:
        matched = await service.count(request.tenant_id, bulk)
        return json_response(_dry_run(bulk, matched, request.caller.actor, await request.context.store.clock()))
    operation = await service.create(request.tenant_id, bulk, key=key, by=request.caller)
    return json_response(bulk_response(operation), 202, {"Location": f"/v1/operations/{operation.id}"})


def _check_not_empty(filter_: ScheduleFilter | TaskMatch, is_all: bool) -> None:
    is_empty = all(value is None for value in filter_)
    if is_empty and not is_all:
        raise InvalidInput.of("filter", 'is empty; to act on everything, send {"all": true}')
    if is_all and not is_empty:
        raise InvalidInput.of("filter.all", "cannot be combined with other conditions")


def _check_names(names: dict[str, str | None]) -> None:
    wrong = [field for field, name in names.items() if name is not None and not is_name(name)]
    errors = [FieldError(f"filter.{field}", NAME_MESSAGE) for field in wrong]
    if errors:
        raise InvalidInput(*errors)


def _id(request: ApiRequest) -> UUID:
    text = request.path_params["id"]
    found = paging.uuid_of(text)
    if found is None:
        raise NotFound(f"there is no operation {text[:100]}")
    return found


def bulk_response(operation: BulkOperation) -> BulkOperationResponse:
    return BulkOperationResponse(
        id=operation.id,
        subject=operation.subject,
        action=operation.action,
        filter=_shown(request_of(operation)),
        note=operation.note,
        matched=operation.matched,
        done=operation.done,
        failed=operation.failed,
        state=operation.state,
        errors=[BulkErrorResponse(one.subject, one.message) for one in operation.errors],
        by=operation.actor,
        created_at=rfc3339(operation.created_at),
        finished_at=optional_rfc3339(operation.finished_at),
    )


def _dry_run(bulk: BulkRequest, matched: int, actor: str, now: datetime) -> BulkOperationResponse:
    return BulkOperationResponse(
        id=None,
        subject=bulk.subject,
        action=bulk.action,
        filter=_shown(bulk),
        note=bulk.note,
        matched=matched,
        done=0,
        failed=0,
        state=BulkState.DONE,
        errors=[],
        by=actor,
        created_at=rfc3339(now),
        finished_at=None,
    )


def _shown(bulk: BulkRequest) -> dict[str, Any]:
    """Return the filter as it was sent, with the id of the schedule."""
    values = {name: value for name, value in bulk.filter._asdict().items() if value is not None}
    names = {"from_at": "from", "to_at": "to", "schedule_id": "schedule"}
    shown = {names.get(name, name): value for name, value in values.items() if not name.startswith("label_")}
    if (key := values.get("label_key")) is not None:
        shown["label"] = key if "label_value" not in values else f"{key}={values['label_value']}"
    shown |= {name: rfc3339(shown[name]) for name in ("from", "to") if name in shown}
    return shown or {"all": True}


ROUTES = [change_schedules, change_tasks, list_operations, get_operation, cancel_operation]
