"""Builds requests and decodes responses for both HTTP transports. Does no I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode
from uuid import UUID, uuid4

import msgspec

from everbeat.client.base import ApiResponse
from everbeat.client.errors import UnexpectedResponse, problem_of
from everbeat.core.definitions import rfc3339
from everbeat.core.protocol import (
    MAX_SUBMITTED,
    LeaseClaimRequest,
    LeaseClaimResponse,
    LeaseCompleteRequest,
    LeaseFailRequest,
    LeaseHeartbeatRequest,
    LeaseHeartbeatResponse,
    LeaseHeartbeatResult,
    LeaseReleaseRequest,
    LeaseResult,
    LeaseResultsResponse,
    TaskInput,
)
from everbeat.core.tasks import ClaimedTask

# The server's body limit is 12 MiB. Batches are split well below it.
MAX_BODY_BYTES = 8 * 1024 * 1024
CLAIM_TIMEOUT_MARGIN_SECONDS = 10.0

T = TypeVar("T")


class Repeat(Enum):
    """When the transport may repeat a request: always, only if it was certainly not processed, or never."""

    SAFE = "safe"
    UNPROCESSED = "unprocessed"
    NEVER = "never"


class Request(NamedTuple):
    """An encoded request. If `timeout_seconds` is None, the transport's default applies."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None = None
    repeat: Repeat = Repeat.UNPROCESSED
    timeout_seconds: float | None = None


class HttpResponse(NamedTuple):
    """A response before decoding. Header names are looked up in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


_JSON = {"content-type": "application/json"}
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
# These requests have the same effect if repeated.
_SAFE_POSTS = re.compile(r"/v1/(preview|schedules/batch|schedules/[^/]+/(pause|resume)|tasks/[^/]+/cancel)")
_encode = msgspec.json.Encoder().encode


def build(
    method: str,
    path: str,
    *,
    query: Mapping[str, Any] | None = None,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> Request:
    """Return a request of the HTTP API. It may be repeated if it is idempotent or has an idempotency key."""
    given = {name.lower(): value for name, value in (headers or {}).items()}
    is_safe = method in _SAFE_METHODS or "idempotency-key" in given or _SAFE_POSTS.fullmatch(path) is not None
    text = urlencode({name: _query_text(value) for name, value in (query or {}).items() if value is not None})
    return Request(
        method,
        f"{path}?{text}" if text else path,
        given if body is None else {**_JSON, **given},
        None if body is None else _encode(body),
        Repeat.SAFE if is_safe else Repeat.UNPROCESSED,
    )


def path_segment(text: str) -> str:
    """Quote a name or id as one segment of a path."""
    return quote(text, safe="")


def new_key() -> str:
    return f"sdk-{uuid4().hex}"


def submit(tasks: Sequence[TaskInput]) -> Iterator[Request]:
    """Return the requests that submit these tasks. Each has an idempotency key, so that it can be safely repeated.

    The key of a batch applies to its tasks that have no key.
    """
    if len(tasks) == 1:
        yield _submit_one(tasks[0])
        return
    for chunk in _chunks(tasks):
        body = b'{"tasks":[' + b",".join(chunk) + b"]}"
        yield _post("/v1/tasks/batch", body, Repeat.SAFE, {"idempotency-key": new_key()})


def _submit_one(task: TaskInput) -> Request:
    headers = {"idempotency-key": task.idempotency_key or new_key()}
    if task.idempotency_key is not None:
        task = msgspec.structs.replace(task, idempotency_key=None)
    return _post("/v1/tasks", _encode(task), Repeat.SAFE, headers)


def _chunks(tasks: Sequence[TaskInput]) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    for task in tasks:
        encoded = _encode(task)
        if chunk and (len(chunk) == MAX_SUBMITTED or size + len(encoded) > MAX_BODY_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(encoded)
        size += len(encoded) + 1
    if chunk:
        yield chunk


def claim(request: LeaseClaimRequest) -> Request:
    """Return a claim request. It is never repeated: the tasks in a lost response are already leased to this worker."""
    timeout = request.wait_seconds + CLAIM_TIMEOUT_MARGIN_SECONDS
    return _post("/v1/worker/claim", _encode(request), Repeat.NEVER)._replace(timeout_seconds=timeout)


def heartbeat(request: LeaseHeartbeatRequest) -> Request:
    return _post("/v1/worker/heartbeat", _encode(request), Repeat.SAFE)


def complete(completion: LeaseCompleteRequest) -> Request:
    return _post("/v1/worker/complete", _encode(completion), Repeat.SAFE)


def fail(failures: LeaseFailRequest) -> Request:
    return _post("/v1/worker/fail", _encode(failures), Repeat.SAFE)


def release(leases: LeaseReleaseRequest) -> Request:
    return _post("/v1/worker/release", _encode(leases), Repeat.SAFE)


def _post(path: str, body: bytes, repeat: Repeat, headers: Mapping[str, str] | None = None) -> Request:
    return Request("POST", path, {**_JSON, **(headers or {})}, body, repeat)


def _query_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return rfc3339(value) if isinstance(value, datetime) else str(value)


# Responses


class _Submitted(msgspec.Struct):
    id: UUID


class _SubmittedBatch(msgspec.Struct):
    ids: list[UUID]


_decode_one = msgspec.json.Decoder(_Submitted).decode
_decode_batch = msgspec.json.Decoder(_SubmittedBatch).decode
_decode_claimed = msgspec.json.Decoder(LeaseClaimResponse).decode
_decode_lease_statuses = msgspec.json.Decoder(LeaseHeartbeatResponse).decode
_decode_lease_results = msgspec.json.Decoder(LeaseResultsResponse).decode
_decode_any = msgspec.json.Decoder().decode


def api_response_of(response: HttpResponse) -> ApiResponse:
    return ApiResponse(response.status, _decode_response(_decode_any, response) if response.body else None, response.headers)


def ids_of(response: HttpResponse, request: Request) -> list[UUID]:
    if request.path == "/v1/tasks":
        return [_decode_response(_decode_one, response).id]
    return _decode_response(_decode_batch, response).ids


def claimed_tasks_of(response: HttpResponse) -> list[ClaimedTask]:
    return _decode_response(_decode_claimed, response).tasks


def lease_statuses_of(response: HttpResponse) -> list[LeaseHeartbeatResult]:
    return _decode_response(_decode_lease_statuses, response).leases


def lease_results_of(response: HttpResponse) -> list[LeaseResult]:
    return _decode_response(_decode_lease_results, response).results


def convert(body: Any, type_: type[T]) -> T:
    """Convert a decoded response to a struct. Unknown fields, from a newer server, are ignored."""
    try:
        return msgspec.convert(body, type_)
    except msgspec.ValidationError as error:
        raise UnexpectedResponse(
            f"the response is not a {type_.__name__}: {error}; do the SDK and the server have the same version?"
        ) from None


def raise_for_problem(response: HttpResponse, *, is_certain: bool = True) -> None:
    if response.status < 400:
        return
    try:
        body = _decode_any(response.body) if response.body else None
    except msgspec.DecodeError:
        body = response.body.decode("utf-8", "replace")
    problem = problem_of(response.status, body, retry_after_seconds(response))
    problem.is_certain = is_certain
    raise problem


def retry_after_seconds(response: HttpResponse) -> float | None:
    """Return the Retry-After header in seconds. A date, which a proxy may send, is ignored."""
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() and text.isascii() else None


def _decode_response(decode: Callable[[bytes], T], response: HttpResponse) -> T:
    try:
        return decode(response.body)
    except msgspec.DecodeError as error:
        kind = response.headers.get("content-type", "no content type")
        raise UnexpectedResponse(
            f"the response ({response.status}, {kind}) is not from Everbeat: {error}; is this the right URL?"
        ) from None
