"""Checks: the list with tick strips, the page of a check with its pings, and its actions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from urllib.parse import quote

from markupsafe import Markup

from everbeat.api import paging
from everbeat.api.checks import ping_url
from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get, post
from everbeat.core.access import Scope
from everbeat.core.check_ledger import CheckLedgerEntry
from everbeat.core.checks import Check, CheckState
from everbeat.core.describe import describe
from everbeat.web.formats import iso, local_time
from everbeat.web.forms import read_form
from everbeat.web.inputs import optional_choice, optional_name
from everbeat.web.pages.declarations import MANAGE, READ
from everbeat.web.pages.queries import query_of
from everbeat.web.rendering import local_path, page, redirect
from everbeat.web.svg import StripCell, sparkline, tick_strip

_PAGE_SIZE = 25
_CELLS = 24
_ENTRIES = 48
_PINGS = 50
_TRANSITIONS = 20
_WINDOW = timedelta(days=62)
_BARS = {"success": "ok", "fail": "bad"}


def check_link(check: Check) -> str:
    return f"/checks/{quote(check.spec.name)}"


@get("/checks", READ)
async def list_checks(request: ApiRequest) -> Response:
    query, context = query_of(request), request.context
    state, prefix = optional_choice(query, "state", CheckState), optional_name(query, "name_prefix")
    after = paging.name_after(query["cursor"]) if "cursor" in query else None
    found = await context.checks.page(request.tenant_id, state=state, prefix=prefix, after_name=after, limit=_PAGE_SIZE + 1)
    shown, last = paging.split_page(found, _PAGE_SIZE)
    now = await context.store.clock()
    recent = await context.check_ledger.recent(request.tenant_id, shown, now, from_=now - _WINDOW, limit=_CELLS)
    return await page(
        request,
        "checks.html",
        checks=shown,
        strips={one.id: _strip(one, recent[one.id]) for one in shown},
        texts={one.id: describe(one.spec.rule, one.id) for one in shown},
        now=now,
        states=list(CheckState),
        filters={name: query[name] for name in ("name_prefix", "state") if name in query},
        next_cursor=None if last is None else paging.name_cursor(last.spec.name),
    )


@get("/checks/{name}", READ)
async def show_check(request: ApiRequest) -> Response:
    context = request.context
    check, now, _ = await context.checks.get(request.tenant_id, request.path_params["name"])
    ledger, since = context.check_ledger, now - _WINDOW
    recent = (await ledger.recent(request.tenant_id, [check], now, from_=since, limit=_ENTRIES // 2))[check.id]
    start = max([now - timedelta(seconds=1), *(one.until or one.scheduled_for for one in recent)])
    upcoming = await ledger.entries(
        check, now, from_=start + timedelta(microseconds=1), to=start + timedelta(days=366), limit=_ENTRIES // 4
    )
    pings = await context.checks.pings(check, before=None, limit=_PINGS)
    ended = [one for one in reversed(pings) if one.duration_seconds is not None]
    durations = sparkline(
        [one.duration_seconds for one in ended],
        [_BARS.get(one.kind.value, "none") for one in ended],
        f"Durations of the last {len(ended)} runs",
        height=60,
    )
    explanation = await context.check_explainer.explain(request.tenant_id, check.spec.name, None)
    return await page(
        request,
        "check.html",
        check=check,
        shown_status=check.status_at(now).value,
        text=describe(check.spec.rule, check.id),
        zone=check.spec.rule.timezone,
        strip=_strip(check, [*recent, *upcoming]),
        pings=pings,
        durations=durations if ended else None,
        transitions=[one for _, one in await context.checks.transitions(check, before=None, limit=_TRANSITIONS)],
        explanation=explanation.explanation,
        url=ping_url(request, check.token) if Scope.MANAGE in request.caller.scopes else None,
        now=now,
        link=check_link(check),
    )


@get("/checks/{name}/why", READ)
async def show_why(request: ApiRequest) -> Response:
    context, query = request.context, query_of(request)
    check, _, _ = await context.checks.get(request.tenant_id, request.path_params["name"])
    at = paging.parse_instant("at", query["at"]) if "at" in query else None
    found = await context.check_explainer.explain(request.tenant_id, check.spec.name, at)
    return await page(
        request, "why.html", schedule=check, found=found, facts=found.facts, link=check_link(check), at=query.get("at")
    )


@post("/checks/{name}/pause", MANAGE)
async def pause(request: ApiRequest) -> Response:
    form = await read_form(request)
    name = request.path_params["name"]
    check = (await request.context.checks.pause(request.tenant_id, name, by=request.caller)).check
    back = local_path(form.text("back")) if form.is_set("back") else check_link(check)
    return redirect(back, f"{name} is paused. Pings are recorded, and none is expected.")


@post("/checks/{name}/resume", MANAGE)
async def resume(request: ApiRequest) -> Response:
    form = await read_form(request)
    name = request.path_params["name"]
    check = (await request.context.checks.resume(request.tenant_id, name, by=request.caller)).check
    back = local_path(form.text("back")) if form.is_set("back") else check_link(check)
    return redirect(back, f"{name} is active again.")


@post("/checks/{name}/rotate", MANAGE)
async def rotate(request: ApiRequest) -> Response:
    form = await read_form(request)
    keeps_old = not form.is_set("revoke")
    name = request.path_params["name"]
    check = (await request.context.checks.rotate(request.tenant_id, name, keeps_old=keeps_old, by=request.caller)).check
    text = "The old one works for another 24 hours." if keeps_old else "The old one no longer works."
    return redirect(check_link(check), f"This is the new ping URL. {text}")


@post("/checks/{name}/delete", MANAGE)
async def delete(request: ApiRequest) -> Response:
    await read_form(request)
    name = request.path_params["name"]
    await request.context.checks.delete(request.tenant_id, name, by=request.caller)
    return redirect("/checks", f"The check {name} was deleted. Its ping URL no longer works.")


def _strip(check: Check, entries: Sequence[CheckLedgerEntry]) -> Markup:
    """The strip of expected pings, each a link to its explanation."""
    cells = [
        StripCell(
            one.outcome, _label(one, check.spec.rule.timezone), f"{check_link(check)}/why?at={quote(iso(one.scheduled_for))}"
        )
        for one in entries
    ]
    if not cells:
        return Markup('<span class="muted">no pings yet</span>')
    return tick_strip(cells, f"Expected pings of {check.spec.name}")


def _label(entry: CheckLedgerEntry, zone: str) -> str:
    text = entry.outcome if entry.reason in (None, entry.outcome) else f"{entry.outcome}: {entry.reason}"
    times = "" if entry.count == 1 else f", {entry.count} pings"
    return f"{local_time(entry.scheduled_for, zone)} {text}{times}"


ROUTES = [list_checks, show_check, show_why, pause, resume, rotate, delete]
