"""Runs of a schedule on request: trigger it with an edited payload, backfill past ticks with a dry run. And its revisions."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get, post
from everbeat.core.access import Scope
from everbeat.core.definitions import encode_payload
from everbeat.core.describe import describe
from everbeat.core.errors import InvalidInput
from everbeat.services.backfill import BackfillResult
from everbeat.store.values import AuditLogFilter
from everbeat.web.formats import json_text
from everbeat.web.forms import read_form
from everbeat.web.inputs import json_of, optional_moment
from everbeat.web.pages.declarations import MANAGE, READ
from everbeat.web.pages.queries import query_of
from everbeat.web.pages.schedule import schedule_link
from everbeat.web.rendering import page, redirect

_SHOWN_TICKS = 50
# The audit log has no index by schedule, so revisions are looked for among this many of its newest entries.
_ENTRIES_READ = 1000


@get("/schedules/{ref}/trigger", MANAGE)
async def show_trigger(request: ApiRequest) -> Response:
    schedule = await request.context.schedules.get(request.tenant_id, request.path_params["ref"])
    payload = json_text(schedule.spec.payload)
    return await page(request, "trigger.html", schedule=schedule, payload=payload, link=schedule_link(schedule), error=None)


@post("/schedules/{ref}/trigger", MANAGE)
async def trigger(request: ApiRequest) -> Response:
    form = await read_form(request)
    schedule = await request.context.schedules.get(request.tenant_id, request.path_params["ref"])
    link = schedule_link(schedule)
    try:
        payload = encode_payload(json_of("payload", form.text("payload"))) if form.is_set("payload") else None
        task = await request.context.backfill.trigger(request.tenant_id, str(schedule.id), payload, by=request.caller)
    except InvalidInput as error:
        payload_text = form.text("payload")
        return await page(request, "trigger.html", 422, schedule=schedule, payload=payload_text, link=link, error=error)
    shown = f"/tasks/{task.id}" if Scope.READ in request.caller.scopes else link
    return redirect(shown, "The schedule was triggered. This is the new task.")


@get("/schedules/{ref}/backfill", MANAGE)
async def show_backfill(request: ApiRequest) -> Response:
    """The dialog. With a window, it is a dry run that shows which ticks would get a task."""
    query = query_of(request)
    schedule = await request.context.schedules.get(request.tenant_id, request.path_params["ref"])
    zone = schedule.spec.rule.timezone
    now = await request.context.store.clock()
    from_, to = optional_moment(query, "from", zone) or now - timedelta(days=1), optional_moment(query, "to", zone) or now
    every = "every" in query
    found: BackfillResult | None = None
    error: InvalidInput | None = None
    if "from" in query:
        try:
            found = await request.context.backfill.backfill(
                request.tenant_id, str(schedule.id), from_=from_, to=to, missing_only=not every, dry_run=True
            )
        except InvalidInput as refused:
            error = refused
    return await page(
        request,
        "backfill.html",
        schedule=schedule,
        link=schedule_link(schedule),
        from_=from_,
        to=to,
        every=every,
        found=found,
        error=error,
        zone=zone,
        shown=_SHOWN_TICKS,
    )


@post("/schedules/{ref}/backfill", MANAGE)
async def backfill(request: ApiRequest) -> Response:
    form = await read_form(request)
    schedule = await request.context.schedules.get(request.tenant_id, request.path_params["ref"])
    zone = schedule.spec.rule.timezone
    from_, to = optional_moment(form, "from", zone), optional_moment(form, "to", zone)
    if from_ is None or to is None:
        raise InvalidInput.of("from", "give the beginning and the end")
    rate = form.text("rate_per_second")
    try:
        rate_per_second = float(rate) if rate else None
    except ValueError:
        raise InvalidInput.of("rate_per_second", "must be a number") from None
    if rate_per_second is not None and not 0.001 <= rate_per_second <= 100_000:
        raise InvalidInput.of("rate_per_second", "must be from 0.001 to 100,000")
    done = await request.context.backfill.backfill(
        request.tenant_id,
        str(schedule.id),
        from_=from_,
        to=to,
        missing_only=not form.is_set("every"),
        rate_per_second=rate_per_second,
        key=form.text("key") or None,
        by=request.caller,
    )
    return redirect(schedule_link(schedule), f"{done.count:,} ticks were backfilled.")


@get("/schedules/{ref}/revisions", READ)
async def show_revisions(request: ApiRequest) -> Response:
    context = request.context
    schedule = await context.schedules.get(request.tenant_id, request.path_params["ref"])
    past = await context.store.schedule_past_rules(request.tenant_id, [schedule.id])
    may_read = Scope.MANAGE in request.caller.scopes
    entries = []
    if may_read:
        found = await context.store.audit_log_list(request.tenant_id, AuditLogFilter(), before=None, limit=_ENTRIES_READ)
        entries = [(one, msgspec.json.decode(one.detail)) for one in found if one.subject == str(schedule.id)]
    return await page(
        request,
        "revisions.html",
        schedule=schedule,
        link=schedule_link(schedule),
        text=describe(schedule.spec.rule, schedule.id),
        past=[(one, describe(one.rule, schedule.id)) for one in reversed(past)],
        entries=entries,
        may_read=may_read,
        entries_read=_ENTRIES_READ,
        now=await context.store.clock(),
    )


ROUTES = [show_trigger, trigger, show_backfill, backfill, show_revisions]
