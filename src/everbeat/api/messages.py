"""The requests and responses of handlers, and the ASGI types they are based on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from everbeat.api.context import ApiContext
from everbeat.api.memory_shares import MemoryShare
from everbeat.core.access import LOCAL_CALLER, Caller
from everbeat.services.sessions import KeySession, KeySessions

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
RawHeaders = Sequence[tuple[bytes, bytes]]

JSON = "application/json"

_JSON_HEADER = (b"content-type", JSON.encode())
_encode = msgspec.json.Encoder().encode


class OpenApiDocuments(NamedTuple):
    """The encoded OpenAPI document: for a server that requires keys, and for one that does not."""

    with_keys: bytes
    without_keys: bytes


class ApiRequest:
    """One request. `caller` and `path_params` are set before the handler runs.

    `body_share` is the memory of its body. It is released when the response has been built.
    """

    __slots__ = (
        "_has_repeated_headers",
        "body_share",
        "caller",
        "context",
        "documents",
        "headers",
        "method",
        "path",
        "path_params",
        "receive",
        "request_id",
        "scope",
    )

    def __init__(self, scope: Scope, receive: Receive, context: ApiContext, documents: OpenApiDocuments) -> None:
        raw: RawHeaders = scope["headers"]
        headers = dict(raw)
        self._has_repeated_headers = len(headers) != len(raw)
        if self._has_repeated_headers:
            headers = dict([*raw][::-1])  # the first value is used
        self.scope = scope
        self.receive = receive
        self.context = context
        self.documents = documents
        self.headers: Mapping[bytes, bytes] = headers
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.path_params: Mapping[str, str] = {}
        self.request_id = ""
        self.caller: Caller = LOCAL_CALLER
        self.body_share: MemoryShare | None = None

    @property
    def tenant_id(self) -> UUID:
        """The tenant whose data the request may see."""
        return self.caller.tenant_id

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def header_values(self, name: bytes) -> Sequence[bytes]:
        """All values of a header that may be sent more than once."""
        if self._has_repeated_headers:
            return [value for key, value in self.scope["headers"] if key == name]
        value = self.headers.get(name)
        return () if value is None else (value,)

    def open_session(self) -> KeySession:
        """Return a session for a request that stays open, to use in a `with` statement. It ends with the caller's key."""
        access = self.context.access
        sessions = KeySessions() if access is None else access.sessions
        return sessions.open(self.caller)

    def open_poll(self, names: int) -> AbstractContextManager[None]:
        """Count a long poll of the caller's key, in a `with` statement. Raises TooManyRequests if it has too many.

        `names`: the number of queues and types of the poll.
        """
        access, key_id = self.context.access, self.caller.key_id
        return nullcontext() if access is None or key_id is None else access.limits.open_poll(key_id, names)


class Response:
    """A response with its whole body. `headers` includes the content type, but not the content length.

    If it is not refusable, it is sent even if its key has too many unread responses: the tasks in it are already claimed.
    """

    __slots__ = ("body", "headers", "is_refusable", "status")

    def __init__(self, status: int, body: bytes = b"", headers: RawHeaders = ()) -> None:
        self.status = status
        self.body = body
        self.headers = headers
        self.is_refusable = True


class StreamingResponse:
    """A response whose body is sent block by block until the iterator ends or the client disconnects."""

    __slots__ = ("blocks", "headers", "status")

    def __init__(self, blocks: AsyncIterator[bytes], headers: RawHeaders) -> None:
        self.status = 200
        self.blocks = blocks
        self.headers = headers


AnyResponse = Response | StreamingResponse

NO_CONTENT = Response(204)


def json_response(value: msgspec.Struct | bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response. `bytes` are JSON that is already encoded."""
    body = value if isinstance(value, bytes) else _encode(value)
    if headers is None:
        return Response(status, body, (_JSON_HEADER,))
    return Response(status, body, (_JSON_HEADER, *raw_headers(headers)))


def raw_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


async def wait_disconnected(receive: Receive) -> None:
    """Return when the client has disconnected. The body must have been read; at most its end is still to be received."""
    for _ in range(2):
        if (await receive())["type"] == "http.disconnect":
            return
    await asyncio.get_running_loop().create_future()
