"""The exceptions of the SDK, and their mapping from the problems of the server. All are subclasses of EverbeatError."""

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
    StoreRefused,
    StoreUnavailable,
    StoreUnusable,
    TooLarge,
)
from everbeat.core.responses import TaskResponse


class ServerProblem(EverbeatError):
    """The server rejected a request. `problem` is the response as in RFC 9457; `errors` names the invalid fields."""

    def __init__(self, status: int, problem: Mapping[str, Any], retry_after_seconds: float | None = None) -> None:
        super().__init__(status, problem, retry_after_seconds)
        self.status = status
        self.problem = dict(problem)
        self.retry_after_seconds = retry_after_seconds

    @property
    def slug(self) -> str:
        """The kind of problem, as docs/reference/errors.md lists them."""
        return str(self.problem.get("type", "")).rpartition(":")[2]

    @property
    def errors(self) -> list[dict[str, str]]:
        found = self.problem.get("errors")
        return found if isinstance(found, list) else []

    def __str__(self) -> str:
        detail = str(self.problem.get("detail") or self.problem.get("title") or "the server gave no reason")
        told = [f"{error.get('field')}: {error.get('message')}" for error in self.errors]
        rest = [line for line in told if line not in detail]
        text = "; ".join([detail, *rest])
        request_id = self.problem.get("request_id")
        return f"{text} (HTTP {self.status}{f', request {request_id}' if request_id else ''})"


class NotFoundProblem(ServerProblem, NotFound):
    """No object has this name or id, or it belongs to another tenant."""


class ConflictProblem(ServerProblem, Conflict):
    """The request is valid, but the current state does not allow it."""


class NotAllowed(ServerProblem):
    """The API key is missing or wrong, or its scope does not allow the request."""

    @property
    def is_final(self) -> bool:
        """The response is from Everbeat and not from a proxy: another try with this key would fail too."""
        return self.slug in ("unauthenticated", "forbidden")

    def __str__(self) -> str:
        advice = "is EVERBEAT_API_KEY set to a key of this server?" if self.status == 401 else "use a key with that scope"
        return f"{super().__str__()}; {advice}"


class NotReachable(EverbeatError):
    """No response from the server. It is unknown whether a request that was sent took effect."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url = url
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"cannot reach Everbeat at {self.url} ({self.reason}); is the server running (everbeat dev starts one), "
            "and does EVERBEAT_URL name it?"
        )


class UnexpectedResponse(EverbeatError):
    """The response is not one of Everbeat, or is one of another version."""


class InvalidUrl(EverbeatError, ValueError):
    """The URL given to Everbeat(...) cannot be used."""


class RegistrationError(EverbeatError):
    """The declaration of a task, schedule or hook is invalid."""


class InvalidArguments(EverbeatError, TypeError):
    """Arguments that the handler does not accept, or that JSON cannot represent."""


class BlockingCall(EverbeatError, RuntimeError):
    """A blocking call on the event loop that has to process it."""


class TaskFailed(EverbeatError):
    """A task ended without a result. `task` is the task as it ended, and `error` is its last error, if it has one."""

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


class TaskNotFinished(EverbeatError, TimeoutError):
    """The timeout of `wait` is over, and the task has not ended. The task is not affected."""

    def __init__(self, task_id: UUID, state: str, waited_seconds: float) -> None:
        super().__init__(task_id, state, waited_seconds)
        self.task_id, self.state, self.waited_seconds = task_id, state, waited_seconds

    def __str__(self) -> str:
        return f"task {self.task_id} is still {self.state} after {self.waited_seconds:g} seconds"


class NonRetryable(EverbeatError):
    """Raise it in a handler if a retry would not help: the task becomes a dead letter at once."""


class RetryLater(EverbeatError):
    """Raise it in a handler to retry after this many seconds, whatever the retry policy is. It counts as an attempt."""

    def __init__(self, seconds: float, message: str = "asked to be tried again later") -> None:
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"RetryLater({seconds!r}): give a number of seconds from 0 on")
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
    """The exception for a response of 4xx or 5xx. `body` is its decoded JSON, or its text."""
    problem = body if isinstance(body, Mapping) else {"detail": str(body)[:200].strip() if body else ""}
    kind = _BY_STATUS.get(status, ServerProblem)
    if str(problem.get("type", "")).endswith((":forbidden-origin", ":quota-exceeded")):
        kind = ServerProblem  # another key would not help
    return kind(status, problem, retry_after_seconds)


def problem_of_error(error: EverbeatError) -> EverbeatError:
    """The exception for an error of a service in this process: the same as over HTTP."""
    status, slug = _status_of(error)
    if status is None:
        return error
    problem: dict[str, Any] = {"type": f"urn:everbeat:problem:{slug}", "status": status, "detail": str(error)}
    if isinstance(error, InvalidInput):
        problem["errors"] = [{"field": one.field, "message": one.message} for one in error.errors]
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
        case StoreUnusable():
            return 503, "database-unusable"
        case StoreRefused():
            return 409, "database-refused"
        case _:
            return None, ""
