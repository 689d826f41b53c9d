"""Calls a handler with its hooks and returns its outcome, on the event loop or in a thread.

In a thread, the coroutine completes in one step, because a sync handler blocks and nothing else is awaited.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

import msgspec

from everbeat.client.annotations import Mismatch
from everbeat.client.registry import Hook, Registry, TaskDefinition
from everbeat.core.protocol import LeaseCompletion, LeaseFailure
from everbeat.logs import current_task
from everbeat.worker.context import Cancelled, Context
from everbeat.worker.outcomes import (
    InvalidTaskData,
    check_call,
    failure_of,
    location_of,
    result_of,
    summary_of,
    timeout_of,
    trace_of,
)
from everbeat.worker.running_task import RunningTask, StopReason
from everbeat.worker.telemetry import WorkerTelemetry
from everbeat.worker.tracing import handler_spans

_decode = msgspec.json.Decoder().decode


def _arguments_of(definition: TaskDefinition, payload: Any) -> Any:
    """Return the payload with the annotated types of the handler's parameters. Raises InvalidTaskData."""
    if not isinstance(payload, dict) or not definition.types.parameters:
        return payload
    try:
        return definition.types.convert(payload)
    except Mismatch as error:
        raise InvalidTaskData(f"the payload does not match the handler of {definition.type}: {error}") from None


class Interrupted(NamedTuple):
    """The handler was stopped. `trace` shows where."""

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
        self._spans = handler_spans()

    async def call(self, running_task: RunningTask) -> Outcome:
        """Call the handler and return its outcome. An error of the handler is returned as an outcome, not raised."""
        token = current_task.set(running_task.task)
        try:
            if self._spans is None:
                return await self._call(running_task)
            with self._spans.attempt(running_task.task) as span:
                outcome = await self._call(running_task)
                if isinstance(outcome, LeaseFailure):
                    self._spans.fail(span, outcome.error.message)
                return outcome
        finally:
            current_task.reset(token)

    async def _call(self, running_task: RunningTask) -> Outcome:
        task, definition = running_task.task, running_task.definition
        try:
            payload = _arguments_of(definition, _decode(task.payload))
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
            return await self._outcome_of_error(running_task, error)
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
            # Set the context before reading `stop`. Either the heartbeat thread sees the context, or this thread sees `stop`.
            if running_task.stop is not None:
                context.cancel()
        return context

    async def _outcome_of_error(self, running_task: RunningTask, error: BaseException) -> Outcome:
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
        self._telemetry.failed(task, summary_of(error), location_of(error))
        await self._run_hooks(running_task, "on_error", self._on_error, error)
        return failure

    async def _timed_out(self, running_task: RunningTask, error: BaseException) -> LeaseFailure:
        failure = timeout_of(running_task.task, trace_of(error))
        if not running_task.is_finished:
            self._telemetry.failed(running_task.task, failure.error.message, location_of(error))
        await self._run_hooks(running_task, "on_error", self._on_error, _timeout_error(running_task))
        return failure

    async def _run_hooks(self, running_task: RunningTask, name: str, hooks: Sequence[Hook], value: Any) -> None:
        """Run hooks after the handler has ended. An error of a hook is logged and does not change the outcome."""
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
    raise RuntimeError("a sync handler awaited the event loop")


def _was_stop_requested(running_task: RunningTask) -> bool:
    if running_task.stop is not None:
        return True
    current = asyncio.current_task() if running_task.definition.is_async else None
    if current is None or not current.cancelling():
        return False
    # Cancelled by other code, for example at the shutdown of the event loop.
    running_task.request_stop(StopReason.SHUTDOWN)
    return True


def _payload_error_of(running_task: RunningTask, error: TypeError) -> BaseException:
    """Return InvalidTaskData if the payload does not match the handler's signature, otherwise the handler's own error."""
    try:
        check_call(running_task.definition, _decode(running_task.task.payload))
    except Exception as payload_error:
        return payload_error
    return error


def _unexpected_cancellation(error: BaseException) -> RuntimeError:
    unexpected = RuntimeError(
        "the handler raised CancelledError although it was not cancelled; something that it awaited was cancelled"
    )
    return unexpected.with_traceback(error.__traceback__)


def _timeout_error(running_task: RunningTask) -> TimeoutError:
    return TimeoutError(f"the attempt took longer than its timeout of {running_task.task.timeout_seconds:g} seconds")
