"""Refreshes of pages, shared: dashboards that show the same list to callers with the same permissions read and render it once.

All pages of a tenant are told to refresh at the same moment (services/live_updates.py). The first request reads and renders,
the others get the same bytes. What was read before the latest refresh is not used again, and never after a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from everbeat.api.messages import AnyResponse, ApiRequest, Response
from everbeat.web.forms import csrf_token
from everbeat.web.rendering import is_refresh

_KEPT_SECONDS = 1.0
_MAX_KEPT = 200

_Key = tuple[object, ...]


class _Part(NamedTuple):
    """A response that was rendered for the session with this form token."""

    response: Response
    token: bytes
    at: float

    def response_for(self, request: ApiRequest) -> Response:
        token = csrf_token(request).encode()
        body = self.response.body
        return self.response if token == self.token else Response(200, body.replace(self.token, token), self.response.headers)


class SharedParts:
    """The newest refreshes. `handle` serves a request."""

    def __init__(self, handle: Callable[[ApiRequest], Awaitable[AnyResponse]]) -> None:
        self._handle = handle
        self._kept: dict[_Key, asyncio.Future[_Part | None]] = {}

    async def serve(self, request: ApiRequest) -> AnyResponse:
        if request.method != "GET" or not is_refresh(request):
            return await self._handle(request)
        caller, version = request.caller, request.context.live_updates.version(request.tenant_id)
        key = (caller.tenant_id, caller.scopes, caller.queues, version, request.path, request.scope["query_string"])
        kept = self._kept.get(key)
        if kept is not None:
            part = await asyncio.shield(kept)
            if part is not None and time.monotonic() - part.at < _KEPT_SECONDS:
                return part.response_for(request)
        return await self._render(key, request)

    async def _render(self, key: _Key, request: ApiRequest) -> AnyResponse:
        part: _Part | None = None
        rendering = self._kept[key] = asyncio.get_running_loop().create_future()
        began = time.monotonic()
        try:
            response = await self._handle(request)
            if isinstance(response, Response) and response.status == 200:
                part = _Part(response, csrf_token(request).encode(), began)
            return response
        finally:
            rendering.set_result(part)
            if part is None and self._kept.get(key) is rendering:
                del self._kept[key]
            self._remove_old()

    def _remove_old(self) -> None:
        limit = time.monotonic() - _KEPT_SECONDS
        for key, kept in list(self._kept.items()):
            if kept.done() and ((part := kept.result()) is None or part.at < limit):
                del self._kept[key]
        while len(self._kept) > _MAX_KEPT:
            del self._kept[next(iter(self._kept))]
