"""The search of the palette: pages, schedules by a part of their name, checks by its beginning, and tasks by id."""

from __future__ import annotations

from urllib.parse import quote
from uuid import UUID

from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get
from everbeat.core.names import is_name
from everbeat.store.values import ScheduleFilter
from everbeat.web.pages.declarations import READ
from everbeat.web.pages.queries import query_of
from everbeat.web.rendering import page

_PAGES = {
    "Overview": "/",
    "Schedules": "/schedules",
    "Create a schedule": "/new-schedule",
    "Checks": "/checks",
    "Create a check": "/new-check",
    "Timeline": "/timeline",
    "Tasks": "/tasks",
    "Dead letters": "/dead-letters",
    "Queues": "/queues",
    "Incidents": "/incidents",
    "Alerts": "/alerts",
    "Workers": "/workers",
    "Cluster": "/cluster",
    "Calendars": "/calendars",
    "Operations": "/operations",
    "Audit": "/audit",
    "Audit log": "/audit-log",
    "Service levels": "/slo",
}
_FOUND = 8


@get("/search", READ)
async def search(request: ApiRequest) -> Response:
    text = query_of(request).get("q", "")
    found = [(name, href, "page") for name, href in _PAGES.items() if text.lower() in name.lower()]
    if text and is_name(text):
        names = await _schedules(request, text)
        checks = await request.context.checks.page(request.tenant_id, prefix=text, limit=_FOUND)
        found = [(one.spec.name, f"/checks/{quote(one.spec.name)}", "check") for one in checks] + found
        found = [(name, f"/schedules/{quote(name)}", "schedule") for name in names] + found
    if (id_ := _task_id(text)) is not None:
        found = [(text, f"/tasks/{id_}", "task"), *found]
    return await page(request, "search.html", found=found[: 2 * _FOUND], text=text)


async def _schedules(request: ApiRequest, text: str) -> list[str]:
    """The names that begin with the text, and then those that contain it elsewhere."""
    store, filter_ = request.context.store, ScheduleFilter(name_prefix=text)
    first = await store.schedule_list(request.tenant_id, filter_, after_name=None, limit=_FOUND)
    names = dict.fromkeys(one.spec.name for one in first)
    if len(names) < _FOUND:
        names |= dict.fromkeys(await store.schedule_search(request.tenant_id, text, limit=2 * _FOUND))
    return list(names)[:_FOUND]


def _task_id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


ROUTES = [search]
