"""/v1/preview: the description and the next ticks of a trigger, without saving anything."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated

import msgspec

from everbeat.api import paging
from everbeat.api.bodies import read_json
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import Body, Operation, Success
from everbeat.api.paging import NoQuery
from everbeat.api.responses import PreviewResponse, PreviewTickResponse
from everbeat.api.routing import post
from everbeat.core.calendars import Calendar
from everbeat.core.definitions import CalendarFilter, Instant, TriggerInput, convert, rfc3339, utc
from everbeat.core.preview import MAX_COUNT, preview
from everbeat.core.schedules import anchored


class PreviewInput(TriggerInput, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trigger, and which of its ticks to show: the first `count` after the instant `after`, by default now."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)] = 10
    after: Instant | None = None
    calendars: CalendarFilter = CalendarFilter()


@post(
    "/v1/preview",
    Operation(
        id="preview",
        tag="Schedules",
        summary="Describe a trigger and show its next ticks; saves nothing",
        responses={200: Success("The description, the next ticks, and warnings.", PreviewResponse)},
        query=NoQuery,
        body=Body(
            PreviewInput,
            {
                "cron": {"cron": "30 2 * * *", "timezone": "Europe/Paris", "count": 5},
                "rrule": {"rrule": "FREQ=MONTHLY;BYDAY=-1FR", "timezone": "UTC", "after": "2026-01-01T00:00:00Z"},
            },
        ),
    ),
)
async def preview_trigger(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    body = convert(await read_json(request), PreviewInput)
    rule = body.rule(exclude=tuple(body.calendars.exclude), only=tuple(body.calendars.only))
    store = request.context.store
    after = await store.clock() if body.after is None else paging.bounded("after", utc(body.after, "after"))
    rule = anchored(rule, None, after)
    calendars: Mapping[str, Calendar] = {}
    if rule.exclude or rule.only:
        calendars = {one.name: one for one in await store.calendar_list(request.tenant_id)}
    # A rule with rare ticks can take long to compute. It must not delay the tick loop of this process.
    shown = await asyncio.to_thread(preview, rule, after, body.count, calendars)
    ticks = [PreviewTickResponse(rfc3339(tick.at), tick.local) for tick in shown.ticks]
    return json_response(PreviewResponse(shown.description, ticks, shown.warnings))


ROUTES = [preview_trigger]
