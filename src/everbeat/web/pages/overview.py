"""The overview: the audit of the last day, the queues, the nodes and what needs attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get
from everbeat.core.access import Scope
from everbeat.core.incidents import IncidentState
from everbeat.core.responses import dead_letter_response
from everbeat.services.forecast import CELL, CELLS
from everbeat.services.lag_history import LagPoint
from everbeat.store.values import DeadFilter
from everbeat.web.formats import number
from everbeat.web.pages.declarations import READ
from everbeat.web.rendering import is_refresh, page, rendered
from everbeat.web.svg import heat_map, share_bar

_LISTED = 10
# How long the page waits for the numbers of schedules. Without them it is shown, and loads them at once.
_COUNT_SECONDS = 0.03
# The cells in a row of the heat map: the minutes of an hour.
_ROW = 60


@get("/", READ)
async def overview(request: ApiRequest) -> Response:
    context, tenant_id = request.context, request.tenant_id
    schedules = await context.schedule_counts.within(tenant_id, _COUNT_SECONDS)
    view = await context.cluster.view(
        tenant_id, all_tenants=Scope.ADMIN in request.caller.scopes, schedules={} if schedules is None else schedules
    )
    dead = await context.dead_letters.page(tenant_id, DeadFilter(), before=None, limit=_LISTED)
    faulty = await context.store.schedule_faulty(tenant_id, limit=_LISTED)
    states: Counter[str] = Counter()
    queues: dict[str, dict[str, int]] = {}
    for depth in view.queues:
        states[depth.state] += depth.count
        queues.setdefault(depth.queue, {})[depth.state] = depth.count
    incidents: Counter[IncidentState] = Counter()
    for one in await context.alerts.counts(tenant_id):
        incidents[one.state] += one.count
    return await page(
        request,
        "overview.html",
        open_incidents=incidents[IncidentState.OPEN],
        acknowledged_incidents=incidents[IncidentState.ACKNOWLEDGED],
        view=view,
        schedules=schedules,
        now=view.now,
        states=states,
        lag=max((one.lag_seconds for one in view.nodes if view.is_alive(one) and one.lag_seconds is not None), default=None),
        lags=[] if is_refresh(request) else _lags(context.lag_history.points),
        queues=sorted(queues.items(), key=lambda one: -sum(one[1].values()))[:_LISTED],
        dead=[(one, dead_letter_response(one).error) for one in dead],
        pauses=await context.pauses.active(tenant_id),
        faulty=faulty,
    )


def _lags(points: Sequence[LagPoint]) -> list[tuple[float, float]]:
    """The points of the chart: seconds since 1970, and milliseconds."""
    return [(round(one.at.timestamp(), 3), round(one.lag_seconds * 1000, 1)) for one in points]


@get("/overview/audit", READ)
async def audit_headline(request: ApiRequest) -> Response:
    """The audit of the last day. It reads every schedule, so it is loaded after the page."""
    report = await request.context.audit.last_day(request.tenant_id)
    skipped = report.total.skipped
    bars = share_bar([(reason, count) for reason, count in skipped.most_common()], "Skipped ticks by reason")
    return await page(request, "parts/audit_headline.html", total=report.total, bars=bars, filters={})


@get("/overview/forecast", READ)
async def forecast(request: ApiRequest) -> Response:
    """What fires in the next 24 hours. It is computed from the rules, so it is loaded after the page."""
    found = await request.context.forecast.next_day(request.tenant_id)
    starts = [found.begin + CELL * index for index in range(CELLS)]
    rows = [(f"{starts[first]:%H:%M}", found.cells[first : first + _ROW]) for first in range(0, CELLS, _ROW)]
    titles = [f"{at:%H:%M}: {number(value)}" for at, value in zip(starts, found.cells, strict=True)]
    by_row = [titles[first : first + _ROW] for first in range(0, CELLS, _ROW)]
    label = f"Ticks of the next 24 hours by minute, {number(sum(found.cells))} in all"
    return await page(request, "parts/forecast.html", found=found, map=await rendered(partial(heat_map, rows, by_row, label)))


ROUTES = [overview, audit_headline, forecast]
