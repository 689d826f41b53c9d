"""The overview: the audit of the last day, the queues, the nodes and what needs attention."""

from __future__ import annotations

from collections import Counter

from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get
from everbeat.core.access import Scope
from everbeat.store.values import DeadFilter
from everbeat.web.pages.declarations import READ
from everbeat.web.rendering import page
from everbeat.web.svg import share_bar

_LISTED = 10


@get("/", READ)
async def overview(request: ApiRequest) -> Response:
    context, tenant_id = request.context, request.tenant_id
    view = await context.cluster.view(tenant_id, all_tenants=Scope.ADMIN in request.caller.scopes)
    dead = await context.dead_letters.page(tenant_id, DeadFilter(), before=None, limit=_LISTED)
    faulty = await context.store.schedule_faulty(tenant_id, limit=_LISTED)
    states: Counter[str] = Counter()
    queues: dict[str, dict[str, int]] = {}
    for depth in view.queues:
        states[depth.state] += depth.count
        queues.setdefault(depth.queue, {})[depth.state] = depth.count
    return page(
        request,
        "overview.html",
        view=view,
        now=view.now,
        states=states,
        queues=sorted(queues.items(), key=lambda one: -sum(one[1].values()))[:_LISTED],
        dead=dead,
        pauses=await context.pauses.active(tenant_id),
        faulty=faulty,
    )


@get("/overview/audit", READ)
async def audit_headline(request: ApiRequest) -> Response:
    """The audit of the last day. It reads every schedule, so it is loaded after the page."""
    report = await request.context.audit.run(request.tenant_id, from_=None, to=None, limit=0)
    skipped = report.total.skipped
    bars = share_bar([(reason, count) for reason, count in skipped.most_common()], "Skipped ticks by reason")
    return page(request, "parts/audit_headline.html", total=report.total, bars=bars, filters={})


ROUTES = [overview, audit_headline]
