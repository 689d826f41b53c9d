"""The audit of ticks by schedule, and the audit log: who changed what."""

from __future__ import annotations

from uuid import UUID

import msgspec

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get
from everbeat.core.access import Scope
from everbeat.core.audit_log import AuditLogAction
from everbeat.services.audit import audit_window
from everbeat.store.values import AuditLogFilter
from everbeat.web.inputs import optional_choice, optional_moment
from everbeat.web.pages.declarations import MANAGE, READ
from everbeat.web.pages.queries import query_of
from everbeat.web.rendering import page

_PAGE_SIZE = 50


@get("/audit", READ)
async def show_audit(request: ApiRequest) -> Response:
    """The page without its figures. The audit reads every schedule, so it is loaded after the page."""
    query = query_of(request)
    now = await request.context.store.clock()
    start, _ = audit_window(optional_moment(query, "from"), optional_moment(query, "to"), now)
    return await page(request, "audit.html", start=start, filters=query)


@get("/audit/report", READ)
async def show_audit_report(request: ApiRequest) -> Response:
    query = query_of(request)
    from_, to = optional_moment(query, "from"), optional_moment(query, "to")
    after = paging.name_after(query["cursor"]) if "cursor" in query else None
    report = await request.context.audit.run(request.tenant_id, from_=from_, to=to, after_name=after, limit=_PAGE_SIZE + 1)
    shown, last = paging.split_page(report.schedules, _PAGE_SIZE)
    return await page(
        request,
        "parts/audit_report.html",
        total=report.total,
        schedules=shown,
        filters=query,
        next_cursor=None if last is None else paging.name_cursor(last.schedule.spec.name),
    )


@get("/audit-log", MANAGE)
async def show_audit_log(request: ApiRequest) -> Response:
    context, query = request.context, query_of(request)
    action = optional_choice(query, "action", AuditLogAction)
    filter_ = AuditLogFilter(
        from_at=optional_moment(query, "from"),
        to_at=optional_moment(query, "to"),
        action=None if action is None else action.value,
    )
    before = paging.time_id_before(query["cursor"]) if "cursor" in query else None
    tenant_id: UUID | None = None if Scope.ADMIN in request.caller.scopes else request.tenant_id
    found = await context.store.audit_log_list(tenant_id, filter_, before=before, limit=_PAGE_SIZE + 1)
    shown, last = paging.split_page(found, _PAGE_SIZE)
    next_cursor = None
    if last is not None and last.at is not None:
        next_cursor = paging.time_id_cursor(last.at, last.id)
    return await page(
        request,
        "audit_log.html",
        entries=[(one, msgspec.json.decode(one.detail)) for one in shown],
        actions=list(AuditLogAction),
        filters=query,
        now=await context.store.clock(),
        next_cursor=next_cursor,
    )


ROUTES = [show_audit, show_audit_report, show_audit_log]
