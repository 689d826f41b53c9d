"""The handle of a submitted task: gets the task, waits for its result, cancels it."""

from __future__ import annotations

import time
from typing import Any, Generic, TypeVar
from uuid import UUID

from everbeat.client.annotations import Converter, HandlerTypes, Mismatch
from everbeat.client.connections import Connection
from everbeat.client.durations import Duration, seconds_of
from everbeat.client.errors import TaskCancelled, TaskFailed, TaskNotFinished, UnexpectedResult
from everbeat.client.exchange import Sleep
from everbeat.client.operations import Call, Operation
from everbeat.client.requests import convert
from everbeat.core.errors import EverbeatError
from everbeat.core.responses import TaskResponse
from everbeat.core.tasks import LIVE_STATES, TaskState

Result = TypeVar("Result")

_FIRST_POLL_SECONDS, _MAX_POLL_SECONDS, _GROWTH = 0.02, 1.0, 1.5


def get_task(task_id: UUID | str, *, query: str = "") -> Operation[TaskResponse]:
    response = yield Call("GET", f"/v1/tasks/{task_id}{query}")
    return convert(response.body, TaskResponse)


def cancel_task(task_id: UUID | str) -> Operation[TaskResponse]:
    response = yield Call("POST", f"/v1/tasks/{task_id}/cancel")
    return convert(response.body, TaskResponse)


def wait_for_task(task_id: UUID, timeout: Duration | None, types: HandlerTypes | None = None) -> Operation[Any]:
    """Poll the task at increasing intervals. Returns its result, or raises TaskFailed, TaskCancelled or TaskNotFinished."""
    timeout_seconds = None if timeout is None else seconds_of(timeout, "timeout")
    started = time.monotonic()
    interval = _FIRST_POLL_SECONDS
    while True:
        # Without the payload, which may be large.
        task = yield from get_task(task_id, query="?payload=omit")
        if task.state not in LIVE_STATES:
            return _result_of(task, types)
        remaining = float("inf") if timeout_seconds is None else started + timeout_seconds - time.monotonic()
        if remaining <= 0:
            raise TaskNotFinished(task_id, task.state, timeout_seconds or 0, (yield from _why(task_id)))
        yield Sleep(min(interval, remaining))
        interval = min(interval * _GROWTH, _MAX_POLL_SECONDS)


def _why(task_id: UUID) -> Operation[str | None]:
    """Return what the task waits for, if the server says so: it may be older, or the key may not allow it."""
    try:
        response = yield Call("GET", f"/v1/tasks/{task_id}/why", is_optional=True)
        return str(response.body["explanation"])
    except (EverbeatError, LookupError, TypeError):
        return None


def _result_of(task: TaskResponse, types: HandlerTypes | None) -> Any:
    if task.state == TaskState.COMPLETED:
        converter = None if types is None else types.result
        return task.result if converter is None else _converted(task, converter)
    raise (TaskCancelled if task.state == TaskState.CANCELLED else TaskFailed)(task)


def _converted(task: TaskResponse, converter: Converter) -> Any:
    try:
        return converter.from_json(task.result)
    except Mismatch as error:
        result = task.result
        is_truncated = isinstance(result, dict) and result.get("cut") is True
        raise UnexpectedResult(task, result.get("note", "") if is_truncated else str(error)) from None


class TaskHandle(Generic[Result]):
    """One submitted task. `Result` is the type that its handler returns."""

    __slots__ = ("_connection", "_types", "id")

    def __init__(self, id_: UUID, connection: Connection, types: HandlerTypes | None = None) -> None:
        self.id = id_
        self._connection = connection
        self._types = types

    def __repr__(self) -> str:
        return f"TaskHandle({self.id})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def get(self) -> TaskResponse:
        """Return the task as it is now, with its state, attempt, progress, result and error."""
        return self._connection.run_blocking(get_task(self.id))

    async def get_async(self) -> TaskResponse:
        return await self._connection.run_async(get_task(self.id))

    def wait(self, timeout: Duration | None = None) -> Result:
        """Wait for the task and return its result, converted to the type that the handler's annotation says.

        Raises TaskFailed or TaskCancelled, TaskNotFinished after the timeout, or UnexpectedResult.
        """
        result: Result = self._connection.run_blocking(wait_for_task(self.id, timeout, self._types))
        return result

    async def wait_async(self, timeout: Duration | None = None) -> Result:
        result: Result = await self._connection.run_async(wait_for_task(self.id, timeout, self._types))
        return result

    def cancel(self) -> TaskResponse:
        """Cancel the task, or request cancellation if it is running. Raises ConflictProblem if it has ended."""
        return self._connection.run_blocking(cancel_task(self.id))

    async def cancel_async(self) -> TaskResponse:
        return await self._connection.run_async(cancel_task(self.id))
