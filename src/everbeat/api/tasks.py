"""/v1/tasks: submit, read, cancel, retry and reschedule tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from everbeat.api import paging
from everbeat.api.bodies import PAYLOAD, Items, decode_as, idempotency_of, key_of, read_as, read_body, read_optional_json
from everbeat.api.filters import LabelText, label_of, schedule_id_of
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.openapi import TaskSubmission
from everbeat.api.operations import IDEMPOTENCY, Body, Operation, Success
from everbeat.api.paging import Absent, NameText, NoQuery, PageCollector, PageQuery
from everbeat.api.responses import AttemptList, LogLineList, TaskIdsResponse, TaskList
from everbeat.api.routing import get, post
from everbeat.core.access import Scope
from everbeat.core.definitions import Instant, convert, utc
from everbeat.core.errors import InvalidInput, NotFound
from everbeat.core.protocol import MAX_SUBMITTED, TaskInput
from everbeat.core.responses import LogLineResponse, TaskResponse, attempt_response, log_response, task_response
from everbeat.core.tasks import LogLine, TaskKey, TaskRecord, TaskState
from everbeat.store.values import TaskFilter

_SIZE_WITHOUT_CONTENT = 1000

_EXAMPLE = {"type": "build-report", "queue": "reports", "payload": {"account": 7}}
_LATER = {"type": "remind", "payload": {"user": 3}, "delay_seconds": 600, "priority": 10, "labels": {"team": "billing"}}
_TRACED = {
    "traceparent": (
        "The W3C trace context of the caller. It is passed to the worker.",
        {"type": "string"},
    )
}
_LINKS = {
    name: {"operationId": name, "parameters": {"id": "$response.body#/id"}}
    for name in ("getTask", "listAttempts", "readLog", "cancelTask", "rescheduleTask", "retryTask")
}
_OK = {200: Success("The task.", TaskResponse)}
CREATED = Success("The new task.", TaskResponse, headers=("Location",), links=_LINKS)


class TaskBatchInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tasks to submit, all or nothing. Each can have its own idempotency key."""

    tasks: Annotated[list[TaskInput], msgspec.Meta(min_length=1, max_length=MAX_SUBMITTED)]


class StateQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: TaskState | Absent = msgspec.UNSET


class TaskQuery(StateQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queue: NameText | Absent = msgspec.UNSET
    type: NameText | Absent = msgspec.UNSET
    schedule: Annotated[NameText, msgspec.Meta(description="The id or the name of a schedule.")] | Absent = msgspec.UNSET
    label: LabelText | Absent = msgspec.UNSET


class GetTaskQuery(NoQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    payload: Annotated[
        Literal["include", "omit"], msgspec.Meta(description="omit: leave out a payload above 64 KiB, which is faster.")
    ] = "include"


class EmptyInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An empty object."""


class RescheduleInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A time in the past means now."""

    run_at: Instant


def created(task: TaskRecord, status: int = 201) -> Response:
    return json_response(task_response(task), status, {"Location": f"/v1/tasks/{task.id}"})


def _without_outcome(task: TaskRecord) -> TaskRecord:
    """Return the task without what its worker has reported, for a key that may submit tasks and not read them."""
    return msgspec.structs.replace(
        task, result=None, error=None, progress_fraction=None, progress_message=None, worker=None, lease_until=None
    )


def task_key_of(request: ApiRequest, raw: bytes) -> TaskKey | None:
    """Return the idempotency key of a request that creates tasks. With another path or body, the key is refused."""
    idempotency = idempotency_of(request, raw)
    return None if idempotency is None else TaskKey(idempotency.key, idempotency.fingerprint)


@post(
    "/v1/tasks",
    Operation(
        id="submitTask",
        scope=Scope.SUBMIT,
        tag="Tasks",
        summary="Submit a task, to run now or later",
        responses={
            201: CREATED,
            200: Success("The task that was created with this key before.", TaskResponse, headers=("Location",)),
        },
        query=NoQuery,
        body=Body(TaskSubmission, {"now": _EXAMPLE, "later": _LATER}),
        headers={**IDEMPOTENCY, **_TRACED},
        problems=(409,),
    ),
)
async def submit_task(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    given = await read_as(request, TaskInput, opaque=PAYLOAD)
    if given.idempotency_key is not None:
        raise InvalidInput.of(
            "idempotency_key", "must be sent as the header Idempotency-Key; only tasks of a batch have this field"
        )
    task, is_new = await request.context.tasks.submit(
        request.tenant_id, given, key=key_of(request), traceparent=request.header(b"traceparent")
    )
    if is_new:
        return created(task)
    return created(task if Scope.READ in request.caller.scopes else _without_outcome(task), 200)


@post(
    "/v1/tasks/batch",
    Operation(
        id="submitTasks",
        scope=Scope.SUBMIT,
        tag="Tasks",
        summary="Submit up to 10,000 tasks, all or nothing",
        responses={200: Success("The ids of the tasks, in the order of the request.", TaskIdsResponse)},
        query=NoQuery,
        body=Body(TaskBatchInput, {"two": {"tasks": [_EXAMPLE, {**_LATER, "idempotency_key": "reminder-3"}]}}),
        headers={**IDEMPOTENCY, **_TRACED},
        problems=(409,),
    ),
)
async def submit_tasks(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    raw = await read_body(request)
    key = task_key_of(request, raw)
    batch = await decode_as(request, raw, TaskBatchInput, Items("tasks", TaskInput, PAYLOAD))
    ids = await request.context.tasks.submit_batch(
        request.tenant_id, batch.tasks, key=key, traceparent=request.header(b"traceparent")
    )
    return json_response(TaskIdsResponse(ids))


@get(
    "/v1/tasks",
    Operation(
        id="listTasks",
        tag="Tasks",
        summary="List tasks, live and finished, newest first",
        responses={200: Success("A page of tasks. A short page is not necessarily the last one.", TaskList)},
        query=TaskQuery,
    ),
)
async def list_tasks(request: ApiRequest) -> Response:
    query = paging.parse_query(request, TaskQuery)
    label_key, label_value = label_of(paging.given(query.label))
    filter_ = TaskFilter(
        queue=paging.optional_name("queue", query.queue),
        type=paging.optional_name("type", query.type),
        label_key=label_key,
        label_value=label_value,
        schedule_id=await schedule_id_of(request, paging.given(query.schedule)),
    )
    return await page_of(request, query, filter_)


async def page_of(request: ApiRequest, query: StateQuery, filter_: TaskFilter) -> Response:
    """Return a page of the tasks that match the filter and the requested state."""
    if not isinstance(query.state, Absent):
        filter_ = filter_._replace(state=query.state.value)
    before = paging.id_after(query.cursor)

    async def fetch(last: TaskRecord | None, count: int) -> Sequence[TaskRecord]:
        nonlocal before
        start = before if last is None else last.id
        page = await request.context.tasks.page(request.tenant_id, filter_, before=start, limit=count)
        before = page.next_before  # if the filter matches few tasks, a page is short although more follow
        return page.tasks

    items, last = await PageCollector[TaskRecord, TaskResponse](fetch, _size_of, task_response).collect(query.limit)
    end = before if last is None else last.id
    return json_response(TaskList(items, None if end is None else paging.id_cursor(end)))


def _size_of(task: TaskRecord) -> int:
    return len(task.payload) + len(task.result or b"") + len(task.error or b"") + _SIZE_WITHOUT_CONTENT


@get(
    "/v1/tasks/{id}",
    Operation(
        id="getTask",
        tag="Tasks",
        summary="Read a task",
        responses=_OK,
        query=GetTaskQuery,
        problems=(404,),
    ),
)
async def get_task(request: ApiRequest) -> Response:
    query = paging.parse_query(request, GetTaskQuery)
    tasks = request.context.tasks
    task = await (tasks.get if query.payload == "omit" else tasks.read)(request.tenant_id, task_id_of(request))
    return json_response(task_response(task))


@get(
    "/v1/tasks/{id}/attempts",
    Operation(
        id="listAttempts",
        tag="Tasks",
        summary="List the attempts of a task, oldest first",
        responses={200: Success("A page of attempts.", AttemptList)},
        query=PageQuery,
        problems=(404,),
    ),
)
async def list_attempts(request: ApiRequest) -> Response:
    query = paging.parse_query(request, PageQuery)
    after = paging.number_after(query.cursor)
    attempts = await request.context.tasks.attempts(request.tenant_id, task_id_of(request))
    page, last = paging.split_page([one for one in attempts if after is None or one.fence > after], query.limit)
    next_cursor = None if last is None else paging.number_cursor(last.fence)
    return json_response(AttemptList([attempt_response(one) for one in page], next_cursor))


@get(
    "/v1/tasks/{id}/log",
    Operation(
        id="readLog",
        tag="Tasks",
        summary="Read the log lines of a task, oldest first",
        responses={200: Success("A page of log lines.", LogLineList)},
        query=PageQuery,
        problems=(404,),
    ),
)
async def read_log(request: ApiRequest) -> Response:
    query = paging.parse_query(request, PageQuery)
    id_ = task_id_of(request)

    async def fetch(last: LogLine | None, count: int) -> Sequence[LogLine]:
        after = paging.id_after(query.cursor) if last is None else last.id
        return await request.context.tasks.log(request.tenant_id, id_, after=after, limit=count)

    collector = PageCollector[LogLine, LogLineResponse](fetch, lambda line: len(line.text), log_response)
    lines, last = await collector.collect(query.limit)
    return json_response(LogLineList(lines, None if last is None else paging.id_cursor(last.id)))


@post(
    "/v1/tasks/{id}/cancel",
    Operation(
        id="cancelTask",
        scope=Scope.MANAGE,
        tag="Tasks",
        summary="Cancel a task: immediately, or with the next heartbeat of its worker if it has started",
        responses=_OK,
        query=NoQuery,
        body=Body(EmptyInput, is_required=False),
        problems=(404, 409),
    ),
)
async def cancel_task(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    convert(await read_optional_json(request), EmptyInput)
    return json_response(
        task_response(await request.context.tasks.cancel(request.tenant_id, task_id_of(request), by=request.caller))
    )


@post(
    "/v1/tasks/{id}/retry",
    Operation(
        id="retryTask",
        scope=Scope.MANAGE,
        tag="Tasks",
        summary="Run a finished task again, as a new task",
        responses={201: CREATED},
        query=NoQuery,
        body=Body(EmptyInput, is_required=False),
        headers=IDEMPOTENCY,
        problems=(404, 409),
    ),
)
async def retry_task(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    convert(await read_optional_json(request), EmptyInput)
    key = task_key_of(request, b"")
    return created(await request.context.tasks.retry(request.tenant_id, task_id_of(request), key=key, by=request.caller))


@post(
    "/v1/tasks/{id}/reschedule",
    Operation(
        id="rescheduleTask",
        scope=Scope.MANAGE,
        tag="Tasks",
        summary="Move a task that has not started to another time",
        responses=_OK,
        query=NoQuery,
        body=Body(RescheduleInput, {"later": {"run_at": "2027-01-31T09:00:00Z"}}),
        problems=(404, 409),
    ),
)
async def reschedule_task(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    run_at = utc((await read_as(request, RescheduleInput)).run_at, "run_at")
    task = await request.context.tasks.reschedule(request.tenant_id, task_id_of(request), run_at, by=request.caller)
    return json_response(task_response(task))


def task_id_of(request: ApiRequest) -> UUID:
    text = request.path_params["id"]
    id_ = paging.uuid_of(text)
    if id_ is None:
        raise NotFound(f"there is no task {text}")
    return id_


ROUTES = [
    *(submit_task, submit_tasks, list_tasks, get_task, list_attempts, read_log),
    *(cancel_task, retry_task, reschedule_task),
]
