"""The exceptions of the SDK, all subclasses of EverbeatError, and their mapping from problems of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from everbeat.core.errors import (
    Conflict,
    EverbeatError,
    InvalidInput,
    NotFound,
    QuotaExceeded,
    StoreLocked,
    StoreRefused,
    StoreUnavailable,
    StoreUnusable,
    TooLarge,
)
from everbeat.core.responses import TaskResponse


class ServerProblem(EverbeatError):
    """The server rejected a request. `problem` is the response body (RFC 9457). `errors` lists the invalid fields.

    `is_certain` is False if an earlier try of the same request may have taken effect: its response was lost, or was a 503.
    """

    def __init__(self, status: int, problem: Mapping[str, Any], retry_after_seconds: float | None = None) -> None:
        super().__init__(status, problem, retry_after_seconds)
        self.status = status
        self.problem = dict(problem)
        self.retry_after_seconds = retry_after_seconds
        self.is_certain = True

    @property
    def slug(self) -> str:
        """The kind of problem, from the list in docs/reference/errors.md."""
        return str(self.problem.get("type", "")).rpartition(":")[2]

    @property
    def errors(self) -> list[dict[str, str]]:
        found = self.problem.get("errors")
        return found if isinstance(found, list) else []

    def __str__(self) -> str:
        detail = str(self.problem.get("detail") or self.problem.get("title") or "the server gave no reason")
        field_errors = [f"{error.get('field')}: {error.get('message')}" for error in self.errors]
        rest = [line for line in field_errors if line not in detail]
        text = "; ".join([detail, *rest])
        request_id = self.problem.get("request_id")
        return f"{text} (HTTP {self.status}{f', request {request_id}' if request_id else ''})"


class NotFoundProblem(ServerProblem, NotFound):
    """No object has this name or id, or it belongs to another tenant."""


class ConflictProblem(ServerProblem, Conflict):
    """The request is valid, but the current state does not allow it."""


class NotAllowed(ServerProblem):
    """The API key is missing or invalid, or its scope does not allow the request."""

    @property
    def is_final(self) -> bool:
        """Whether the response is from Everbeat, not from a proxy, so that a retry with this key would fail too."""
        return self.slug in ("unauthenticated", "forbidden")

    def __str__(self) -> str:
        advice = "is EVERBEAT_API_KEY set to a key of this server?" if self.status == 401 else "use a key with that scope"
        return f"{super().__str__()}; {advice}"


class NotReachable(EverbeatError):
    """There was no response from the server. A request that was sent may or may not have taken effect."""

    def __init__(self, url: str, reason: str, tried_seconds: float = 0.0) -> None:
        super().__init__(url, reason, tried_seconds)
        self.url = url
        self.reason = reason
        self.tried_seconds = tried_seconds

    def __str__(self) -> str:
        tried = f"; tried for {self.tried_seconds:.0f} seconds" if self.tried_seconds >= 1 else ""
        return (
            f"cannot reach Everbeat at {self.url} ({self.reason}{tried}); is the server running (everbeat dev starts one), "
            "and is EVERBEAT_URL correct?"
        )


class UnexpectedResponse(EverbeatError):
    """The response is not from Everbeat, or is from an incompatible version."""


class InvalidUrl(EverbeatError, ValueError):
    """The URL passed to Everbeat(...) is invalid."""


class RegistrationError(EverbeatError):
    """The declaration of a task, schedule or hook is invalid."""


class InvalidArguments(EverbeatError, TypeError):
    """The arguments do not match the handler, or JSON cannot represent them."""


class BlockingCall(EverbeatError, RuntimeError):
    """A blocking call was made on the event loop that must process it."""


class TaskFailed(EverbeatError):
    """A task ended without a result. `task` is the task as it ended, and `error` is its last error, if any."""

    def __init__(self, task: TaskResponse) -> None:
        super().__init__(task)
        self.task = task
        self.error = task.error

    def __str__(self) -> str:
        task, error = self.task, self.error
        reason = "" if error is None else ": ".join(part for part in (error.kind, error.message) if part)
        return f"task {task.type} {task.id} is {task.state}" + (f": {reason}" if reason else "")


class TaskCancelled(TaskFailed):
    """The task was cancelled before it completed."""


class UnexpectedResult(EverbeatError):
    """A task completed, but its result is not of the type that its handler is annotated with. `task` contains the result."""

    def __init__(self, task: TaskResponse, reason: str) -> None:
        super().__init__(task, reason)
        self.task, self.reason = task, reason

    def __str__(self) -> str:
        return f"task {self.task.type} {self.task.id} completed, but its result is not what its annotation says: {self.reason}"


class TaskNotFinished(EverbeatError, TimeoutError):
    """The task did not end before the timeout of `wait`. The task is not affected."""

    def __init__(self, task_id: UUID, state: str, waited_seconds: float, why: str | None = None) -> None:
        super().__init__(task_id, state, waited_seconds, why)
        self.task_id, self.state, self.waited_seconds, self.why = task_id, state, waited_seconds, why

    def __str__(self) -> str:
        reason = "" if self.why is None else f": {self.why}"
        return f"task {self.task_id} is still {self.state} after {self.waited_seconds:g} seconds{reason}"


class NonRetryable(EverbeatError):
    """Raise this in a handler to make the task a dead letter immediately, without a retry."""


class RetryLater(EverbeatError):
    """Raise this in a handler to retry after `seconds` instead of the retry policy's delay. The attempt counts."""

    def __init__(self, seconds: float, message: str = "the handler requested a later retry") -> None:
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"RetryLater({seconds!r}): seconds must be finite and not negative")
        super().__init__(seconds, message)
        self.seconds = float(seconds)
        self.message = message

    def __str__(self) -> str:
        return self.message


_BY_STATUS: dict[int, type[ServerProblem]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFoundProblem,
    409: ConflictProblem,
}


def problem_of(status: int, body: Any, retry_after_seconds: float | None = None) -> ServerProblem:
    """Return the exception for a 4xx or 5xx response. `body` is its decoded JSON, or its text."""
    problem = body if isinstance(body, Mapping) else {"detail": str(body)[:200].strip() if body else ""}
    kind = _BY_STATUS.get(status, ServerProblem)
    if str(problem.get("type", "")).endswith((":forbidden-origin", ":quota-exceeded")):
        kind = ServerProblem  # NotAllowed advises another key, which would not help here
    return kind(status, problem, retry_after_seconds)


def problem_of_error(error: EverbeatError) -> EverbeatError:
    """Return the exception that the error of a service in this process would cause over HTTP."""
    status, slug = _status_of(error)
    if status is None:
        return error
    problem: dict[str, Any] = {"type": f"urn:everbeat:problem:{slug}", "status": status, "detail": str(error)}
    if isinstance(error, InvalidInput):
        problem["errors"] = [{"field": item.field, "message": item.message} for item in error.errors]
    return problem_of(status, problem, getattr(error, "retry_after_seconds", None))


def _status_of(error: EverbeatError) -> tuple[int | None, str]:
    match error:
        case TooLarge():
            return 413, "too-large"
        case InvalidInput():
            return 422, "invalid-input"
        case NotFound():
            return 404, "not-found"
        case Conflict():
            return 409, "conflict"
        case QuotaExceeded():
            return (403 if error.retry_after_seconds is None else 429), "quota-exceeded"
        case StoreUnavailable():
            return 503, "database-unavailable"
        case StoreLocked():
            return 503, "locked"
        case StoreUnusable():
            return 503, "database-unusable"
        case StoreRefused():
            return 409, "database-refused"
        case _:
            return None, ""
