"""The handle of a submitted task: gets the task, waits for its result, cancels it."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from everbeat.client.connections import Connection
from everbeat.client.durations import Duration, seconds_of
from everbeat.client.errors import TaskCancelled, TaskFailed, TaskNotFinished
from everbeat.client.exchange import Sleep
from everbeat.client.operations import Call, Operation
from everbeat.client.requests import convert
from everbeat.core.responses import TaskResponse
from everbeat.core.tasks import LIVE_STATES, TaskState

_FIRST_POLL_SECONDS, _MAX_POLL_SECONDS, _GROWTH = 0.02, 1.0, 1.5


def get_task(task_id: UUID | str, *, query: str = "") -> Operation[TaskResponse]:
    response = yield Call("GET", f"/v1/tasks/{task_id}{query}")
    return convert(response.body, TaskResponse)


def cancel_task(task_id: UUID | str) -> Operation[TaskResponse]:
    response = yield Call("POST", f"/v1/tasks/{task_id}/cancel")
    return convert(response.body, TaskResponse)


def wait_for_task(task_id: UUID, timeout: Duration | None) -> Operation[Any]:
    """Poll the task at increasing intervals. Returns its result, or raises TaskFailed, TaskCancelled or TaskNotFinished."""
    timeout_seconds = None if timeout is None else seconds_of(timeout, "timeout")
    started = time.monotonic()
    interval = _FIRST_POLL_SECONDS
    while True:
        # Without the payload, which may be large.
        task = yield from get_task(task_id, query="?payload=omit")
        if task.state not in LIVE_STATES:
            return _result_of(task)
        remaining = float("inf") if timeout_seconds is None else started + timeout_seconds - time.monotonic()
        if remaining <= 0:
            raise TaskNotFinished(task_id, task.state, timeout_seconds or 0)
        yield Sleep(min(interval, remaining))
        interval = min(interval * _GROWTH, _MAX_POLL_SECONDS)


def _result_of(task: TaskResponse) -> Any:
    if task.state == TaskState.COMPLETED:
        return task.result
    raise (TaskCancelled if task.state == TaskState.CANCELLED else TaskFailed)(task)


class TaskHandle:
    """One submitted task."""

    __slots__ = ("_connection", "id")

    def __init__(self, id_: UUID, connection: Connection) -> None:
        self.id = id_
        self._connection = connection

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

    def wait(self, timeout: Duration | None = None) -> Any:
        """Wait for the task and return its result. Raises TaskFailed or TaskCancelled, or TaskNotFinished after the timeout."""
        return self._connection.run_blocking(wait_for_task(self.id, timeout))

    async def wait_async(self, timeout: Duration | None = None) -> Any:
        return await self._connection.run_async(wait_for_task(self.id, timeout))

    def cancel(self) -> TaskResponse:
        """Cancel the task, or request cancellation if it is running. Raises ConflictProblem if it has ended."""
        return self._connection.run_blocking(cancel_task(self.id))

    async def cancel_async(self) -> TaskResponse:
        return await self._connection.run_async(cancel_task(self.id))
