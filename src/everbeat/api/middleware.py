"""What applies to every request: its id, authentication, the checks of Host and Origin, response headers and errors.

A request is authenticated before its route is looked up or its body is read. Without a valid key, all paths return the same
response, except the open paths, which need no key.

On a server without keys, every client that can reach the port can do everything. Two checks keep web pages from using a browser
to do so. The Host header must name this server; this stops DNS rebinding, in which a host name of the attacker resolves to this
machine. The Origin header must not name another site; this stops cross-site requests.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import lru_cache
from typing import Protocol
from urllib.parse import urlsplit
from uuid import UUID

import uuid_utils

from everbeat.api.context import ApiContext
from everbeat.api.messages import (
    AnyResponse,
    ApiRequest,
    Message,
    OpenApiDocuments,
    RawHeaders,
    Receive,
    Response,
    Scope,
    Send,
    StreamingResponse,
    wait_disconnected,
)
from everbeat.api.problems import FORBIDDEN, OVERLOADED, HttpProblem, ProblemKind, log_failure, problem_response
from everbeat.api.response_limits import LARGE_BYTES, ResponseLimits
from everbeat.core.access import LOCAL_CALLER, Caller
from everbeat.core.errors import Unauthenticated
from everbeat.core.keys import contains_key
from everbeat.services.access import Authenticator
from everbeat.services.events import RequestRefused

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]@/]+)(?::(\d{1,5}))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
_PAGE_HEADERS = ((b"x-content-type-options", b"nosniff"),)  # pages and static files say themselves how long they may be kept
# The handlers of these paths check a token of their own instead of an API key.
_TOKEN_PATHS = ("/v1/callbacks/", "/ping/")
_KEY_IN_URL = (
    "The URL contains an API key. URLs are recorded in logs, proxies and browser histories. Revoke this key, create a new one, "
    "and send it in the header Authorization: Bearer eb_…"
)

_GAVE_MEMORY = "the response gives its memory to those of other callers"

Authority = tuple[str, str | None]


class Pages(Protocol):
    """The pages of the dashboard, served beside the API."""

    @property
    def open_paths(self) -> Collection[str]:
        """The paths that need no key."""

    def serves(self, request: ApiRequest) -> bool:
        """Whether the request is for a page."""

    def credentials(self, request: ApiRequest) -> Sequence[bytes]:
        """The values of an Authorization header for a request without one, from its session cookie."""

    async def handle(self, request: ApiRequest) -> AnyResponse:
        """Serve a page."""

    def error_response(self, request: ApiRequest, kind: ProblemKind, error: Exception) -> Response:
        """The page that shows an error."""


class RequestMiddleware:
    """The ASGI app: builds the request, checks it, runs `handle` and sends the response."""

    def __init__(
        self,
        handle: Callable[[ApiRequest], Awaitable[AnyResponse]],
        context: ApiContext,
        documents: OpenApiDocuments,
        open_paths: Collection[str] = (),
        pages: Pages | None = None,
    ) -> None:
        self._handle = handle
        self._context = context
        self._documents = documents
        self._access = context.access
        self._pages = pages
        self._open_paths = frozenset(open_paths) | (frozenset() if pages is None else frozenset(pages.open_paths))
        self._hosts = None
        if context.allowed_hosts is not None:
            self._hosts = _LOOPBACK | {host.lower().strip("[]") for host in context.allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"only HTTP is supported, not {scope['type']}")
        request = ApiRequest(scope, receive, self._context, self._documents)
        if root := scope.get("root_path"):
            request.path = request.path.removeprefix(root)
        request.request_id = _request_id(request)
        pages = self._pages if self._pages is not None and self._pages.serves(request) else None
        response: AnyResponse
        try:
            request.caller = await self._caller(request)
            self._check_origin(request)
            if self._context.response_limits is not None and request.path not in self._open_paths:
                self._context.response_limits.check_key(_key_of(request))
            if request.method not in _SAFE_METHODS:
                self._context.check_schema()
        except Exception as error:
            kind, response = _error_response(request, error, pages)
            if self._access is not None:
                self._access.emit(RequestRefused(kind.slug))
        else:
            try:
                response = await (self._handle(request) if pages is None else pages.handle(request))
            except Exception as error:
                _, response = _error_response(request, error, pages)
            finally:
                if request.body_share is not None:
                    request.body_share.release()
        await self._send(request, response, send, pages)

    async def _send(self, request: ApiRequest, response: AnyResponse, send: Send, pages: Pages | None) -> None:
        headers = _HEADERS if pages is None else _PAGE_HEADERS
        limits = self._context.response_limits
        if limits is None or not (isinstance(response, StreamingResponse) or len(response.body) > LARGE_BYTES):
            await _send(request, response, send, headers)
            return
        sending = _LimitedSending(request, limits)
        try:
            if isinstance(response, Response):
                sending.reserve(len(response.body), may_refuse=response.is_refusable)
        except Exception as error:
            _, response = _error_response(request, error, pages)
        await sending.run(response, send, headers)

    async def _caller(self, request: ApiRequest) -> Caller:
        """Authenticate the request. Open paths need no key and do not count toward rate limits."""
        access = self._access
        if request.path.startswith(_TOKEN_PATHS):
            return self._token_caller(request)
        if access is None or request.path in self._open_paths:
            return LOCAL_CALLER.with_request(request.request_id, None)
        address = _address(request, access)
        access.limits.check_address(address)
        _check_url(request)
        credentials = request.header_values(b"authorization")
        if not credentials and access.is_required and self._pages is not None:
            credentials = self._pages.credentials(request)
        caller = await access.authenticate(credentials, address)
        return caller.with_request(request.request_id, address)

    def _token_caller(self, request: ApiRequest) -> Caller:
        """Return a caller without any scope: the handlers of these paths check a token of their own."""
        address = None
        if self._access is not None:
            address = _address(request, self._access)
            self._access.limits.check_address(address)
        return LOCAL_CALLER._replace(scopes=frozenset()).with_request(request.request_id, address)

    def _check_origin(self, request: ApiRequest) -> None:
        if self._hosts is None or (self._access is not None and self._access.is_required):
            return
        hosts = request.header_values(b"host")
        host = _authority(hosts[0]) if len(hosts) == 1 else None
        if host is None or host[0] not in self._hosts:
            raise HttpProblem(FORBIDDEN, "The Host header does not name this server.")
        if request.method in _SAFE_METHODS:
            return
        for origin in request.header_values(b"origin"):
            if _origin(origin) != _with_port(host, request.scope["scheme"]):
                raise HttpProblem(FORBIDDEN, "The Origin header names another site.")


def _key_of(request: ApiRequest) -> UUID:
    return request.caller.key_id or request.caller.tenant_id


class _LimitedSending:
    """Sends a response within the limits.

    If it has to give its memory to others, it is not completed, and the server closes the connection.
    """

    def __init__(self, request: ApiRequest, limits: ResponseLimits) -> None:
        self._request = request
        self._limits = limits
        self._share = limits.share(_key_of(request), request.caller.address)
        self._task = asyncio.current_task()

    def reserve(self, count: int, *, may_refuse: bool = True) -> None:
        if not may_refuse:
            self._share.grow_anyway(count)
            return
        self._limits.check_key(_key_of(self._request), count)
        if not self._share.grow(count):
            detail = "Too many responses were not read yet; try again soon."
            raise HttpProblem(OVERLOADED, detail, {"Retry-After": str(random.randint(1, 5))})
        self._share.interrupt = self._interrupt

    def _interrupt(self) -> None:
        assert self._task is not None
        self._task.cancel(_GAVE_MEMORY)

    async def run(self, response: AnyResponse, send: Send, headers: RawHeaders) -> None:
        try:
            if isinstance(response, StreamingResponse):
                send = self._counted(send)
            await _send(self._request, response, send, headers)
        except asyncio.CancelledError as cancelled:
            if cancelled.args != (_GAVE_MEMORY,) or self._task is None or self._task.uncancel() > 0:
                raise
        finally:
            self._share.release()

    def _counted(self, send: Send) -> Send:
        """Count each large block of a stream while it is sent."""

        async def send_counted(message: Message) -> None:
            size = len(message.get("body", b""))
            if size > LARGE_BYTES:
                self.reserve(size)
            try:
                await send(message)
            finally:
                self._share.release()

        return send_counted


def _error_response(request: ApiRequest, error: Exception, pages: Pages | None) -> tuple[ProblemKind, Response]:
    kind, response = problem_response(request, error)
    return kind, response if pages is None else pages.error_response(request, kind, error)


async def _send(request: ApiRequest, response: AnyResponse, send: Send, more_headers: RawHeaders = _HEADERS) -> None:
    headers = [*response.headers, *more_headers, (b"x-request-id", request.request_id.encode())]
    if isinstance(response, StreamingResponse):
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await _send_blocks(request, response, send)
        return
    if response.status != 204:
        headers.append((b"content-length", b"%d" % len(response.body)))
    body = b"" if request.method == "HEAD" else response.body
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _send_blocks(request: ApiRequest, response: StreamingResponse, send: Send) -> None:
    if request.method == "HEAD":
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return
    sending = asyncio.create_task(_write_blocks(response, send))
    disconnected = asyncio.create_task(wait_disconnected(request.receive))
    try:
        await asyncio.wait({sending, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
    except Exception as error:
        log_failure(request, error)
        raise  # the response has started and cannot be replaced; the server closes the connection
    finally:
        sending.cancel()
        disconnected.cancel()
        await asyncio.wait({sending, disconnected})


async def _write_blocks(response: StreamingResponse, send: Send) -> None:
    try:
        async for block in response.blocks:
            await send({"type": "http.response.body", "body": block, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        await response.blocks.aclose()  # type: ignore[attr-defined]


def client_address(request: ApiRequest) -> str:
    """The address of the client; behind a trusted proxy, the one that the proxy reports."""
    access = request.context.access
    assert access is not None
    return _address(request, access)


def _address(request: ApiRequest, access: Authenticator) -> str:
    client = request.scope.get("client")
    forwarded = [_text(value) for value in request.header_values(b"x-forwarded-for")]
    return access.address_of(None if client is None else client[0], forwarded)


def _check_url(request: ApiRequest) -> None:
    query = request.scope["query_string"]
    if b"eb_" in query and contains_key(query.decode("latin-1")):
        raise Unauthenticated(_KEY_IN_URL)
    if "eb_" in request.path and contains_key(request.path):
        raise Unauthenticated(_KEY_IN_URL)


def _request_id(request: ApiRequest) -> str:
    values = request.header_values(b"x-request-id")
    if len(values) == 1 and _REQUEST_ID.fullmatch(text := _text(values[0])):
        return text
    return str(uuid_utils.uuid7())


def _text(value: bytes) -> str:
    return value.decode("latin-1").strip()


@lru_cache(256)
def _authority(value: bytes) -> Authority | None:
    match = _AUTHORITY.fullmatch(_text(value).lower())
    return None if match is None else (match[1].strip("[]"), match[2])


def _with_port(authority: Authority, scheme: str) -> Authority:
    host, port = authority
    return host, port or _DEFAULT_PORTS.get(scheme)


def _origin(value: bytes) -> Authority | None:
    try:
        parts = urlsplit(_text(value))
    except ValueError:
        return None
    authority = _authority(parts.netloc.encode("latin-1"))
    return None if authority is None else _with_port(authority, parts.scheme)
