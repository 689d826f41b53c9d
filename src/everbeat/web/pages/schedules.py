"""The list of schedules: search, filters in the URL, and a tick strip per row."""

from __future__ import annotations

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get
from everbeat.core.describe import describe
from everbeat.core.schedules import Status
from everbeat.web.inputs import SCHEDULE_FILTERS, schedule_filter
from everbeat.web.pages.declarations import READ
from everbeat.web.pages.queries import query_of
from everbeat.web.pages.strips import recent_charts
from everbeat.web.rendering import page

# Half of other lists, because the tick strips of a row are large.
_PAGE_SIZE = 25


@get("/schedules", READ)
async def list_schedules(request: ApiRequest) -> Response:
    query = query_of(request)
    filter_ = schedule_filter(query)
    context = request.context
    after = paging.name_after(query["cursor"]) if "cursor" in query else None
    found = await context.schedules.page(request.tenant_id, filter_, after_name=after, limit=_PAGE_SIZE + 1)
    shown, last = paging.split_page(found, _PAGE_SIZE)
    now = await context.store.clock()
    charts = await recent_charts(context.store, shown, now)
    return await page(
        request,
        "schedules.html",
        schedules=shown,
        strips=charts.strips,
        sparklines=charts.sparklines,
        texts={one.id: describe(one.spec.rule, one.id) for one in shown},
        now=now,
        filters={name: query[name] for name in SCHEDULE_FILTERS if name in query},
        pauses=await context.pauses.active(request.tenant_id),
        statuses=list(Status),
        next_cursor=None if last is None else paging.name_cursor(last.spec.name),
    )


ROUTES = [list_schedules]
