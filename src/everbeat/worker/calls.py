"""Calls a handler with its hooks, and says how it ended; one path for handlers in the event loop and in threads.

In a thread the same coroutine is driven by hand: nothing in it waits there but the handler itself, which blocks.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

import msgspec

from everbeat.client.registry import Hook, Registry
from everbeat.core.protocol import LeaseFailure, LeaseCompletion
from everbeat.worker.context import Cancelled, Context
from everbeat.worker.held import Held, Stop
from everbeat.worker.journal import Journal
from everbeat.worker.outcomes import check_call, failure_of, line_of, place_of, result_of, timeout_of, trace_of

_decode = msgspec.json.Decoder().decode


class Interrupted(NamedTuple):
    """The handler was told to stop, and did; `trace` shows where."""

    trace: str | None


Outcome = LeaseCompletion | LeaseFailure | Interrupted


class Caller:
    """Knows how to call every handler of a registry."""

    def __init__(self, registry: Registry, worker: str, journal: Journal, loop: asyncio.AbstractEventLoop) -> None:
        self._worker = worker
        self._journal = journal
        self._loop = loop
        self._before = registry.before
        self._after = registry.after
        self._on_error = registry.on_error

    async def call(self, held: Held) -> Outcome:
        """Never raises; whatever the handler does is an outcome."""
        task, definition = held.task, held.definition
        try:
            payload = _decode(task.payload)
            if definition.wants_context or self._before or self._after or self._on_error:
                value = await self._with_context(held, payload)
            elif definition.is_async:
                value = await definition.function(**payload)
            else:
                value = definition.function(**payload)
            if held.stop is Stop.TIMEOUT:
                raise _too_late(held)
            result = result_of(task, value)
        except GeneratorExit:
            raise
        except BaseException as error:
            return await self._ended_by(held, error)
        if self._after:
            await self._tell(held, "after", self._after, value)
        return result

    def call_in_thread(self, held: Held) -> Outcome:
        return _drive(self.call(held))

    async def _with_context(self, held: Held, payload: Any) -> Any:
        definition = held.definition
        context = self.context_of(held)
        for hook in self._before:
            await self._run_hook(held, hook, context)
        args = (context,) if definition.wants_context else ()
        value = definition.function(*args, **payload)
        return await value if definition.is_async else value

    def context_of(self, held: Held) -> Context:
        context = held.context
        if context is None:
            context = held.context = Context(held.task, worker=self._worker, ends_at=held.ends_at)
            # Set before it is asked: the heartbeat thread either sees the context, or its word is seen here.
            if held.stop is not None:
                context.cancel()
        return context

    async def _ended_by(self, held: Held, error: BaseException) -> Outcome:
        if isinstance(error, asyncio.CancelledError | Cancelled) and held.stop is not Stop.TIMEOUT and _was_told(held):
            return Interrupted(trace_of(error))
        if held.stop is Stop.TIMEOUT:
            return await self._timed_out(held, error)
        if isinstance(error, TypeError):
            error = _misfit_of(held, error)
        elif isinstance(error, asyncio.CancelledError):
            error = _told_by_nobody(error)
        task = held.task
        failure = failure_of(task, error, held.definition)
        self._journal.failed(task, line_of(error), place_of(error))
        await self._tell(held, "on_error", self._on_error, error)
        return failure

    async def _timed_out(self, held: Held, error: BaseException) -> LeaseFailure:
        failure = timeout_of(held.task, trace_of(error))
        if not held.is_settled:
            self._journal.failed(held.task, failure.error.message, place_of(error))
        await self._tell(held, "on_error", self._on_error, _too_late(held))
        return failure

    async def _tell(self, held: Held, name: str, hooks: Sequence[Hook], value: Any) -> None:
        """The attempt has ended: nothing that happens here changes how."""
        for hook in hooks:
            try:
                await self._run_hook(held, hook, self.context_of(held), value)
            except GeneratorExit:
                raise
            except BaseException as error:
                self._journal.hook_failed(name, held.task, error)

    async def _run_hook(self, held: Held, hook: Hook, *args: Any) -> None:
        pending = hook(*args)
        if not inspect.isawaitable(pending):
            return
        if held.definition.is_async:
            await pending
        else:
            asyncio.run_coroutine_threadsafe(_awaited(pending), self._loop).result()


async def _awaited(pending: Any) -> None:
    await pending


def _drive(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    try:
        work.send(None)
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome
    raise RuntimeError("a handler in a thread waited for the event loop")


def _was_told(held: Held) -> bool:
    if held.stop is not None:
        return True
    current = asyncio.current_task() if held.definition.is_async else None
    if current is None or not current.cancelling():
        return False
    # Cancelled from outside, as when the event loop is shut down around the worker.
    held.tell_to_stop(Stop.SHUTDOWN)
    return True


def _misfit_of(held: Held, error: TypeError) -> BaseException:
    """The payload's fault, if the handler could not be called with it; otherwise the handler's own error."""
    try:
        check_call(held.definition, _decode(held.task.payload))
    except Exception as misfit:
        return misfit
    return error


def _told_by_nobody(error: BaseException) -> RuntimeError:
    told = RuntimeError("the handler ended with CancelledError though nobody cancelled it; something it awaited was cancelled")
    return told.with_traceback(error.__traceback__)


def _too_late(held: Held) -> TimeoutError:
    return TimeoutError(f"the attempt took longer than its timeout of {held.task.timeout_seconds:g} seconds")
