"""Incidents: the list, one incident, and acknowledging them."""

from __future__ import annotations

import msgspec

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get, post
from everbeat.core.errors import InvalidInput
from everbeat.core.incident_links import why_link
from everbeat.core.incidents import IncidentState
from everbeat.core.names import has_control_characters
from everbeat.web.forms import read_form
from everbeat.web.inputs import id_of, optional_name
from everbeat.web.pages.declarations import MANAGE, READ
from everbeat.web.pages.queries import query_of
from everbeat.web.rendering import page, redirect

_PAGE_SIZE = 50
_MAX_NOTE = 1000
# What is shown without a filter: what somebody may have to do something about.
UNRESOLVED = (IncidentState.OPEN, IncidentState.ACKNOWLEDGED)


@get("/incidents", READ)
async def list_incidents(request: ApiRequest) -> Response:
    query, context = query_of(request), request.context
    state = query.get("state", "")
    states = _states(state)
    alert = optional_name(query, "alert")
    before = paging.time_id_before(query["cursor"]) if "cursor" in query else None
    found = await context.alerts.incidents(request.tenant_id, states=states, alert=alert, before=before, limit=_PAGE_SIZE + 1)
    shown, last = paging.split_page(found, _PAGE_SIZE)
    return await page(
        request,
        "incidents.html",
        incidents=shown,
        state=state,
        states=["", *IncidentState, "all"],
        alert=alert,
        has_rules=bool(await context.alerts.page(request.tenant_id, after_name=None, limit=1)),
        now=await context.store.clock(),
        next_cursor=None if last is None else paging.time_id_cursor(last.opened_at, last.id),
    )


def _states(text: str) -> tuple[IncidentState, ...]:
    if not text:
        return UNRESOLVED
    if text == "all":
        return tuple(IncidentState)
    try:
        return (IncidentState(text),)
    except ValueError:
        raise InvalidInput.of("state", f"must be one of {', '.join(IncidentState)} and all") from None


@get("/incidents/{id}", READ)
async def show_incident(request: ApiRequest) -> Response:
    incident = await request.context.alerts.incident(request.tenant_id, id_of(request, "id", "incident"))
    details = msgspec.json.decode(incident.details)
    now = await request.context.store.clock()
    return await page(request, "incident.html", incident=incident, details=details, why=_why(why_link(incident)), now=now)


def _why(link: str | None) -> str | None:
    """Return the page of the dashboard that explains the tick or shows the task."""
    if link is None:
        return None
    path = link.removeprefix("/v1")
    return path.removesuffix("/why") if path.startswith("/tasks/") else path


@post("/incidents/{id}/acknowledge", MANAGE)
async def acknowledge(request: ApiRequest) -> Response:
    form = await read_form(request)
    id_, note = id_of(request, "id", "incident"), form.text("note")
    if len(note) > _MAX_NOTE or has_control_characters(note):
        raise InvalidInput.of("note", f"must be at most {_MAX_NOTE} characters, without control characters")
    await request.context.alerts.acknowledge(request.tenant_id, id_, note=note or None, by=request.caller)
    return redirect(f"/incidents/{id_}", "The incident was acknowledged. No more reminders are sent for it.")


ROUTES = [list_incidents, show_incident, acknowledge]
