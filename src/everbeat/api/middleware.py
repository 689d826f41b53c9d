"""The gate every request passes: its id, who asks, where it may come from, the headers of every answer, and the last resort.

Who asks is known before anything else is read or looked up: without a valid key no path differs from another, but for those
that are open to everybody.

Without keys, whoever reaches the port may do everything. A web page must not be able to: neither by a name of its own that
resolves to this machine (the Host would be that name), nor by posting across sites (the Origin would be another).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from urllib.parse import urlsplit

import uuid_utils
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from everbeat.api.context import ApiContext
from everbeat.api.problems import FORBIDDEN, MEDIA_TYPE, HttpProblem, log_failure, problem_body, problem_of, unexpected
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
_LOOKED_AT = frozenset({b"host", b"origin", b"x-request-id", b"authorization", b"x-forwarded-for"})
_KEY_IN_URL = (
    "There is an API key in the URL, where others can read it: in logs, proxies and histories. Revoke it, and send the new one "
    "in the header Authorization: Bearer eb_…"
)

Found = dict[bytes, list[bytes]]

Authority = tuple[str, str | None]


class RequestMiddleware:
    """Also brings along the rooms: what the framework would look up for every request."""

    def __init__(self, app: ASGIApp, context: ApiContext, open_paths: Collection[str] = ()) -> None:
        self._app = app
        self._api_context = context
        self._access = context.access
        self._open_paths = frozenset(open_paths)
        self._hosts = None
        if context.allowed_hosts is not None:
            self._hosts = _LOOPBACK | {host.lower().strip("[]") for host in context.allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        found: Found = {}
        for name, value in scope["headers"]:
            if name in _LOOKED_AT:
                found.setdefault(name, []).append(value)
        request_id = _request_id(found.get(b"x-request-id"))
        scope["state"] = {**scope["state"], "request_id": request_id, "rooms": self._api_context}
        has_started = False

        async def stamped(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                message["headers"] = [*message["headers"], *_HEADERS, (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            scope["state"]["caller"] = await self._caller(scope, found, request_id)
            self._check_origin(scope, found)
        except Exception as error:
            refusal, body = problem_of(scope, error)
            if self._access is not None:
                self._access.emit(RequestRefused(refusal.kind.slug))
            await _send_problem(refusal, body, stamped)
            return
        try:
            await self._app(scope, receive, stamped)
        except Exception as error:
            log_failure(scope, error)
            if has_started:  # half an answer cannot be taken back; the server closes the connection
                raise
            await _send_problem(unexpected(), problem_body(unexpected(), request_id), stamped)

    async def _caller(self, scope: Scope, found: Found, request_id: str) -> Caller:
        """Who asks. What is open to everybody costs no look at keys and counts against no limit."""
        access = self._access
        if access is None or scope["path"] in self._open_paths:
            return LOCAL_CALLER.with_request(request_id, None)
        address = _address(scope, found, access)
        access.limits.check_address(address)
        _check_url(scope)
        caller = await access.authenticate(found.get(b"authorization", ()), address)
        return caller.with_request(request_id, address)

    def _check_origin(self, scope: Scope, found: Found) -> None:
        if self._hosts is None or (self._access is not None and self._access.is_required):
            return
        hosts = found.get(b"host")
        host = _authority(hosts[0]) if hosts and len(hosts) == 1 else None
        if host is None or host[0] not in self._hosts:
            raise HttpProblem(FORBIDDEN, "The Host header does not name this server.")
        if scope.get("method") in _SAFE_METHODS:
            return
        origins = found.get(b"origin")
        if origins and any(_origin(origin) != _with_port(host, scope["scheme"]) for origin in origins):
            raise HttpProblem(FORBIDDEN, "The Origin header names another site.")


def _address(scope: Scope, found: Found, access: Authenticator) -> str:
    client = scope.get("client")
    headers = found.get(b"x-forwarded-for")
    forwarded = [_text(value) for value in headers] if headers else ()
    return access.address_of(None if client is None else client[0], forwarded)


def _check_url(scope: Scope) -> None:
    if b"eb_" in scope["query_string"] and contains_key(scope["query_string"].decode("latin-1")):
        raise Unauthenticated(_KEY_IN_URL)
    if "eb_" in scope["path"] and contains_key(scope["path"]):
        raise Unauthenticated(_KEY_IN_URL)


def _request_id(given: list[bytes] | None) -> str:
    if given and len(given) == 1 and _REQUEST_ID.fullmatch(text := _text(given[0])):
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


async def _send_problem(refusal: HttpProblem, body: bytes, send: Send) -> None:
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in refusal.headers.items()]
    await send({"type": "http.response.start", "status": refusal.kind.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
