"""Errors as application/problem+json (RFC 9457): every failure of the API leaves through here, without internals."""

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
_BROKEN_RETRY_SECONDS = 30

log = structlog.get_logger("everbeat.api")


class ProblemKind(NamedTuple):
    """One kind of problem; its slug is part of the contract."""

    status: int
    slug: str
    title: str


MALFORMED = ProblemKind(400, "malformed-request", "The request is malformed")
UNAUTHENTICATED = ProblemKind(401, "unauthenticated", "A valid API key is needed")
FORBIDDEN = ProblemKind(403, "forbidden-origin", "Requests from there are not accepted")
WRONG_SCOPE = ProblemKind(403, "forbidden", "The API key does not allow it")
QUOTA = ProblemKind(403, "quota-exceeded", "A quota of the tenant is used up")
NOT_FOUND = ProblemKind(404, "not-found", "There is no such thing")
WRONG_METHOD = ProblemKind(405, "method-not-allowed", "This method is not allowed here")
TOO_SLOW = ProblemKind(408, "request-timeout", "The request took too long to arrive")
CONFLICT = ProblemKind(409, "conflict", "The present state forbids it")
REVISION_MISMATCH = ProblemKind(409, "revision-mismatch", "It was changed meanwhile")
REFUSED = ProblemKind(409, "database-refused", "The database refused the change")
TOO_LARGE = ProblemKind(413, "too-large", "The request is too large")
MEDIA_TYPE_REFUSED = ProblemKind(415, "unsupported-media-type", "This kind of content is not accepted")
HEAD_TOO_LARGE = ProblemKind(431, "head-too-large", "The head of the request is too large")
INVALID = ProblemKind(422, "invalid-input", "The input is not valid")
RATE_LIMITED = ProblemKind(429, "rate-limited", "Too many requests")
QUOTA_FOR_NOW = ProblemKind(429, "quota-exceeded", "A quota of the tenant is used up for now")
INTERNAL = ProblemKind(500, "internal-error", "Something went wrong on our side")
UNAVAILABLE = ProblemKind(503, "database-unavailable", "The database is away")
BLOBS_AWAY = ProblemKind(503, "blob-store-unavailable", "The store of large payloads is away")
OVERLOADED = ProblemKind(503, "overloaded", "The server has too much to do")
BROKEN = ProblemKind(503, "database-unusable", "The database cannot be used")

_CONTENT_TYPE = (b"content-type", MEDIA_TYPE.encode())


class FieldProblem(msgspec.Struct, frozen=True):
    """What is wrong with one field of the input."""

    field: str
    message: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem as RFC 9457 describes it; `errors` names every field at fault."""

    type: Annotated[str, msgspec.Meta(extra_json_schema={"format": "uri"})]
    title: str
    status: int
    detail: str
    request_id: str
    errors: list[FieldProblem] | msgspec.UnsetType = msgspec.UNSET


class HttpProblem(EverbeatError):
    """A request refused for its form, before any service was asked."""

    def __init__(self, kind: ProblemKind, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})


def problem_body(refusal: HttpProblem, request_id: str, errors: Sequence[FieldError] | None = None) -> bytes:
    problem = Problem(
        type=f"urn:everbeat:problem:{refusal.kind.slug}",
        title=refusal.kind.title,
        status=refusal.kind.status,
        detail=_clean(refusal.detail, _MAX_TEXT_LENGTH),
        request_id=request_id,
        errors=msgspec.UNSET if errors is None else _field_problems(errors),
    )
    return msgspec.json.encode(problem)


def problem_response(request: ApiRequest, error: Exception) -> tuple[ProblemKind, Response]:
    """The response to a request that failed with this error."""
    refusal = http_problem_of(error)
    if refusal.kind is INTERNAL or refusal.kind is REFUSED:
        log_failure(request, error)
    errors = error.errors if isinstance(error, InvalidInput) else None
    body = problem_body(refusal, request.request_id, errors)
    return refusal.kind, Response(refusal.kind.status, body, (_CONTENT_TYPE, *raw_headers(refusal.headers)))


def http_problem_of(error: Exception) -> HttpProblem:
    """What an error means to the one who asked."""
    if isinstance(error, HttpProblem):
        # Its traceback leads to whoever keeps it: a circle that would hold the body in memory until garbage is collected.
        error.__context__ = None
        return error.with_traceback(None)
    if isinstance(error, EverbeatError):
        return _expected(error)
    return unexpected()


def unexpected() -> HttpProblem:
    return HttpProblem(INTERNAL, "The error was logged; tell the operator the request id.")


def log_failure(request: ApiRequest, error: BaseException) -> None:
    log.error(
        "request_failed",
        request_id=request.request_id,
        method=request.method,
        path=_clean(request.path, _MAX_FIELD_LENGTH),
        exc_info=error,
    )


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
            # Clients that were turned away together should not come back together.
            retry = str(random.randint(1, 5))
            return HttpProblem(UNAVAILABLE, "The database did not answer; try again soon.", {"Retry-After": retry})
        case BlobsUnavailable():
            retry = str(random.randint(1, 5))
            return HttpProblem(
                BLOBS_AWAY, "The store of large payloads did not answer; try again soon.", {"Retry-After": retry}
            )
        case StoreUnusable():
            retry = str(_BROKEN_RETRY_SECONDS)
            return HttpProblem(BROKEN, "The database needs the operator's attention.", {"Retry-After": retry})
        case StoreRefused():
            return HttpProblem(REFUSED, "The database refused this very change; trying it again will not help.")
        case _:
            return unexpected()


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def _field_problems(errors: Sequence[FieldError]) -> list[FieldProblem]:
    return [
        FieldProblem(_clean(error.field, _MAX_FIELD_LENGTH), _clean(error.message, _MAX_TEXT_LENGTH))
        for error in errors[:_MAX_ERRORS]
    ]


def _clean(text: str, longest: int) -> str:
    """Input is echoed shortened, and without what UTF-8 cannot hold."""
    return text[:longest].encode("utf-8", "replace").decode()
