"""Builds the report of an attempt from the handler's result or error. Large results and errors are truncated, with a note."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import msgspec

from everbeat.client.arguments import call_problem
from everbeat.client.declarations import CONTEXT
from everbeat.client.errors import NonRetryable, RetryLater
from everbeat.client.registry import TaskDefinition
from everbeat.core.errors import EverbeatError
from everbeat.core.protocol import MAX_DELAY_SECONDS, ErrorInput, LeaseCompletion, LeaseFailure
from everbeat.core.retries import CANCELLED_KIND, TIMEOUT_KIND
from everbeat.core.submissions import MAX_ERROR_CHARACTERS, MAX_RESULT_BYTES, MAX_TRACE_CHARACTERS, truncated_result
from everbeat.core.tasks import ClaimedTask
from everbeat.worker.context import storable, truncate

_WORKER_PACKAGE = str(Path(__file__).parent)
_STANDARD_LIBRARY = str(Path(traceback.__file__).parent)

_encode = msgspec.json.Encoder().encode


class InvalidTaskData(NonRetryable):
    """The payload does not match the handler, or JSON cannot represent the result. A retry would not help."""


class CommandFailed(EverbeatError):
    """A command of a shell task failed. Its message has the end of the output; a traceback would add nothing."""


class CommandTimedOut(CommandFailed):
    """A command was ended because it had not ended in time."""


# Results


def result_of(task: ClaimedTask, value: Any) -> LeaseCompletion:
    """Return the report of a result. Raises InvalidTaskData if JSON cannot represent it."""
    if value is None:
        return LeaseCompletion(id=task.id, fence=task.fence)
    encoded = _encoded(task, value)
    if len(encoded) > MAX_RESULT_BYTES:
        encoded = _encode(truncated_result(encoded))
    return LeaseCompletion(id=task.id, fence=task.fence, result=msgspec.Raw(encoded))


def _encoded(task: ClaimedTask, value: Any) -> bytes:
    try:
        return _encode(value)
    except Exception as error:
        if inspect.iscoroutine(value):
            value.close()
        raise InvalidTaskData(
            f"the handler of {task.type} completed, but returned a {type(value).__name__} that JSON cannot represent "
            f"({type(error).__name__}: {error}). It is not retried, because its work is done. Return strings, numbers, True, "
            "False, None, or lists and dicts of these"
        ) from None


# Failures


def failure_of(task: ClaimedTask, error: BaseException, definition: TaskDefinition | None = None) -> LeaseFailure:
    """Return the report of an error: its traceback, starting at the handler, and whether and when to retry."""
    message = text_of(error) or type(error).__name__
    trace = None if isinstance(error, InvalidTaskData | CommandFailed) else trace_of(error)
    declared = definition.non_retryable if definition is not None else ()
    non_retryable: tuple[type[BaseException], ...] = (NonRetryable, *declared)
    return LeaseFailure(
        id=task.id,
        fence=task.fence,
        error=ErrorInput(message=truncate(message, MAX_ERROR_CHARACTERS), kind=kind_of(error), trace=trace),
        retryable=not isinstance(error, non_retryable),
        retry_in_seconds=min(error.seconds, MAX_DELAY_SECONDS) if isinstance(error, RetryLater) else None,
    )


def timeout_of(task: ClaimedTask, trace: str | None) -> LeaseFailure:
    message = f"the attempt took longer than its timeout of {task.timeout_seconds:g} seconds"
    return LeaseFailure(id=task.id, fence=task.fence, error=ErrorInput(message=message, kind=TIMEOUT_KIND, trace=trace))


def cancelled_of(task: ClaimedTask, trace: str | None = None) -> LeaseFailure:
    error = ErrorInput(message="the task was cancelled", kind=CANCELLED_KIND, trace=trace)
    return LeaseFailure(id=task.id, fence=task.fence, error=error)


def unknown_type_of(task: ClaimedTask) -> LeaseFailure:
    message = f"this worker has no handler for tasks of type {task.type}; is another version of the app still running?"
    return LeaseFailure(id=task.id, fence=task.fence, error=ErrorInput(message=message, kind="unknown_type"))


def rejected_of(task: ClaimedTask, reason: str) -> LeaseFailure:
    """Return the report of an outcome that the server rejected. It is not retried, because the work is done."""
    message = truncate(f"the handler completed, but the server rejected its outcome: {reason}", MAX_ERROR_CHARACTERS)
    return LeaseFailure(id=task.id, fence=task.fence, error=ErrorInput(message=message, kind="refused"), retryable=False)


def kind_of(error: BaseException) -> str:
    kind = type(error)
    if kind is CommandTimedOut:
        return TIMEOUT_KIND
    name = kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    return truncate(name, 200)


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return f"<a {type(error).__name__} that cannot be formatted>"


def summary_of(error: BaseException) -> str:
    """Return the error as one short line, for the log."""
    text = text_of(error)
    first = text.strip().partition("\n")[0]
    return truncate(f"{kind_of(error)}: {first}", 300)


def trace_of(error: BaseException) -> str:
    """Return the traceback, starting at the handler's first frame. Of a long traceback, the end is kept."""
    formatted = traceback.TracebackException(type(error), error, _skip_worker_frames(error.__traceback__), compact=True)
    try:
        # Each part is truncated separately, so that a long message does not displace the frames.
        text = "".join(truncate(part.rstrip("\n"), MAX_ERROR_CHARACTERS) + "\n" for part in formatted.format())
    except Exception:
        text = f"<the traceback of a {type(error).__name__} that cannot be formatted>"
    return _tail(text)


def stack_of(frame: FrameType) -> str:
    """Return the current stack of a thread, starting at the handler's first frame."""
    frames = [entry for entry in traceback.extract_stack(frame) if not entry.filename.startswith(_WORKER_PACKAGE)]
    while frames and frames[0].filename.endswith(("threading.py", "runners.py", "base_events.py", "events.py")):
        frames.pop(0)
    return _tail("Stack when the time limit was reached:\n" + "".join(traceback.format_list(frames)))


def location_of(error: BaseException) -> str | None:
    """Return where the error was raised, such as "file.py:12 in function"."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or last.tb_frame.f_code.co_filename.startswith(_WORKER_PACKAGE):
        return None
    code = last.tb_frame.f_code
    return f"{Path(code.co_filename).name}:{last.tb_lineno} in {code.co_name}"


def _skip_worker_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_WORKER_PACKAGE):
        trace = trace.tb_next
    return trace


def _tail(text: str) -> str:
    if len(text) > MAX_TRACE_CHARACTERS:
        note = f"… (the first {len(text) - MAX_TRACE_CHARACTERS:,} characters were cut)\n"
        text = note + text[len(note) - MAX_TRACE_CHARACTERS :]
    return storable(text)


# Payloads


def check_call(definition: TaskDefinition, payload: Any) -> None:
    """Raise InvalidTaskData if the payload does not match the handler's signature. Called only after a TypeError."""
    if not isinstance(payload, dict):
        kind = type(payload).__name__
        raise InvalidTaskData(
            f"the payload of {definition.type} must be an object with the handler's arguments, but is a {kind}"
        )
    signature = _signature(definition.function)
    if signature is None:
        return
    arguments = list(signature.parameters.values())[1 if definition.wants_context else 0 :]
    problem = call_problem(signature.replace(parameters=arguments), 0, payload)
    if problem is None and definition.wants_context and CONTEXT in payload:
        problem = f"unknown argument {CONTEXT}"  # it is not an argument, although the handler has **arguments
    if problem is not None:
        raise InvalidTaskData(f"the payload does not match the handler of {definition.type}: {problem}")


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def frame_of_thread(thread_id: int | None) -> FrameType | None:
    return None if thread_id is None else sys._current_frames().get(thread_id)


def line_of_frame(frame: FrameType) -> str:
    """Return the innermost two lines of a stack outside the worker and the standard library, or its innermost line."""
    skipped = (_WORKER_PACKAGE, _STANDARD_LIBRARY)
    entries = [entry for entry in traceback.extract_stack(frame) if not entry.filename.startswith(skipped)]
    shown = entries[-2:] or traceback.extract_stack(frame)[-1:]
    return ", ".join(f"{Path(entry.filename).name}:{entry.lineno} in {entry.name}" for entry in reversed(shown))
