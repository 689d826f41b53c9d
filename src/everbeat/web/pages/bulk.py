"""Bulk operations: confirm an action on all that match, start it, watch its progress, and abort it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from everbeat.api import paging
from everbeat.api.bulk import bulk_response
from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get, post
from everbeat.core.bulk import BulkAction, BulkState
from everbeat.core.errors import EverbeatError, InvalidInput
from everbeat.services.bulk import BulkRequest
from everbeat.web.confirmations import check_confirmed
from everbeat.web.forms import Form, read_form
from everbeat.web.inputs import SCHEDULE_FILTERS, TASK_FILTERS, id_of, schedule_filter, task_match
from everbeat.web.pages.declarations import MANAGE, READ
from everbeat.web.pages.queries import query_of
from everbeat.web.rendering import page, redirect

_PAGE_SIZE = 50
_MAX_SELECTED = 100
_SCHEDULE_ACTIONS = (BulkAction.PAUSE, BulkAction.RESUME, BulkAction.TRIGGER, BulkAction.DELETE)
_TASK_ACTIONS = (BulkAction.CANCEL, BulkAction.RETRY)


@get("/schedules/bulk", MANAGE)
async def confirm_schedules(request: ApiRequest) -> Response:
    query = query_of(request)
    return await _confirm(request, "schedules", _schedules_request(query), query)


@get("/tasks/bulk", MANAGE)
async def confirm_tasks(request: ApiRequest) -> Response:
    query = query_of(request)
    return await _confirm(request, "tasks", await _tasks_request(request, query), query)


async def _confirm(request: ApiRequest, subject: str, bulk: BulkRequest, query: Mapping[str, str]) -> Response:
    names = SCHEDULE_FILTERS if subject == "schedules" else TASK_FILTERS
    filters = {name: query[name] for name in names if query.get(name)}
    matched = await request.context.bulk.count(request.tenant_id, bulk)
    return await page(request, "bulk.html", subject=subject, action=bulk.action.value, matched=matched, filters=filters)


@post("/schedules/bulk", MANAGE)
async def start_schedules(request: ApiRequest) -> Response:
    form = await read_form(request)
    return await _start(request, form, _schedules_request(form))


@post("/tasks/bulk", MANAGE)
async def start_tasks(request: ApiRequest) -> Response:
    form = await read_form(request)
    return await _start(request, form, await _tasks_request(request, form))


async def _start(request: ApiRequest, form: Form, bulk: BulkRequest) -> Response:
    bulk = bulk._replace(expect_count=check_confirmed(form), note=form.text("note")[:1000] or None)
    operation = await request.context.bulk.create(request.tenant_id, bulk, by=request.caller)
    return redirect(f"/operations/{operation.id}")


@post("/schedules/selected", MANAGE)
async def change_selected(request: ApiRequest) -> Response:
    """Change the schedules that are selected on one page of the list, one after the other."""
    form = await read_form(request)
    action, names = _action(form, _SCHEDULE_ACTIONS), form.all("selected")[:_MAX_SELECTED]
    if not names:
        return redirect("/schedules", "No schedule was selected. Select some in the first column.")
    failed = []
    for name in names:
        try:
            await _change(request, action, name)
        except EverbeatError as error:
            failed.append(f"{name}: {error}")
    note = f" Not changed: {'; '.join(failed)[:300]}" if failed else ""
    back = f"/schedules?name_prefix={quote(form.text('name_prefix'))}" if form.is_set("name_prefix") else "/schedules"
    return redirect(back, f"{action.value.capitalize()}: {len(names) - len(failed)} of {len(names)} schedules.{note}")


async def _change(request: ApiRequest, action: BulkAction, name: str) -> None:
    context, tenant_id, by = request.context, request.tenant_id, request.caller
    if action is BulkAction.PAUSE:
        await context.schedules.pause(tenant_id, name, note=None, by=by)
    elif action is BulkAction.RESUME:
        await context.schedules.resume(tenant_id, name, by=by)
    elif action is BulkAction.TRIGGER:
        await context.backfill.trigger(tenant_id, name, by=by)
    else:
        await context.schedules.delete(tenant_id, name, by=by)


@get("/operations", READ)
async def list_operations(request: ApiRequest) -> Response:
    query = query_of(request)
    before = paging.time_id_before(query["cursor"]) if "cursor" in query else None
    found = await request.context.bulk.page(request.tenant_id, before=before, limit=_PAGE_SIZE + 1)
    shown, last = paging.split_page(found, _PAGE_SIZE)
    return await page(
        request,
        "operations.html",
        operations=shown,
        now=await request.context.store.clock(),
        next_cursor=None if last is None else paging.time_id_cursor(last.created_at, last.id),
    )


@get("/operations/{id}", READ)
async def show_operation(request: ApiRequest) -> Response:
    operation = await request.context.bulk.get(request.tenant_id, id_of(request, "id", "operation"))
    now = await request.context.store.clock()
    is_running = operation.state is BulkState.RUNNING
    filter_ = bulk_response(operation).filter
    return await page(request, "operation.html", operation=operation, filter=filter_, is_running=is_running, now=now)


@post("/operations/{id}/cancel", MANAGE)
async def abort(request: ApiRequest) -> Response:
    await read_form(request)
    id_ = id_of(request, "id", "operation")
    await request.context.bulk.cancel(request.tenant_id, id_, by=request.caller)
    return redirect(f"/operations/{id_}", "The operation was aborted. What it has changed stays changed.")


def _schedules_request(values: Mapping[str, str]) -> BulkRequest:
    return BulkRequest(_action(values, _SCHEDULE_ACTIONS), schedule_filter(values))


async def _tasks_request(request: ApiRequest, values: Mapping[str, str]) -> BulkRequest:
    return BulkRequest(_action(values, _TASK_ACTIONS), await task_match(request, values))


def _action(values: Mapping[str, Any], allowed: tuple[BulkAction, ...]) -> BulkAction:
    """Return the action. An address without one, as it is typed by hand, is about the first one; a form always has one."""
    if "action" not in values and not isinstance(values, Form):
        return allowed[0]
    for action in allowed:
        if action.value == values.get("action"):
            return action
    raise InvalidInput.of("action", f"must be one of {', '.join(allowed)}")


ROUTES = [
    *(confirm_schedules, confirm_tasks, start_schedules, start_tasks, change_selected),
    *(list_operations, show_operation, abort),
]
