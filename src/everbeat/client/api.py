"""The HTTP API as methods: `eb.client.schedules.pause("nightly")`, or `await eb.async_client.schedules.pause("nightly")`.

Each operation is written once, as a generator. `operation` turns it into a plain method on a blocking client and a coroutine
on an async client, with the same argument types.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload
from uuid import UUID

from everbeat.client.connections import Connection
from everbeat.client.handles import cancel_task, get_task
from everbeat.client.operations import Call, Operation
from everbeat.client.requests import convert, new_key, path_segment
from everbeat.core.errors import InvalidInput
from everbeat.core.responses import (
    AttemptResponse,
    BackfillResponse,
    DeadLetterResponse,
    LogLineResponse,
    PurgeResponse,
    RegisteredScheduleResponse,
    ReplayResponse,
    ScheduleResponse,
    TaskResponse,
    TickResponse,
)

P = ParamSpec("P")
T = TypeVar("T")


class BlockingMode:
    """Type parameter of clients whose methods block."""


class AsyncMode:
    """Type parameter of clients whose methods are awaited."""


Mode = TypeVar("Mode", BlockingMode, AsyncMode)
Ref = str | UUID

_PAGE_SIZE = 1000


class Resource(Generic[Mode]):
    """The operations on one kind of resource."""

    def __init__(self, connection: Connection, mode: type[Mode]) -> None:
        self._connection = connection
        self._mode: type[BlockingMode] | type[AsyncMode] = mode


class operation(Generic[P, T]):
    def __init__(self, operation: Callable[Concatenate[Any, P], Operation[T]]) -> None:
        self._operation = operation
        self.__doc__ = operation.__doc__

    @overload
    def __get__(self, resource: Resource[BlockingMode], kind: Any = None) -> Callable[P, T]: ...
    @overload
    def __get__(self, resource: Resource[AsyncMode], kind: Any = None) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, resource: Resource[Any], kind: Any = None) -> Callable[P, Any]:
        run = resource._connection.run_blocking if resource._mode is BlockingMode else resource._connection.run_async

        @functools.wraps(self._operation)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return run(self._operation(resource, *args, **kwargs))

        return call


def fetch(call: Call, type_: type[T]) -> Operation[T]:
    response = yield call
    return convert(response.body, type_)


def fetch_all(
    path: str, type_: type[T], limit: int | None, query: Mapping[str, Any] | None = None
) -> Operation[builtins.list[T]]:
    """Read pages until `limit` items are fetched. None fetches all items."""
    items: list[T] = []
    cursor = None
    while limit is None or len(items) < limit:
        size = _PAGE_SIZE if limit is None else min(_PAGE_SIZE, limit - len(items))
        page = yield Call("GET", path, {**(query or {}), "limit": size, "cursor": cursor})
        items += [convert(item, type_) for item in page.body["items"]]
        cursor = page.body["next_cursor"]
        if cursor is None:
            break
    return items


def _create_call(path: str, body: Any) -> Call:
    """Return a request that creates a task, with an idempotency key, so that repeating it does not create a second task."""
    return Call("POST", path, body=body, headers={"idempotency-key": new_key()})


def _schedule_path(ref: Ref, rest: str = "") -> str:
    return f"/v1/schedules/{path_segment(str(ref))}{rest}"


class SchedulesClient(Resource[Mode]):
    @operation
    def put(self, definition: Mapping[str, Any]) -> Operation[ScheduleResponse]:
        """Create or replace a schedule by name. The definition has the fields of the HTTP API."""
        if "name" not in definition:
            raise InvalidInput.of("name", "is required")
        return fetch(Call("PUT", _schedule_path(definition["name"]), body=dict(definition)), ScheduleResponse)

    @operation
    def put_many(self, definitions: Sequence[Mapping[str, Any]]) -> Operation[builtins.list[RegisteredScheduleResponse]]:
        """Create or replace schedules, in atomic batches of 1,000. The status of each is created, updated or unchanged."""
        return put_schedules(definitions)

    @operation
    def get(self, ref: Ref) -> Operation[ScheduleResponse]:
        return fetch(Call("GET", _schedule_path(ref)), ScheduleResponse)

    @operation
    def list(
        self,
        *,
        status: str | None = None,
        name_prefix: str | None = None,
        queue: str | None = None,
        type: str | None = None,
        target: str | None = None,
        limit: int | None = 100,
    ) -> Operation[builtins.list[ScheduleResponse]]:
        """List schedules by name. `limit=None` returns all."""
        filters = {"status": status, "name_prefix": name_prefix, "queue": queue, "type": type, "target": target}
        return fetch_all("/v1/schedules", ScheduleResponse, limit, filters)

    @operation
    def pause(self, ref: Ref, note: str | None = None) -> Operation[ScheduleResponse]:
        return fetch(Call("POST", _schedule_path(ref, "/pause"), body={} if note is None else {"note": note}), ScheduleResponse)

    @operation
    def resume(self, ref: Ref) -> Operation[ScheduleResponse]:
        return fetch(Call("POST", _schedule_path(ref, "/resume"), body={}), ScheduleResponse)

    @operation
    def trigger(self, ref: Ref, payload: Any = None) -> Operation[TaskResponse]:
        """Create a task of the schedule now, in addition to its ticks. `payload` replaces the payload of the schedule."""
        return fetch(
            _create_call(_schedule_path(ref, "/trigger"), {} if payload is None else {"payload": payload}), TaskResponse
        )

    @operation
    def backfill(
        self,
        ref: Ref,
        *,
        from_: datetime,
        to: datetime,
        missing_only: bool = True,
        dry_run: bool = False,
        rate_per_second: float | None = None,
    ) -> Operation[BackfillResponse]:
        """Create tasks for past ticks, by default only for ticks without a task."""
        body: dict[str, Any] = {"from": from_, "to": to, "missing_only": missing_only, "dry_run": dry_run}
        if rate_per_second is not None:
            body["rate_per_second"] = rate_per_second
        return fetch(Call("POST", _schedule_path(ref, "/backfill"), body=body), BackfillResponse)

    @operation
    def delete(self, ref: Ref) -> Operation[None]:
        return delete_schedule(ref)

    @operation
    def ticks(
        self, ref: Ref, *, from_: datetime | None = None, to: datetime | None = None, limit: int | None = 100
    ) -> Operation[builtins.list[TickResponse]]:
        """List the ledger: past ticks with their outcomes, and upcoming ticks."""
        return fetch_all(_schedule_path(ref, "/ticks"), TickResponse, limit, {"from": from_, "to": to})

    @operation
    def executions(
        self, ref: Ref, *, state: str | None = None, limit: int | None = 100
    ) -> Operation[builtins.list[TaskResponse]]:
        """List the tasks of the schedule, newest first."""
        return fetch_all(_schedule_path(ref, "/executions"), TaskResponse, limit, {"state": state})


def put_schedules(definitions: Sequence[Mapping[str, Any]]) -> Operation[list[RegisteredScheduleResponse]]:
    items: list[RegisteredScheduleResponse] = []
    for start in range(0, len(definitions), _PAGE_SIZE):
        batch = [dict(definition) for definition in definitions[start : start + _PAGE_SIZE]]
        response = yield Call("POST", "/v1/schedules/batch", body={"schedules": batch})
        items += [convert(item, RegisteredScheduleResponse) for item in response.body["items"]]
    return items


def delete_schedule(ref: Ref) -> Operation[None]:
    yield Call("DELETE", _schedule_path(ref))


class TasksClient(Resource[Mode]):
    @operation
    def get(self, task_id: Ref) -> Operation[TaskResponse]:
        return get_task(task_id)

    @operation
    def list(
        self,
        *,
        state: str | None = None,
        queue: str | None = None,
        type: str | None = None,
        schedule: str | None = None,
        label: str | None = None,
        limit: int | None = 100,
    ) -> Operation[builtins.list[TaskResponse]]:
        """List tasks, newest first. `limit=None` returns all."""
        filters = {"state": state, "queue": queue, "type": type, "schedule": schedule, "label": label}
        return fetch_all("/v1/tasks", TaskResponse, limit, filters)

    @operation
    def cancel(self, task_id: Ref) -> Operation[TaskResponse]:
        return cancel_task(task_id)

    @operation
    def retry(self, task_id: Ref) -> Operation[TaskResponse]:
        """Run a finished task again, as a new task."""
        return fetch(_create_call(f"/v1/tasks/{task_id}/retry", {}), TaskResponse)

    @operation
    def reschedule(self, task_id: Ref, run_at: datetime) -> Operation[TaskResponse]:
        """Change the start time of a task that has not started. A time in the past means now."""
        return fetch(Call("POST", f"/v1/tasks/{task_id}/reschedule", body={"run_at": run_at}), TaskResponse)

    @operation
    def attempts(self, task_id: Ref, *, limit: int | None = 100) -> Operation[builtins.list[AttemptResponse]]:
        return fetch_all(f"/v1/tasks/{task_id}/attempts", AttemptResponse, limit)

    @operation
    def log(self, task_id: Ref, *, limit: int | None = 1000) -> Operation[builtins.list[LogLineResponse]]:
        return fetch_all(f"/v1/tasks/{task_id}/log", LogLineResponse, limit)


class DeadLettersClient(Resource[Mode]):
    @operation
    def list(
        self,
        *,
        queue: str | None = None,
        type: str | None = None,
        schedule: str | None = None,
        from_: datetime | None = None,
        to: datetime | None = None,
        limit: int | None = 100,
    ) -> Operation[builtins.list[DeadLetterResponse]]:
        """List dead letters, newest first. `limit=None` returns all."""
        filters = {"queue": queue, "type": type, "schedule": schedule, "from": from_, "to": to}
        return fetch_all("/v1/dead-letters", DeadLetterResponse, limit, filters)

    @operation
    def get(self, task_id: Ref) -> Operation[DeadLetterResponse]:
        return fetch(Call("GET", f"/v1/dead-letters/{task_id}"), DeadLetterResponse)

    @operation
    def replay(self, task_id: Ref) -> Operation[TaskResponse]:
        """Create a new task from the dead letter. The dead letter is kept and refers to the new task."""
        return fetch(Call("POST", f"/v1/dead-letters/{task_id}/replay", body={}), TaskResponse)

    @operation
    def replay_all(self, filter: Mapping[str, Any], *, rate_per_second: float | None = None) -> Operation[ReplayResponse]:
        """Replay all dead letters that match the filter, at up to `rate_per_second`."""
        body: dict[str, Any] = {"filter": dict(filter)}
        if rate_per_second is not None:
            body["rate_per_second"] = rate_per_second
        return fetch(Call("POST", "/v1/dead-letters/replay", body=body), ReplayResponse)

    @operation
    def purge(self, filter: Mapping[str, Any]) -> Operation[PurgeResponse]:
        """Remove the payloads of all matching dead letters and hide them. `{}` matches all. Returns the number purged."""
        return fetch(Call("POST", "/v1/dead-letters/purge", body={"filter": dict(filter)}), PurgeResponse)


class RequestsClient(Resource[Mode]):
    """Any request of the HTTP API, for what has no method of its own. Responses are decoded JSON."""

    @operation
    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Operation[Any]:
        """Send a request, for example `send("GET", "/v1/queues")`, and return the body of the response."""
        return fetch(Call(method, path, query, body, headers), object)

    @operation
    def pages(
        self, path: str, query: Mapping[str, Any] | None = None, *, limit: int | None = 100
    ) -> Operation[builtins.list[Any]]:
        """Return the items of a list. `limit=None` returns all."""
        return fetch_all(path, dict[str, Any], limit, query)


class Client(Generic[Mode]):
    """A client of the HTTP API: schedules, tasks, dead letters, and any other request."""

    def __init__(self, connection: Connection, mode: type[Mode]) -> None:
        self.schedules: SchedulesClient[Mode] = SchedulesClient(connection, mode)
        self.tasks: TasksClient[Mode] = TasksClient(connection, mode)
        self.dead_letters: DeadLettersClient[Mode] = DeadLettersClient(connection, mode)
        self.requests: RequestsClient[Mode] = RequestsClient(connection, mode)
