"""/v1/cluster: nodes, partitions by owner, lag, queue depths and rates."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import msgspec

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import Operation, Success
from everbeat.api.paging import NoQuery
from everbeat.api.responses import (
    CircuitBreakerResponse,
    ClusterRates,
    ClusterResponse,
    NodeDeliveriesResponse,
    NodeResponse,
    PartitionResponse,
    QueueDepthResponse,
)
from everbeat.api.routing import get
from everbeat.core.access import Scope
from everbeat.core.definitions import optional_rfc3339, rfc3339
from everbeat.core.destinations import NodeDeliveries
from everbeat.core.responses import optional_id
from everbeat.services.cluster import ClusterView

_decode_deliveries = msgspec.json.Decoder(NodeDeliveries).decode


@get(
    "/v1/cluster",
    Operation(
        id="cluster",
        tag="Operations",
        summary="Read the nodes, the partitions and their owners, the lag, and the queues",
        responses={200: Success("The state of the cluster.", ClusterResponse)},
        query=NoQuery,
    ),
)
async def cluster(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    view = await request.context.cluster.view(request.tenant_id, all_tenants=Scope.ADMIN in request.caller.scopes)
    alive = [node for node in view.nodes if view.is_alive(node)]
    return json_response(
        ClusterResponse(
            now=rfc3339(view.now),
            nodes=_nodes(view, None if Scope.ADMIN in request.caller.scopes else request.tenant_id),
            partitions=_partitions(view),
            unowned=view.unowned,
            lag_seconds=max((node.lag_seconds for node in alive if node.lag_seconds is not None), default=None),
            queues=[QueueDepthResponse(one.queue, one.state, one.count) for one in view.queues],
            schedules=view.schedules,
            faulty=view.faulty,
            rates=ClusterRates(sum(node.fired_per_second or 0.0 for node in alive)),
        )
    )


def _nodes(view: ClusterView, tenant_id: UUID | None) -> list[NodeResponse]:
    owned = Counter(one.owner for one in view.partitions)
    return [
        NodeResponse(
            id=str(node.id),
            name=node.name,
            roles=list(node.roles),
            version=node.version,
            started_at=rfc3339(node.started_at),
            seen_at=rfc3339(node.seen_at),
            is_alive=view.is_alive(node),
            lag_seconds=node.lag_seconds,
            fired_per_second=node.fired_per_second,
            capacity=node.capacity,
            deliveries=deliveries_response(node.deliveries, tenant_id),
            partitions=owned[node.id],
        )
        for node in view.nodes
    ]


def deliveries_response(text: str | None, tenant_id: UUID | None) -> NodeDeliveriesResponse | None:
    """Return the deliveries of a node, without the destinations of other tenants."""
    if text is None:
        return None
    found = _decode_deliveries(text)
    return NodeDeliveriesResponse(
        found.running,
        [
            CircuitBreakerResponse(one.destination, one.state, one.failures, one.retry_in_seconds)
            for one in found.circuit_breakers
            if tenant_id is None or one.tenant_id in (None, tenant_id)
        ],
    )


def _partitions(view: ClusterView) -> list[PartitionResponse]:
    return [
        PartitionResponse(one.partition, optional_id(one.owner), one.epoch, optional_rfc3339(one.lease_until))
        for one in view.partitions
    ]


ROUTES = [cluster]
