"""Calls a handler with its hooks and returns its outcome. Handlers in the event loop and in threads share this code.

In a thread the coroutine runs to its end in one step: only the handler itself waits there, and it blocks.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

import msgspec

from everbeat.client.registry import Hook, Registry
from everbeat.core.protocol import LeaseCompletion, LeaseFailure
from everbeat.worker.context import Cancelled, Context
from everbeat.worker.outcomes import check_call, failure_of, line_of, place_of, result_of, timeout_of, trace_of
from everbeat.worker.running_task import RunningTask, StopReason
from everbeat.worker.telemetry import WorkerTelemetry

_decode = msgspec.json.Decoder().decode


class Interrupted(NamedTuple):
    """The handler stopped as requested. `trace` shows where."""

    trace: str | None


Outcome = LeaseCompletion | LeaseFailure | Interrupted


class HandlerCaller:
    """Calls the handlers of a registry."""

    def __init__(self, registry: Registry, worker: str, telemetry: WorkerTelemetry, loop: asyncio.AbstractEventLoop) -> None:
        self._worker = worker
        self._telemetry = telemetry
        self._loop = loop
        self._before = registry.before
        self._after = registry.after
        self._on_error = registry.on_error

    async def call(self, running_task: RunningTask) -> Outcome:
        """Never raises: an error of the handler is an outcome too."""
        task, definition = running_task.task, running_task.definition
        try:
            payload = _decode(task.payload)
            if definition.wants_context or self._before or self._after or self._on_error:
                value = await self._with_context(running_task, payload)
            elif definition.is_async:
                value = await definition.function(**payload)
            else:
                value = definition.function(**payload)
            if running_task.stop is StopReason.TIMEOUT:
                raise _timeout_error(running_task)
            result = result_of(task, value)
        except GeneratorExit:
            raise
        except BaseException as error:
            return await self._ended_by(running_task, error)
        if self._after:
            await self._run_hooks(running_task, "after", self._after, value)
        return result

    def call_in_thread(self, running_task: RunningTask) -> Outcome:
        return _run_to_completion(self.call(running_task))

    async def _with_context(self, running_task: RunningTask, payload: Any) -> Any:
        definition = running_task.definition
        context = self.context_of(running_task)
        for hook in self._before:
            await self._run_hook(running_task, hook, context)
        args = (context,) if definition.wants_context else ()
        value = definition.function(*args, **payload)
        return await value if definition.is_async else value

    def context_of(self, running_task: RunningTask) -> Context:
        context = running_task.context
        if context is None:
            context = running_task.context = Context(running_task.task, worker=self._worker, ends_at=running_task.ends_at)
            # The context is set first, and `stop` read after it: either the heartbeat thread sees the context, or this thread
            # sees `stop`.
            if running_task.stop is not None:
                context.cancel()
        return context

    async def _ended_by(self, running_task: RunningTask, error: BaseException) -> Outcome:
        if (
            isinstance(error, asyncio.CancelledError | Cancelled)
            and running_task.stop is not StopReason.TIMEOUT
            and _was_stop_requested(running_task)
        ):
            return Interrupted(trace_of(error))
        if running_task.stop is StopReason.TIMEOUT:
            return await self._timed_out(running_task, error)
        if isinstance(error, TypeError):
            error = _payload_error_of(running_task, error)
        elif isinstance(error, asyncio.CancelledError):
            error = _unexpected_cancellation(error)
        task = running_task.task
        failure = failure_of(task, error, running_task.definition)
        self._telemetry.failed(task, line_of(error), place_of(error))
        await self._run_hooks(running_task, "on_error", self._on_error, error)
        return failure

    async def _timed_out(self, running_task: RunningTask, error: BaseException) -> LeaseFailure:
        failure = timeout_of(running_task.task, trace_of(error))
        if not running_task.is_finished:
            self._telemetry.failed(running_task.task, failure.error.message, place_of(error))
        await self._run_hooks(running_task, "on_error", self._on_error, _timeout_error(running_task))
        return failure

    async def _run_hooks(self, running_task: RunningTask, name: str, hooks: Sequence[Hook], value: Any) -> None:
        """The attempt has ended: an error of a hook is logged and does not change the outcome."""
        for hook in hooks:
            try:
                await self._run_hook(running_task, hook, self.context_of(running_task), value)
            except GeneratorExit:
                raise
            except BaseException as error:
                self._telemetry.hook_failed(name, running_task.task, error)

    async def _run_hook(self, running_task: RunningTask, hook: Hook, *args: Any) -> None:
        pending = hook(*args)
        if not inspect.isawaitable(pending):
            return
        if running_task.definition.is_async:
            await pending
        else:
            asyncio.run_coroutine_threadsafe(_awaited(pending), self._loop).result()


async def _awaited(pending: Any) -> None:
    await pending


def _run_to_completion(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    try:
        work.send(None)
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome
    raise RuntimeError("a handler in a thread waited for the event loop")


def _was_stop_requested(running_task: RunningTask) -> bool:
    if running_task.stop is not None:
        return True
    current = asyncio.current_task() if running_task.definition.is_async else None
    if current is None or not current.cancelling():
        return False
    # Cancelled by other code, for example by the shutdown of the event loop.
    running_task.request_stop(StopReason.SHUTDOWN)
    return True


def _payload_error_of(running_task: RunningTask, error: TypeError) -> BaseException:
    """An error of the payload if the handler cannot be called with it, otherwise the handler's own error."""
    try:
        check_call(running_task.definition, _decode(running_task.task.payload))
    except Exception as misfit:
        return misfit
    return error


def _unexpected_cancellation(error: BaseException) -> RuntimeError:
    unexpected = RuntimeError(
        "the handler ended with CancelledError although it was not cancelled; something it awaited was cancelled"
    )
    return unexpected.with_traceback(error.__traceback__)


def _timeout_error(running_task: RunningTask) -> TimeoutError:
    return TimeoutError(f"the attempt took longer than its timeout of {running_task.task.timeout_seconds:g} seconds")
