"""The form that creates or changes a schedule, with a preview of its next ticks while it is filled in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import quote
from zoneinfo import available_timezones

from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get, post
from everbeat.core.calendars import Calendar
from everbeat.core.errors import EverbeatError, InvalidInput
from everbeat.core.preview import Preview, preview
from everbeat.core.rules import DstFold, DstGap
from everbeat.core.schedules import CatchUp, Overlap, Schedule, anchored
from everbeat.web.forms import read_form
from everbeat.web.pages.declarations import MANAGE, READ
from everbeat.web.pages.queries import query_of
from everbeat.web.rendering import page, redirect
from everbeat.web.schedule_fields import PRESETS, TRIGGERS, definition_of, fields_of, new_fields, rule_of

_TICKS = 8


@get("/new-schedule", MANAGE)
async def new_schedule(request: ApiRequest) -> Response:
    fields = {**new_fields(await request.context.store.clock()), **query_of(request)}
    return await _form_page(request, fields)


@post("/new-schedule", MANAGE)
async def create_schedule(request: ApiRequest) -> Response:
    form = await read_form(request)
    if form.is_set("preview"):
        return await _form_page(request, form)
    try:
        definition = definition_of(form)
        await request.context.schedules.create(request.tenant_id, definition, by=request.caller)
    except EverbeatError as error:
        return await _form_page(request, form, error=error)
    return redirect(f"/schedules/{quote(definition['name'])}", "The schedule was created.")


@post("/new-schedule/preview", READ)
async def show_preview(request: ApiRequest) -> Response:
    """The preview alone, while the form is filled in."""
    form = await read_form(request)
    return await page(request, "parts/preview.html", **await _preview(request, form))


@get("/schedules/{ref}/edit", MANAGE)
async def edit_schedule(request: ApiRequest) -> Response:
    schedule = await request.context.schedules.get(request.tenant_id, request.path_params["ref"])
    return await _form_page(request, fields_of(schedule), schedule)


@post("/schedules/{ref}/edit", MANAGE)
async def change_schedule(request: ApiRequest) -> Response:
    form = await read_form(request)
    schedule = await request.context.schedules.get(request.tenant_id, request.path_params["ref"])
    if form.is_set("preview"):
        return await _form_page(request, form, schedule)
    revision = form.text("revision")
    try:
        changed = await request.context.schedules.patch(
            request.tenant_id,
            str(schedule.id),
            definition_of(form, schedule),
            if_match=int(revision) if revision.isdecimal() else None,
            by=request.caller,
        )
    except EverbeatError as error:
        return await _form_page(request, form, schedule, error=error)
    return redirect(f"/schedules/{quote(changed.spec.name)}", f"The schedule was saved as revision {changed.revision}.")


async def _form_page(
    request: ApiRequest, fields: Mapping[str, str], schedule: Schedule | None = None, error: EverbeatError | None = None
) -> Response:
    errors = error.errors if isinstance(error, InvalidInput) else ()
    return await page(
        request,
        "schedule_form.html",
        200 if error is None else 422,
        fields=fields,
        schedule=schedule,
        error=error,
        errors={one.field: one.message for one in errors},
        presets=PRESETS,
        triggers=TRIGGERS,
        zones=_zones(),
        overlaps=list(Overlap),
        catch_ups=list(CatchUp),
        gaps=list(DstGap),
        folds=list(DstFold),
        **await _preview(request, fields),
    )


async def _preview(request: ApiRequest, fields: Mapping[str, str]) -> dict[str, Any]:
    store = request.context.store
    now = await store.clock()
    try:
        rule = anchored(rule_of(fields), None, now)
        calendars: Mapping[str, Calendar] = {}
        if rule.exclude or rule.only:
            calendars = {one.name: one for one in await store.calendar_list(request.tenant_id)}
        # A rule with rare ticks can take long to compute. It must not delay the tick loop of this process.
        found: Preview = await asyncio.to_thread(preview, rule, now, _TICKS, calendars)
    except InvalidInput as error:
        return {"found": None, "problem": "; ".join(f"{one.field}: {one.message}" for one in error.errors), "now": now}
    return {"found": found, "problem": None, "zone": rule.timezone, "now": now}


@cache
def _zones() -> list[str]:
    return sorted(zone for zone in available_timezones() if "/" in zone or zone == "UTC")


ROUTES = [new_schedule, create_schedule, show_preview, edit_schedule, change_schedule]
