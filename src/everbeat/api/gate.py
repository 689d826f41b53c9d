"""The gate every request passes: its id, where it may come from, the headers of every answer, and the last resort.

Without keys, whoever reaches the port may do everything. A web page must not be able to: neither by a name of its own that
resolves to this machine (the Host would be that name), nor by posting across sites (the Origin would be another).
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import urlsplit

import uuid_utils
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from everbeat.api.problems import FORBIDDEN, MEDIA_TYPE, Refusal, log_failure, problem_body, unexpected
from everbeat.api.rooms import Rooms

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]@/]+)(?::(\d{1,5}))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
_LOOKED_AT = frozenset({b"host", b"origin", b"x-request-id"})

Authority = tuple[str, str | None]


class Gate:
    """Also brings along the rooms: what the framework would look up for every request."""

    def __init__(self, app: ASGIApp, rooms: Rooms) -> None:
        self._app = app
        self._rooms = rooms
        self._hosts = None
        if rooms.allowed_hosts is not None:
            self._hosts = _LOOPBACK | {host.lower().strip("[]") for host in rooms.allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        found: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            if name in _LOOKED_AT:
                found.setdefault(name, []).append(value)
        request_id = _request_id(found.get(b"x-request-id"))
        scope["state"] = {**scope["state"], "request_id": request_id, "rooms": self._rooms}
        has_started = False

        async def stamped(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                message["headers"] = [*message["headers"], *_HEADERS, (b"x-request-id", request_id.encode())]
            await send(message)

        if self._hosts is not None and (refusal := self._refusal(self._hosts, scope, found)) is not None:
            await _send_problem(refusal, request_id, stamped)
            return
        try:
            await self._app(scope, receive, stamped)
        except Exception as error:
            log_failure(scope, error)
            if has_started:  # half an answer cannot be taken back; the server closes the connection
                raise
            await _send_problem(unexpected(), request_id, stamped)

    def _refusal(self, allowed: frozenset[str], scope: Scope, found: dict[bytes, list[bytes]]) -> Refusal | None:
        hosts = found.get(b"host")
        host = _authority(hosts[0]) if hosts and len(hosts) == 1 else None
        if host is None or host[0] not in allowed:
            return Refusal(FORBIDDEN, "The Host header does not name this server.")
        if scope.get("method") in _SAFE_METHODS:
            return None
        origins = found.get(b"origin")
        if origins and any(_origin(origin) != _with_port(host, scope["scheme"]) for origin in origins):
            return Refusal(FORBIDDEN, "The Origin header names another site.")
        return None


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


async def _send_problem(refusal: Refusal, request_id: str, send: Send) -> None:
    body = problem_body(refusal, request_id)
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": refusal.kind.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
