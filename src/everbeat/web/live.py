"""/live: server-sent events that tell an open page when to load its lists again. Programs use /v1/events of the API instead."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

from everbeat.api.messages import ApiRequest, StreamingResponse
from everbeat.api.routing import get
from everbeat.services.event_stream import PUBLISHED_KINDS, EventKind
from everbeat.services.live_updates import Interest
from everbeat.web.pages.declarations import READ
from everbeat.web.pages.queries import query_of

KEEP_ALIVE_SECONDS = 15.0

_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)
_MAX_INTERESTS = 20
_LAG = "lag"


@get("/live", READ)
async def live(request: ApiRequest) -> StreamingResponse:
    names = query_of(request).get("on", "").split(",")[:_MAX_INTERESTS]
    interests = frozenset(one for one in map(_interest, names) if one is not None)
    request.context.live_updates.check_capacity(request.tenant_id)
    return StreamingResponse(_stream(request, interests, wants_lag=_LAG in names), _HEADERS)


async def _stream(request: ApiRequest, interests: frozenset[Interest], *, wants_lag: bool) -> AsyncIterator[bytes]:
    with (
        request.context.live_updates.open(request.tenant_id, interests, wants_lag=wants_lag) as page,
        request.open_session() as session,
    ):
        session.ended.add_done_callback(lambda _: page.close())
        yield b": open\n\n"
        while not page.is_closed:
            yield await page.take(KEEP_ALIVE_SECONDS) or b": keep-alive\n\n"


def _interest(text: str) -> Interest | None:
    """An interest such as `task`, or `tick:` and the id of a schedule. Pages of other versions may name unknown kinds."""
    kind, _, subject = text.partition(":")
    try:
        return Interest(EventKind(kind), UUID(subject) if subject else None) if kind in PUBLISHED_KINDS else None
    except ValueError:
        return None


ROUTES = [live]
