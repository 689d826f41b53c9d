"""The cluster: its nodes, and the partition map with owners and epochs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from everbeat.api.cluster import deliveries_response
from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get
from everbeat.core.access import Scope
from everbeat.core.capacity_advice import advise
from everbeat.services.cluster import ClusterView
from everbeat.web.pages.declarations import READ
from everbeat.web.rendering import page
from everbeat.web.svg import PartitionCell, partition_map

_COLORS = 8


@get("/cluster", READ)
async def show_cluster(request: ApiRequest) -> Response:
    context = request.context
    view = await context.cluster.view(request.tenant_id, all_tenants=Scope.ADMIN in request.caller.scopes)
    facts = await context.capacity.facts(view, request.tenant_id, for_operator=Scope.ADMIN in request.caller.scopes)
    tenant_id = None if Scope.ADMIN in request.caller.scopes else request.tenant_id
    deliveries = [(node, deliveries_response(node.deliveries, tenant_id)) for node in view.nodes if view.is_alive(node)]
    colors = {node.id: index % _COLORS for index, node in enumerate(sorted(view.nodes, key=lambda one: one.name))}
    return await page(
        request,
        "cluster.html",
        view=view,
        now=view.now,
        colors=colors,
        breakers=[(node, one) for node, found in deliveries if found is not None for one in found.circuit_breakers],
        facts=facts,
        advice=advise(facts),
        alive=sum(view.is_alive(one) for one in view.nodes),
        owned=Counter(one.owner for one in view.partitions),
        epochs=max((one.epoch for one in view.partitions), default=0),
        map=partition_map(_cells(view, colors), "Partitions by owner"),
        lag=max((one.lag_seconds for one in view.nodes if view.is_alive(one) and one.lag_seconds is not None), default=None),
    )


def _cells(view: ClusterView, colors: Mapping[UUID, int]) -> list[PartitionCell]:
    names = {node.id: node.name for node in view.nodes}
    cells = []
    for one in view.partitions:
        is_owned = one.owner is not None and one.lease_until is not None and one.lease_until > view.now
        owner = names.get(one.owner, "unknown") if is_owned and one.owner is not None else "no owner"
        class_ = f"node-{colors.get(one.owner, 0)}" if is_owned and one.owner is not None else "node-none"
        cells.append(PartitionCell(class_, f"partition {one.partition}: {owner}, epoch {one.epoch}"))
    return cells


ROUTES = [show_cluster]
