"""What the SDK raises, and how a server's problems become exceptions; the root is core's EverbeatError."""

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


class ServerProblem(EverbeatError):
    """The server refused a request. `problem` is its answer as in RFC 9457; `errors` names the fields at fault."""

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
    """Nothing of that name or id, or it belongs to somebody else."""


class ConflictProblem(ServerProblem, Conflict):
    """The request is right but the present state forbids it."""


class NotAllowed(ServerProblem):
    """The API key is missing, wrong, or not enough for this."""

    @property
    def is_final(self) -> bool:
        """Everbeat itself said so, not something on the way: trying again with this key will not help."""
        return self.slug in ("unauthenticated", "forbidden")

    def __str__(self) -> str:
        advice = "is EVERBEAT_API_KEY set to a key of this server?" if self.status == 401 else "use a key with that scope"
        return f"{super().__str__()}; {advice}"


class NotReachable(EverbeatError):
    """No answer from the server. Whether a request that was sent took effect is unknown."""

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
    """Something answered that is no Everbeat, or one that speaks otherwise."""


class InvalidUrl(EverbeatError, ValueError):
    """The URL given to Everbeat(...) cannot be used."""


class RegistrationError(EverbeatError):
    """A task, schedule or hook cannot be declared like this."""


class InvalidArguments(EverbeatError, TypeError):
    """Arguments that the handler does not take, or that JSON cannot hold."""


class BlockingCall(EverbeatError, RuntimeError):
    """A blocking call on the very event loop that would have to answer it."""


class TaskFailed(EverbeatError):
    """A task ended without a result. `task` is its last state, `error` what its handler raised."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        super().__init__(task)
        self.task = dict(task)
        self.error: dict[str, Any] = dict(task.get("error") or {})

    def __str__(self) -> str:
        said = ": ".join(str(part) for part in (self.error.get("kind"), self.error.get("message")) if part)
        task = self.task
        return f"task {task.get('type')} {task.get('id')} is {task.get('state')}" + (f": {said}" if said else "")


class TaskCancelled(TaskFailed):
    """The task was cancelled before it completed."""


class TaskNotFinished(EverbeatError, TimeoutError):
    """The time to wait is over, and the task is not; it goes on."""

    def __init__(self, task_id: UUID, state: str, waited_seconds: float) -> None:
        super().__init__(task_id, state, waited_seconds)
        self.task_id, self.state, self.waited_seconds = task_id, state, waited_seconds

    def __str__(self) -> str:
        return f"task {self.task_id} is still {self.state} after {self.waited_seconds:g} seconds"


class NonRetryable(EverbeatError):
    """Raised in a handler: trying again will not help; the task goes to the dead letters at once."""


class RetryLater(EverbeatError):
    """Raised in a handler: try again in so many seconds, whatever the retry policy says. It counts as an attempt."""

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
    """The exception for an answer of 4xx or 5xx; `body` is its decoded JSON, or text that was none."""
    problem = body if isinstance(body, Mapping) else {"detail": str(body)[:200].strip() if body else ""}
    kind = _BY_STATUS.get(status, ServerProblem)
    if str(problem.get("type", "")).endswith((":forbidden-origin", ":quota-exceeded")):
        kind = ServerProblem  # no key would help
    return kind(status, problem, retry_after_seconds)


def problem_of_error(error: EverbeatError) -> EverbeatError:
    """The exception for what a service in this process raised: the same one that HTTP would have brought."""
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
