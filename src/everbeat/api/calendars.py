"""/v1/calendars: named sets of days and hours that schedules exclude or are restricted to."""

from __future__ import annotations

from typing import Annotated

import msgspec

from everbeat.api import paging
from everbeat.api.bodies import read_json
from everbeat.api.messages import NO_CONTENT, ApiRequest, Response, json_response
from everbeat.api.operations import Body, Operation, Success
from everbeat.api.paging import NoQuery, PageQuery
from everbeat.api.responses import CalendarList, CalendarResponse, Span
from everbeat.api.routing import delete, get, put
from everbeat.core.access import Scope
from everbeat.core.calendars import Calendar

WeekdayText = Annotated[
    str, msgspec.Meta(description="MON to SUN, in upper or lower case.", extra_json_schema={"pattern": "^[A-Za-z]{3}$"})
]


class CalendarInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dates and ranges of dates, days of the week, days of the year, and intervals; or an ICS file that contains them."""

    description: str | None = None
    dates: list[str | Span] | None = None
    weekdays: list[WeekdayText] | None = None
    yearly: list[str] | None = None
    intervals: list[Span] | None = None
    ics: str | None = None


_EXAMPLE = {"description": "Days off", "dates": ["2026-12-24", {"from": "2026-12-28", "to": "2026-12-31"}], "yearly": ["01-01"]}


@get(
    "/v1/calendars",
    Operation(
        id="listCalendars",
        tag="Calendars",
        summary="List calendars by name",
        responses={200: Success("A page of calendars.", CalendarList)},
        query=PageQuery,
    ),
)
async def list_calendars(request: ApiRequest) -> Response:
    query = paging.parse_query(request, PageQuery)
    after_name = paging.name_after(query.cursor)
    found = await request.context.calendars.page(request.tenant_id, after_name=after_name, limit=query.limit + 1)
    page, last = paging.split_page(found, query.limit)
    next_cursor = None if last is None else paging.name_cursor(last.name)
    return json_response(CalendarList([_item(calendar) for calendar in page], next_cursor))


@get(
    "/v1/calendars/{name}",
    Operation(
        id="getCalendar",
        tag="Calendars",
        summary="Read a calendar",
        responses={200: Success("The calendar.", CalendarResponse, headers=("ETag",))},
        query=NoQuery,
        problems=(404,),
    ),
)
async def get_calendar(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    return _response(await request.context.calendars.get(request.tenant_id, request.path_params["name"]))


@put(
    "/v1/calendars/{name}",
    Operation(
        id="putCalendar",
        scope=Scope.MANAGE,
        tag="Calendars",
        summary="Create or replace a calendar; the schedules that use it are updated",
        responses={
            200: Success("The calendar.", CalendarResponse, headers=("ETag",)),
            201: Success("The new calendar.", CalendarResponse, headers=("ETag", "Location")),
        },
        query=NoQuery,
        body=Body(CalendarInput, {"days off": _EXAMPLE}),
        problems=(409,),
    ),
)
async def put_calendar(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    data = await read_json(request)
    service = request.context.calendars
    calendar, is_new = await service.put(request.tenant_id, request.path_params["name"], data, by=request.caller)
    return _response(calendar, 201 if is_new else 200)


@delete(
    "/v1/calendars/{name}",
    Operation(
        id="deleteCalendar",
        scope=Scope.MANAGE,
        tag="Calendars",
        summary="Remove a calendar that no schedule uses",
        responses={204: Success("The calendar was removed.")},
        query=NoQuery,
        problems=(404, 409),
    ),
)
async def delete_calendar(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    await request.context.calendars.delete(request.tenant_id, request.path_params["name"], by=request.caller)
    return NO_CONTENT


def _response(calendar: Calendar, status: int = 200) -> Response:
    headers = {"ETag": f'"{calendar.revision}"'}
    if status == 201:
        headers["Location"] = f"/v1/calendars/{calendar.name}"
    return json_response(_item(calendar), status, headers)


def _item(calendar: Calendar) -> CalendarResponse:
    return CalendarResponse(name=calendar.name, **calendar.to_definition(), revision=calendar.revision)


ROUTES = [list_calendars, get_calendar, put_calendar, delete_calendar]
