"""Calendars: the list, and a form that creates, changes and deletes one."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get, post
from everbeat.core.calendars import WEEKDAYS, Calendar
from everbeat.core.errors import EverbeatError, InvalidInput, NotFound
from everbeat.web.forms import Form, read_form
from everbeat.web.inputs import json_of
from everbeat.web.pages.declarations import MANAGE, READ
from everbeat.web.pages.queries import query_of
from everbeat.web.rendering import page, redirect

_PAGE_SIZE = 50


@get("/calendars", READ)
async def list_calendars(request: ApiRequest) -> Response:
    query = query_of(request)
    after = paging.name_after(query["cursor"]) if "cursor" in query else None
    found = await request.context.calendars.page(request.tenant_id, after_name=after, limit=_PAGE_SIZE + 1)
    shown, last = paging.split_page(found, _PAGE_SIZE)
    next_cursor = None if last is None else paging.name_cursor(last.name)
    return await page(request, "calendars.html", calendars=shown, weekdays=WEEKDAYS, next_cursor=next_cursor)


@get("/calendars/{name}", READ)
async def show_calendar(request: ApiRequest) -> Response:
    name = request.path_params["name"]
    try:
        calendar = await request.context.calendars.get(request.tenant_id, name)
    except NotFound:
        if name != "new":
            raise
        return await _form(request, None, {})
    return await _form(request, calendar, _fields(calendar))


@post("/calendars/{name}", MANAGE)
async def put_calendar(request: ApiRequest) -> Response:
    form = await read_form(request)
    name = form.text("name") or request.path_params["name"]
    try:
        calendar, is_new = await request.context.calendars.put(request.tenant_id, name, _definition(form), by=request.caller)
    except InvalidInput as error:
        return await _form(request, None, dict(form), error=error, status=422)
    link = f"/calendars/{quote(calendar.name)}"
    return redirect(link, "The calendar was created." if is_new else "The calendar was saved. Its schedules use it now.")


@post("/calendars/{name}/delete", MANAGE)
async def delete_calendar(request: ApiRequest) -> Response:
    await read_form(request)
    name = request.path_params["name"]
    await request.context.calendars.delete(request.tenant_id, name, by=request.caller)
    return redirect("/calendars", f"The calendar {name} was deleted.")


async def _form(
    request: ApiRequest,
    calendar: Calendar | None,
    fields: dict[str, str],
    error: EverbeatError | None = None,
    status: int = 200,
) -> Response:
    return await page(request, "calendar.html", status, calendar=calendar, fields=fields, error=error, weekdays=WEEKDAYS)


def _fields(calendar: Calendar) -> dict[str, str]:
    """Return the calendar as the fields of the form."""
    definition = calendar.to_definition()
    dates = [one if isinstance(one, str) else f"{one['from']}..{one['to']}" for one in definition["dates"]]
    return {
        "name": calendar.name,
        "description": calendar.description,
        "dates": "\n".join(dates),
        "yearly": "\n".join(definition["yearly"]),
        "intervals": "\n".join(f"{one['from']}..{one['to']}" for one in definition["intervals"]),
        **{f"weekday_{day}": "1" for day in definition["weekdays"]},
    }


def _definition(form: Form) -> dict[str, Any]:
    if form.is_set("json"):
        found = json_of("json", form.text("json"))
        if not isinstance(found, dict):
            raise InvalidInput.of("json", "must be a JSON object")
        return found
    definition: dict[str, Any] = {
        "description": form.text("description"),
        "dates": [_span(line) for line in form.text("dates").split()],
        "yearly": form.text("yearly").split(),
        "intervals": [_span(line) for line in form.text("intervals").split()],
        "weekdays": [day for day in WEEKDAYS if form.is_set(f"weekday_{day}")],
    }
    if form.is_set("ics"):
        definition["ics"] = form.text("ics")
    return definition


def _span(line: str) -> str | dict[str, str]:
    first, separator, last = line.partition("..")
    return {"from": first, "to": last} if separator else first


ROUTES = [list_calendars, show_calendar, put_calendar, delete_calendar]
