"""/v1/events: changes as server-sent events, as long as the client is connected.

Events are not replayed: `Last-Event-ID` is ignored, and the first event says so. Lost events are counted, and clients can read
the current state from the lists. A stream ends when its client disconnects, when its key is revoked or expires, and when the
server stops.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
import uuid_utils.compat

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, StreamingResponse
from everbeat.api.operations import Operation, Success
from everbeat.api.paging import Absent
from everbeat.api.routing import get
from everbeat.core.errors import InvalidInput
from everbeat.services.event_stream import PUBLISHED_KINDS, EventKind, EventStream, EventSubscription, StreamEvent

MEDIA_TYPE = "text/event-stream"
KEEP_ALIVE_SECONDS = 15.0

_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no"))
_EXAMPLE = (
    "id: 01a1e231-932d-71cb-8dab-e37075a3e37c\n"
    "event: task\n"
    'data: {"change":"completed","id":"01a1e2de-e8f0-72b7-ac57-9cdcb9fa56ea","state":"completed"}\n\n'
)


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    types: (
        Annotated[
            str,
            msgspec.Meta(
                description="The event types to send, separated by commas: tick, task, cluster.",
                extra_json_schema={"pattern": "^(tick|task|cluster)(,(tick|task|cluster))*$"},
            ),
        ]
        | Absent
    ) = msgspec.UNSET


@get(
    "/v1/events",
    Operation(
        id="events",
        tag="Operations",
        summary="Receive ticks and changes of tasks, checks and the cluster as server-sent events",
        responses={200: Success("An endless stream of events.", str, media_type=MEDIA_TYPE, example=_EXAMPLE)},
        query=EventsQuery,
        problems=(429,),
    ),
)
async def events(request: ApiRequest) -> StreamingResponse:
    kinds = _kinds(paging.given(paging.parse_query(request, EventsQuery).types))
    request.context.event_stream.check_capacity(request.tenant_id)
    return StreamingResponse(_stream(request, kinds), _HEADERS)


def _kinds(text: str | None) -> frozenset[EventKind]:
    if text is None:
        return PUBLISHED_KINDS
    if unknown := set(text.split(",")) - PUBLISHED_KINDS:
        raise InvalidInput.of("types", f'"{min(unknown)[:50]}" is not one of tick, task, cluster, check')
    return frozenset(EventKind(one) for one in text.split(","))


async def _stream(request: ApiRequest, kinds: frozenset[EventKind]) -> AsyncIterator[bytes]:
    event_stream = request.context.event_stream
    subscription = event_stream.subscribe(request.tenant_id, kinds)  # here, not in the handler, so that it always ends
    try:
        with request.open_session() as session:
            session.ended.add_done_callback(lambda _: subscription.close())
            yield _hello_event(event_stream).block
            async for block in _blocks(subscription):
                yield block
    finally:
        event_stream.unsubscribe(subscription)


async def _blocks(subscription: EventSubscription) -> AsyncIterator[bytes]:
    while True:
        found = await subscription.take(KEEP_ALIVE_SECONDS)
        if found:
            yield b"".join([event.block for event in found])
        elif subscription.is_closed:
            return
        else:
            yield b": keep-alive\n\n"


def _hello_event(event_stream: EventStream) -> StreamEvent:
    data: dict[str, Any] = {"hears": "cluster" if event_stream.receives_other_nodes else "node", "replays": False}
    return StreamEvent(uuid_utils.compat.uuid7(), EventKind.HELLO, None, data)


ROUTES = [events]
