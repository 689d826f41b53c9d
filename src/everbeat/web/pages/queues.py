"""Queues and workers: depths, who asks for which queue, and pauses with a note and an end."""

from __future__ import annotations

from datetime import datetime, timedelta

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get, post
from everbeat.core.access import Scope
from everbeat.core.errors import Forbidden, InvalidInput
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.pauses import pause_of
from everbeat.web.forms import Form, read_form
from everbeat.web.inputs import optional_moment, optional_name
from everbeat.web.pages.declarations import MANAGE, READ
from everbeat.web.pages.queries import query_of
from everbeat.web.rendering import page, redirect

_PAGE_SIZE = 100
_MAX_NOTE_CHARACTERS = 1000
_PERIODS = {"15min": timedelta(minutes=15), "1h": timedelta(hours=1), "8h": timedelta(hours=8), "24h": timedelta(days=1)}


@get("/queues", READ)
async def list_queues(request: ApiRequest) -> Response:
    context, query = request.context, query_of(request)
    pauses = await context.pauses.active(request.tenant_id)
    views = await context.workers.queues(request.tenant_id, [one.queue for one in pauses if one.queue is not None])
    after = paging.name_after(query["cursor"]) if "cursor" in query else None
    shown, last = paging.split_page([one for one in views if after is None or one.queue > after][: _PAGE_SIZE + 1], _PAGE_SIZE)
    now = await context.store.clock()
    return await page(
        request,
        "queues.html",
        queues=[(one, pause_of(pauses, request.tenant_id, one.queue, now)) for one in shown],
        unattended=sum(1 for one in views if not one.workers and (one.ready or one.running)),
        pauses=pauses,
        periods=list(_PERIODS),
        now=now,
        next_cursor=None if last is None else paging.name_cursor(last.queue),
    )


@get("/workers", READ)
async def list_workers(request: ApiRequest) -> Response:
    context, query = request.context, query_of(request)
    queue = optional_name(query, "queue")
    before = paging.time_id_before(query["cursor"]) if "cursor" in query else None
    found = await context.workers.page(request.tenant_id, queue=queue, before=before, limit=_PAGE_SIZE + 1)
    shown, last = paging.split_page(found, _PAGE_SIZE)
    return await page(
        request,
        "workers.html",
        workers=shown,
        queue=queue,
        now=await context.store.clock(),
        next_cursor=None if last is None else paging.time_id_cursor(last.info.last_seen_at, last.info.id),
    )


@post("/queues/pause", MANAGE)
async def pause_queue(request: ApiRequest) -> Response:
    form = await read_form(request)
    queue = _queue(form)
    note, until = await _note_and_end(request, form)
    await request.context.pauses.pause(request.tenant_id, queue, note=note, until=until, by=request.caller)
    return redirect("/queues", f"The queue {queue} is paused. Its ticks are recorded as skipped, and its tasks wait.")


@post("/queues/resume", MANAGE)
async def resume_queue(request: ApiRequest) -> Response:
    form = await read_form(request)
    queue = _queue(form)
    await request.context.pauses.resume(request.tenant_id, queue, by=request.caller)
    return redirect("/queues", f"The pause of the queue {queue} has ended.")


@post("/pauses/begin", MANAGE)
async def pause_all(request: ApiRequest) -> Response:
    form = await read_form(request)
    note, until = await _note_and_end(request, form)
    tenant_id = None if _all_tenants(request, form) else request.tenant_id
    await request.context.pauses.pause(tenant_id, note=note, until=until, by=request.caller)
    return redirect("/queues", "Everything is paused. Ticks are recorded as skipped, and tasks wait.")


@post("/pauses/end", MANAGE)
async def resume_all(request: ApiRequest) -> Response:
    form = await read_form(request)
    tenant_id = None if _all_tenants(request, form) else request.tenant_id
    await request.context.pauses.resume(tenant_id, by=request.caller)
    return redirect("/queues", "The pause has ended. Queues and schedules that were paused by themselves stay paused.")


async def _note_and_end(request: ApiRequest, form: Form) -> tuple[str | None, datetime | None]:
    note = form.text("note")[:_MAX_NOTE_CHARACTERS] or None
    period = _PERIODS.get(form.text("for"))
    if period is not None:
        return note, await request.context.store.clock() + period
    return note, optional_moment(form, "until")


def _all_tenants(request: ApiRequest, form: Form) -> bool:
    if not form.is_set("all_tenants"):
        return False
    if Scope.ADMIN not in request.caller.scopes:
        raise Forbidden("Pausing all tenants requires an API key with the scope admin.")
    return True


def _queue(form: Form) -> str:
    queue = form.text("queue")
    if not is_name(queue):
        raise InvalidInput.of("queue", NAME_MESSAGE)
    return queue


ROUTES = [list_queues, list_workers, pause_queue, resume_queue, pause_all, resume_all]
