"""Error responses as application/problem+json (RFC 9457). All errors of the API are converted here, without internals."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec
import structlog

from everbeat.api.messages import ApiRequest, Response, raw_headers
from everbeat.core.errors import (
    BlobsUnavailable,
    Conflict,
    EverbeatError,
    FieldError,
    Forbidden,
    InvalidInput,
    NotFound,
    QuotaExceeded,
    RevisionMismatch,
    SchemaTooNew,
    StoreLocked,
    StoreRefused,
    StoreUnavailable,
    StoreUnusable,
    TooLarge,
    TooManyRequests,
    Unauthenticated,
)

MEDIA_TYPE = "application/problem+json"

CHALLENGE = {"WWW-Authenticate": 'Bearer realm="everbeat"'}

_MAX_FIELD_LENGTH = 200
_MAX_TEXT_LENGTH = 1000
_MAX_ERRORS = 100
_UNUSABLE_RETRY_SECONDS = 30

log = structlog.get_logger("everbeat.api")


class ProblemKind(NamedTuple):
    """A kind of problem. Its slug is part of the API contract."""

    status: int
    slug: str
    title: str


MALFORMED = ProblemKind(400, "malformed-request", "The request is malformed")
UNAUTHENTICATED = ProblemKind(401, "unauthenticated", "A valid API key is required")
FORBIDDEN = ProblemKind(403, "forbidden-origin", "Requests from this origin are not accepted")
WRONG_SCOPE = ProblemKind(403, "forbidden", "The API key does not allow this operation")
QUOTA = ProblemKind(403, "quota-exceeded", "A quota of the tenant is exhausted")
NOT_FOUND = ProblemKind(404, "not-found", "Not found")
WRONG_METHOD = ProblemKind(405, "method-not-allowed", "This method is not allowed here")
TOO_SLOW = ProblemKind(408, "request-timeout", "The request took too long to arrive")
CONFLICT = ProblemKind(409, "conflict", "Conflict with the current state")
REVISION_MISMATCH = ProblemKind(409, "revision-mismatch", "The revision does not match")
REFUSED = ProblemKind(409, "database-refused", "The database rejected the change")
TOO_LARGE = ProblemKind(413, "too-large", "The request is too large")
TARGET_TOO_LONG = ProblemKind(414, "target-too-long", "The URL of the request is too long")
MEDIA_TYPE_REFUSED = ProblemKind(415, "unsupported-media-type", "Unsupported media type")
HEAD_TOO_LARGE = ProblemKind(431, "head-too-large", "The head of the request is too large")
INVALID = ProblemKind(422, "invalid-input", "The input is not valid")
RATE_LIMITED = ProblemKind(429, "rate-limited", "Too many requests")
QUOTA_FOR_NOW = ProblemKind(429, "quota-exceeded", "A quota of the tenant is exhausted for now")
INTERNAL = ProblemKind(500, "internal-error", "Internal server error")
UNAVAILABLE = ProblemKind(503, "database-unavailable", "The database is unavailable")
LOCKED = ProblemKind(503, "locked", "Another transaction has locked what the request changes")
BLOBS_UNAVAILABLE = ProblemKind(503, "blob-store-unavailable", "The blob store is unavailable")
OVERLOADED = ProblemKind(503, "overloaded", "The server is overloaded")
UNUSABLE = ProblemKind(503, "database-unusable", "The database cannot be used")
NEWER = ProblemKind(503, "database-newer", "The database was migrated by a newer version of Everbeat")

_CONTENT_TYPE = (b"content-type", MEDIA_TYPE.encode())


class FieldProblem(msgspec.Struct, frozen=True):
    """An error in one field of the input."""

    field: str
    message: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem document as defined by RFC 9457. `errors` names every invalid field."""

    type: Annotated[str, msgspec.Meta(extra_json_schema={"format": "uri"})]
    title: str
    status: int
    detail: str
    request_id: str
    errors: list[FieldProblem] | msgspec.UnsetType = msgspec.UNSET


class HttpProblem(EverbeatError):
    """An error response. Raised for invalid HTTP requests before a service is called; other errors are converted to it."""

    def __init__(self, kind: ProblemKind, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})


def problem_body(http_problem: HttpProblem, request_id: str, errors: Sequence[FieldError] | None = None) -> bytes:
    problem = Problem(
        type=f"urn:everbeat:problem:{http_problem.kind.slug}",
        title=http_problem.kind.title,
        status=http_problem.kind.status,
        detail=_shortened(http_problem.detail, _MAX_TEXT_LENGTH),
        request_id=request_id,
        errors=msgspec.UNSET if errors is None else _field_problems(errors),
    )
    return msgspec.json.encode(problem)


def problem_response(request: ApiRequest, error: Exception) -> tuple[ProblemKind, Response]:
    """Return the kind of problem and the response for a request that failed with this error."""
    http_problem = http_problem_of(error)
    if http_problem.kind is INTERNAL or http_problem.kind is REFUSED:
        log_failure(request, error)
    errors = error.errors if isinstance(error, InvalidInput) else None
    body = problem_body(http_problem, request.request_id, errors)
    return http_problem.kind, Response(http_problem.kind.status, body, (_CONTENT_TYPE, *raw_headers(http_problem.headers)))


def http_problem_of(error: Exception) -> HttpProblem:
    """Return the problem that is reported to the client for an error."""
    if isinstance(error, HttpProblem):
        # Its traceback refers to frames that refer to the error: a cycle that would keep the body in memory until a collection.
        error.__context__ = None
        return error.with_traceback(None)
    if isinstance(error, EverbeatError):
        return _expected(error)
    return unexpected()


def unexpected() -> HttpProblem:
    return HttpProblem(INTERNAL, "The error was logged. Report the request id to the operator.")


def log_failure(request: ApiRequest, error: BaseException) -> None:
    log.error(
        "request_failed",
        request_id=request.request_id,
        method=request.method,
        path=loggable_path(request.path),
        exc_info=error,
    )


def loggable_path(path: str) -> str:
    """Return a path for a log line. Anybody who has the path of a ping can send pings, so its token is left out."""
    if "/ping/" in path:
        return f"{path.partition('/ping/')[0][:_MAX_FIELD_LENGTH]}/ping/***"
    return _shortened(path, _MAX_FIELD_LENGTH)


def _expected(error: EverbeatError) -> HttpProblem:
    match error:
        case TooLarge():
            return HttpProblem(TOO_LARGE, str(error))
        case InvalidInput():
            return HttpProblem(INVALID, str(error))
        case NotFound():
            return HttpProblem(NOT_FOUND, str(error))
        case RevisionMismatch():
            return HttpProblem(REVISION_MISMATCH, str(error))
        case Conflict():
            return HttpProblem(CONFLICT, str(error))
        case Unauthenticated():
            return HttpProblem(UNAUTHENTICATED, str(error), CHALLENGE)
        case Forbidden():
            return HttpProblem(WRONG_SCOPE, str(error))
        case TooManyRequests():
            return HttpProblem(RATE_LIMITED, str(error), _retry_after(error.retry_after_seconds))
        case QuotaExceeded(retry_after_seconds=None):
            return HttpProblem(QUOTA, str(error))
        case QuotaExceeded(retry_after_seconds=seconds):
            return HttpProblem(QUOTA_FOR_NOW, str(error), _retry_after(seconds or 0.0))
        case StoreUnavailable():
            # Random, so that clients refused at the same time do not all retry at the same time.
            retry = str(random.randint(1, 5))
            return HttpProblem(UNAVAILABLE, "The database did not respond; try again soon.", {"Retry-After": retry})
        case StoreLocked():
            return HttpProblem(LOCKED, "Nothing was changed by this request; try again.", {"Retry-After": "1"})
        case BlobsUnavailable():
            retry = str(random.randint(1, 5))
            return HttpProblem(BLOBS_UNAVAILABLE, "The blob store did not respond; try again soon.", {"Retry-After": retry})
        case SchemaTooNew():
            retry = str(random.randint(1, 5))
            return HttpProblem(
                NEWER, "This node changes nothing any more; send the request to another node.", {"Retry-After": retry}
            )
        case StoreUnusable():
            retry = str(_UNUSABLE_RETRY_SECONDS)
            return HttpProblem(UNUSABLE, "The database cannot be used; contact the operator.", {"Retry-After": retry})
        case StoreRefused():
            return HttpProblem(REFUSED, "The database rejected this change. Do not repeat it unchanged.")
        case _:
            return unexpected()


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def _field_problems(errors: Sequence[FieldError]) -> list[FieldProblem]:
    return [
        FieldProblem(_shortened(error.field, _MAX_FIELD_LENGTH), _shortened(error.message, _MAX_TEXT_LENGTH))
        for error in errors[:_MAX_ERRORS]
    ]


def _shortened(text: str, max_length: int) -> str:
    """Shorten text that contains input, and replace characters that UTF-8 cannot encode."""
    return text[:max_length].encode("utf-8", "replace").decode()
