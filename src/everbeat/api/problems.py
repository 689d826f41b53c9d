"""Errors as application/problem+json (RFC 9457): every failure of the API leaves through here, without internals."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec
import structlog
from litestar import Response
from litestar.exceptions import HTTPException
from litestar.types import Scope

from everbeat.api.rooms import ApiRequest
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
    StoreUnusable,
    StoreRefused,
    StoreUnavailable,
    TooLarge,
    TooManyRequests,
    Unauthenticated,
)

MEDIA_TYPE = "application/problem+json"

CHALLENGE = {"WWW-Authenticate": 'Bearer realm="everbeat"'}

_LONGEST_FIELD = 200
_LONGEST_TEXT = 1000
_MOST_ERRORS = 100
_BROKEN_RETRY_SECONDS = 30

log = structlog.get_logger("everbeat.api")


class Kind(NamedTuple):
    """One kind of problem; its slug is part of the contract."""

    status: int
    slug: str
    title: str


MALFORMED = Kind(400, "malformed-request", "The request is malformed")
UNAUTHENTICATED = Kind(401, "unauthenticated", "A valid API key is needed")
FORBIDDEN = Kind(403, "forbidden-origin", "Requests from there are not accepted")
WRONG_SCOPE = Kind(403, "forbidden", "The API key does not allow it")
QUOTA = Kind(403, "quota-exceeded", "A quota of the tenant is used up")
NOT_FOUND = Kind(404, "not-found", "There is no such thing")
WRONG_METHOD = Kind(405, "method-not-allowed", "This method is not allowed here")
TOO_SLOW = Kind(408, "request-timeout", "The request took too long to arrive")
CONFLICT = Kind(409, "conflict", "The present state forbids it")
REVISION_MISMATCH = Kind(409, "revision-mismatch", "It was changed meanwhile")
REFUSED = Kind(409, "database-refused", "The database refused the change")
TOO_LARGE = Kind(413, "too-large", "The request is too large")
MEDIA_TYPE_REFUSED = Kind(415, "unsupported-media-type", "This kind of content is not accepted")
INVALID = Kind(422, "invalid-input", "The input is not valid")
RATE_LIMITED = Kind(429, "rate-limited", "Too many requests")
QUOTA_FOR_NOW = Kind(429, "quota-exceeded", "A quota of the tenant is used up for now")
INTERNAL = Kind(500, "internal-error", "Something went wrong on our side")
UNAVAILABLE = Kind(503, "database-unavailable", "The database is away")
BLOBS_AWAY = Kind(503, "blob-store-unavailable", "The store of large payloads is away")
OVERLOADED = Kind(503, "overloaded", "The server has too much to do")
BROKEN = Kind(503, "database-unusable", "The database cannot be used")

_BY_STATUS = {kind.status: kind for kind in (MALFORMED, FORBIDDEN, NOT_FOUND, WRONG_METHOD, TOO_LARGE)}


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


class Refusal(EverbeatError):
    """A request refused for its form, before any service was asked."""

    def __init__(self, kind: Kind, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})


def request_id_of(scope: Scope) -> str:
    return str(scope["state"].get("request_id", ""))


def problem_body(refusal: Refusal, request_id: str, errors: Sequence[FieldError] | None = None) -> bytes:
    problem = Problem(
        type=f"urn:everbeat:problem:{refusal.kind.slug}",
        title=refusal.kind.title,
        status=refusal.kind.status,
        detail=_clean(refusal.detail, _LONGEST_TEXT),
        request_id=request_id,
        errors=msgspec.UNSET if errors is None else _field_problems(errors),
    )
    return msgspec.json.encode(problem)


def answer_problem(request: ApiRequest, error: Exception) -> Response[bytes]:
    """The one exception handler of the app."""
    refusal, body = problem_of(request.scope, error)
    return Response(content=body, status_code=refusal.kind.status, media_type=MEDIA_TYPE, headers=refusal.headers)


def problem_of(scope: Scope, error: Exception) -> tuple[Refusal, bytes]:
    """What an error means to the one who asked, and the body that says so."""
    refusal = refusal_of(error)
    if refusal.kind is INTERNAL or refusal.kind is REFUSED:
        log_failure(scope, error)
    errors = error.errors if isinstance(error, InvalidInput) else None
    return refusal, problem_body(refusal, request_id_of(scope), errors)


def refusal_of(error: Exception) -> Refusal:
    """What an error means to the one who asked."""
    if isinstance(error, Refusal):
        # Its traceback leads to whoever keeps it: a circle that would hold the body in memory until garbage is collected.
        error.__context__ = None
        return error.with_traceback(None)
    if isinstance(error, EverbeatError):
        return _expected(error)
    if isinstance(error, HTTPException) and error.status_code in _BY_STATUS:
        kind = _BY_STATUS[error.status_code]
        return Refusal(kind, _ROUTING_DETAILS.get(kind, error.detail), error.headers)
    return unexpected()


def unexpected() -> Refusal:
    return Refusal(INTERNAL, "The error was logged; tell the operator the request id.")


def log_failure(scope: Scope, error: BaseException) -> None:
    log.error(
        "request_failed",
        request_id=request_id_of(scope),
        method=scope.get("method"),
        path=_clean(scope["path"], _LONGEST_FIELD),
        exc_info=error,
    )


_ROUTING_DETAILS = {
    NOT_FOUND: "There is nothing at this path.",
    WRONG_METHOD: "The Allow header names the methods of this path.",
    TOO_LARGE: "The body is larger than this server accepts.",
}


def _expected(error: EverbeatError) -> Refusal:
    match error:
        case TooLarge():
            return Refusal(TOO_LARGE, str(error))
        case InvalidInput():
            return Refusal(INVALID, str(error))
        case NotFound():
            return Refusal(NOT_FOUND, str(error))
        case RevisionMismatch():
            return Refusal(REVISION_MISMATCH, str(error))
        case Conflict():
            return Refusal(CONFLICT, str(error))
        case Unauthenticated():
            return Refusal(UNAUTHENTICATED, str(error), CHALLENGE)
        case Forbidden():
            return Refusal(WRONG_SCOPE, str(error))
        case TooManyRequests():
            return Refusal(RATE_LIMITED, str(error), _retry_after(error.retry_after_seconds))
        case QuotaExceeded(retry_after_seconds=None):
            return Refusal(QUOTA, str(error))
        case QuotaExceeded(retry_after_seconds=seconds):
            return Refusal(QUOTA_FOR_NOW, str(error), _retry_after(seconds or 0.0))
        case StoreUnavailable():
            # Clients that were turned away together should not come back together.
            retry = str(random.randint(1, 5))
            return Refusal(UNAVAILABLE, "The database did not answer; try again soon.", {"Retry-After": retry})
        case BlobsUnavailable():
            retry = str(random.randint(1, 5))
            return Refusal(BLOBS_AWAY, "The store of large payloads did not answer; try again soon.", {"Retry-After": retry})
        case StoreUnusable():
            retry = str(_BROKEN_RETRY_SECONDS)
            return Refusal(BROKEN, "The database needs the operator's attention.", {"Retry-After": retry})
        case StoreRefused():
            return Refusal(REFUSED, "The database refused this very change; trying it again will not help.")
        case _:
            return unexpected()


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def _field_problems(errors: Sequence[FieldError]) -> list[FieldProblem]:
    return [
        FieldProblem(_clean(error.field, _LONGEST_FIELD), _clean(error.message, _LONGEST_TEXT))
        for error in errors[:_MOST_ERRORS]
    ]


def _clean(text: str, longest: int) -> str:
    """Input is echoed shortened, and without what UTF-8 cannot hold."""
    return text[:longest].encode("utf-8", "replace").decode()
