"""The API as methods: `eb.client.schedules.pause("nightly")`, and the same with await on `eb.async_client`.

Each operation is written once, as a flow; `operation` makes it a plain method on a blocking client and a coroutine
on an async one, with the same arguments for type checkers too.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload
from uuid import UUID

from everbeat.client.connections import Connection
from everbeat.client.handles import cancel_task, get_task
from everbeat.client.operations import Call, Operation
from everbeat.client.requests import new_key, path_segment
from everbeat.core.errors import InvalidInput

P = ParamSpec("P")
T = TypeVar("T")


class BlockingMode:
    """Marks clients whose methods wait."""


class AsyncMode:
    """Marks clients whose methods are awaited."""


Mode = TypeVar("Mode", BlockingMode, AsyncMode)
Item = dict[str, Any]
Items = list[dict[str, Any]]
Ref = str | UUID

_PAGE = 1000


class Resource(Generic[Mode]):
    """The operations on one kind of thing."""

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


def fetch(call: Call) -> Operation[Item]:
    reply = yield call
    return reply.body or {}


def fetch_all(path: str, limit: int | None, query: Mapping[str, Any] | None = None) -> Operation[Items]:
    """Page after page, up to the limit; without one, all there is."""
    items: Items = []
    cursor = None
    while limit is None or len(items) < limit:
        size = _PAGE if limit is None else min(_PAGE, limit - len(items))
        page = yield from fetch(Call("GET", path, {**(query or {}), "limit": size, "cursor": cursor}))
        items += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    return items


def _create_call(path: str, body: Any) -> Call:
    """Makes a task: with a key, so that a lost answer does not make two."""
    return Call("POST", path, body=body, headers={"idempotency-key": new_key()})


def _schedule(ref: Ref, rest: str = "") -> str:
    return f"/v1/schedules/{path_segment(str(ref))}{rest}"


class SchedulesClient(Resource[Mode]):
    @operation
    def put(self, definition: Mapping[str, Any]) -> Operation[Item]:
        """Create or replace a schedule by its name; the definition is as in the API."""
        if "name" not in definition:
            raise InvalidInput.of("name", "is required")
        return fetch(Call("PUT", _schedule(definition["name"]), body=dict(definition)))

    @operation
    def put_many(self, definitions: Sequence[Mapping[str, Any]]) -> Operation[Items]:
        """Create or replace many; all or nothing per 1,000. Says of each whether it was created, updated or unchanged."""
        return put_schedules(definitions)

    @operation
    def get(self, ref: Ref) -> Operation[Item]:
        return fetch(Call("GET", _schedule(ref)))

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
    ) -> Operation[Items]:
        """By name. `limit` None: all."""
        filters = {"status": status, "name_prefix": name_prefix, "queue": queue, "type": type, "target": target}
        return fetch_all("/v1/schedules", limit, filters)

    @operation
    def pause(self, ref: Ref, note: str | None = None) -> Operation[Item]:
        return fetch(Call("POST", _schedule(ref, "/pause"), body={} if note is None else {"note": note}))

    @operation
    def resume(self, ref: Ref) -> Operation[Item]:
        return fetch(Call("POST", _schedule(ref, "/resume"), body={}))

    @operation
    def trigger(self, ref: Ref, payload: Any = None) -> Operation[Item]:
        """Run it now, once, beside its ticks: the new task. A payload replaces the schedule's."""
        return fetch(_create_call(_schedule(ref, "/trigger"), {} if payload is None else {"payload": payload}))

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
    ) -> Operation[Item]:
        """Tasks for ticks of the past, by default for those that made none: how many, and the first hundred ticks."""
        body: Item = {"from": from_, "to": to, "missing_only": missing_only, "dry_run": dry_run}
        if rate_per_second is not None:
            body["rate_per_second"] = rate_per_second
        return fetch(Call("POST", _schedule(ref, "/backfill"), body=body))

    @operation
    def delete(self, ref: Ref) -> Operation[None]:
        return delete_schedule(ref)

    @operation
    def ticks(
        self, ref: Ref, *, from_: datetime | None = None, to: datetime | None = None, limit: int | None = 100
    ) -> Operation[Items]:
        """The ledger: what became of each tick, and what is to come."""
        return fetch_all(_schedule(ref, "/ticks"), limit, {"from": from_, "to": to})

    @operation
    def executions(self, ref: Ref, *, state: str | None = None, limit: int | None = 100) -> Operation[Items]:
        """Its tasks, newest first."""
        return fetch_all(_schedule(ref, "/executions"), limit, {"state": state})


def put_schedules(definitions: Sequence[Mapping[str, Any]]) -> Operation[Items]:
    items: Items = []
    for start in range(0, len(definitions), _PAGE):
        batch = [dict(one) for one in definitions[start : start + _PAGE]]
        items += (yield from fetch(Call("POST", "/v1/schedules/batch", body={"schedules": batch})))["items"]
    return items


def delete_schedule(ref: Ref) -> Operation[None]:
    yield Call("DELETE", _schedule(ref))


class TasksClient(Resource[Mode]):
    @operation
    def get(self, task_id: Ref) -> Operation[Item]:
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
    ) -> Operation[Items]:
        """Newest first. `limit` None: all."""
        filters = {"state": state, "queue": queue, "type": type, "schedule": schedule, "label": label}
        return fetch_all("/v1/tasks", limit, filters)

    @operation
    def cancel(self, task_id: Ref) -> Operation[Item]:
        return cancel_task(task_id)

    @operation
    def retry(self, task_id: Ref) -> Operation[Item]:
        """A finished task again, as a new task."""
        return fetch(_create_call(f"/v1/tasks/{task_id}/retry", {}))

    @operation
    def reschedule(self, task_id: Ref, run_at: datetime) -> Operation[Item]:
        """Move a task that has not started to another time; one of the past means now."""
        return fetch(Call("POST", f"/v1/tasks/{task_id}/reschedule", body={"run_at": run_at}))

    @operation
    def attempts(self, task_id: Ref, *, limit: int | None = 100) -> Operation[Items]:
        return fetch_all(f"/v1/tasks/{task_id}/attempts", limit)

    @operation
    def log(self, task_id: Ref, *, limit: int | None = 1000) -> Operation[Items]:
        return fetch_all(f"/v1/tasks/{task_id}/log", limit)


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
    ) -> Operation[Items]:
        """Newest first. `limit` None: all."""
        filters = {"queue": queue, "type": type, "schedule": schedule, "from": from_, "to": to}
        return fetch_all("/v1/dead-letters", limit, filters)

    @operation
    def get(self, task_id: Ref) -> Operation[Item]:
        return fetch(Call("GET", f"/v1/dead-letters/{task_id}"))

    @operation
    def replay(self, task_id: Ref) -> Operation[Item]:
        """The same work as a new task; the dead letter stays, and says so."""
        return fetch(Call("POST", f"/v1/dead-letters/{task_id}/replay", body={}))

    @operation
    def replay_all(self, filter: Mapping[str, Any], *, rate_per_second: float | None = None) -> Operation[Item]:
        """Every dead letter that the filter matches, no faster than the rate."""
        body: Item = {"filter": dict(filter)}
        if rate_per_second is not None:
            body["rate_per_second"] = rate_per_second
        return fetch(Call("POST", "/v1/dead-letters/replay", body=body))

    @operation
    def purge(self, filter: Mapping[str, Any]) -> Operation[Item]:
        """Empty and hide every dead letter that the filter matches; {} matches all. How many there were."""
        return fetch(Call("POST", "/v1/dead-letters/purge", body={"filter": dict(filter)}))


class Client(Generic[Mode]):
    """What can be asked of Everbeat beside submitting: schedules, tasks and dead letters."""

    def __init__(self, connection: Connection, mode: type[Mode]) -> None:
        self.schedules: SchedulesClient[Mode] = SchedulesClient(connection, mode)
        self.tasks: TasksClient[Mode] = TasksClient(connection, mode)
        self.dead_letters: DeadLettersClient[Mode] = DeadLettersClient(connection, mode)
