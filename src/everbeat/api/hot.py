"""The hot path: routes that are asked thousands of times a second, served without the framework around them.

The same functions stand behind the framework's routes of the same paths, which document them and take what does not come by
the plain path; there is one implementation and two doors. Routing, request and response objects would add three quarters to
the time that a single submit takes in this process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from litestar import Response
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from everbeat.api.authorization import check_scope
from everbeat.api.context import RequestView
from everbeat.api.openapi import Operation
from everbeat.api.problems import MEDIA_TYPE, problem_of
from everbeat.core.access import LOCAL_CALLER

RawHeaders = tuple[tuple[bytes, bytes], ...]

_JSON = (b"content-type", b"application/json")
_PROBLEM = (b"content-type", MEDIA_TYPE.encode())


class Answer(NamedTuple):
    """An answer of either door: JSON, already encoded."""

    status: int
    body: bytes
    headers: RawHeaders = ()


class Direct:
    """A request as the server handed it over."""

    __slots__ = ("receive", "scope")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.receive = receive


Serve = Callable[[RequestView], Awaitable[Answer]]


class Hot:
    """Serves POST on these exact paths; everything else goes on to the framework. The scopes are those that the handlers of
    the same paths declare."""

    def __init__(self, app: ASGIApp, routes: Mapping[str, Serve], operations: Mapping[str, Operation]) -> None:
        self._app = app
        self._routes = {path: (serve, operations[path]) for path, serve in routes.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._routes.get(scope["path"]) if scope["type"] == ScopeType.HTTP and scope["method"] == "POST" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        serve, operation = found
        try:
            check_scope(scope["state"].get("caller", LOCAL_CALLER), operation)
            answer, content_type = await serve(Direct(scope, receive)), _JSON
        except Exception as error:
            refusal, body = problem_of(scope, error)
            headers = tuple((name.lower().encode(), value.encode("latin-1")) for name, value in refusal.headers.items())
            answer, content_type = Answer(refusal.kind.status, body, headers), _PROBLEM
        length = (b"content-length", b"%d" % len(answer.body))
        await send({"type": "http.response.start", "status": answer.status, "headers": [content_type, length, *answer.headers]})
        await send({"type": "http.response.body", "body": answer.body, "more_body": False})


def response_of(answer: Answer) -> Response[bytes]:
    """The answer as the framework's handlers give it."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in answer.headers}
    return Response(answer.body, status_code=answer.status, media_type="application/json", headers=headers)
