"""/v1/cluster: nodes, partitions by owner, lag, queue depths and rates."""

from __future__ import annotations

from collections import Counter
from typing import Any

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import Operation, Success
from everbeat.api.paging import NoQuery
from everbeat.api.responses import ClusterResponse
from everbeat.api.routing import get
from everbeat.core.access import Scope
from everbeat.core.definitions import optional_rfc3339, rfc3339
from everbeat.services.cluster import ClusterView


@get(
    "/v1/cluster",
    Operation(
        id="cluster",
        tag="Operations",
        summary="See the nodes, who owns what, the lag and the queues",
        responses={200: Success("The cluster.", ClusterResponse)},
        query=NoQuery,
    ),
)
async def cluster(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    view = await request.context.cluster.view(request.tenant_id, sees_all=Scope.ADMIN in request.caller.scopes)
    alive = [node for node in view.nodes if view.is_alive(node)]
    answer = {
        "now": rfc3339(view.now),
        "nodes": _nodes(view),
        "partitions": _partitions(view),
        "unowned": view.unowned,
        "lag_seconds": max((node.lag_seconds for node in alive if node.lag_seconds is not None), default=None),
        "queues": [{"queue": one.queue, "state": one.state, "count": one.count} for one in view.queues],
        "schedules": view.schedules,
        "faulty": view.faulty,
        "rates": {"ticks_fired_per_second": sum(node.fired_per_second or 0.0 for node in alive)},
    }
    return json_response(answer)


def _nodes(view: ClusterView) -> list[dict[str, Any]]:
    owned = Counter(one.owner for one in view.partitions)
    return [
        {
            "id": str(node.id),
            "name": node.name,
            "roles": list(node.roles),
            "version": node.version,
            "started_at": rfc3339(node.started_at),
            "seen_at": rfc3339(node.seen_at),
            "is_alive": view.is_alive(node),
            "lag_seconds": node.lag_seconds,
            "fired_per_second": node.fired_per_second,
            "partitions": owned[node.id],
        }
        for node in view.nodes
    ]


def _partitions(view: ClusterView) -> list[dict[str, Any]]:
    return [
        {
            "partition": one.partition,
            "owner": None if one.owner is None else str(one.owner),
            "epoch": one.epoch,
            "lease_until": optional_rfc3339(one.lease_until),
        }
        for one in view.partitions
    ]


ROUTES = [cluster]
