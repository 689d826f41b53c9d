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
    BusySecondResponse,
    CapacityAdviceResponse,
    CapacityResponse,
    CircuitBreakerResponse,
    ClusterRates,
    ClusterResponse,
    NodeDeliveriesResponse,
    NodeResponse,
    PartitionResponse,
    QueueDepthResponse,
    SlowCallResponse,
    TableSizeResponse,
)
from everbeat.api.routing import get
from everbeat.core.access import Scope
from everbeat.core.capacity_advice import CapacityFacts, advise
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
    is_admin = Scope.ADMIN in request.caller.scopes
    view = await request.context.cluster.view(request.tenant_id, all_tenants=is_admin)
    facts = await request.context.capacity.facts(view, request.tenant_id, for_operator=is_admin)
    alive = [node for node in view.nodes if view.is_alive(node)]
    return json_response(
        ClusterResponse(
            now=rfc3339(view.now),
            nodes=_nodes(view, None if is_admin else request.tenant_id),
            partitions=_partitions(view),
            unowned=view.unowned,
            lag_seconds=max((node.lag_seconds for node in alive if node.lag_seconds is not None), default=None),
            queues=[QueueDepthResponse(one.queue, one.state, one.count) for one in view.queues],
            schedules=view.schedules,
            faulty=view.faulty,
            rates=ClusterRates(sum(node.fired_per_second or 0.0 for node in alive)),
            capacity=_capacity(facts),
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
            share=round(owned[node.id] / len(view.partitions), 4),
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


def _capacity(facts: CapacityFacts) -> CapacityResponse:
    busiest = facts.busiest
    return CapacityResponse(
        busiest_second=None
        if busiest is None
        else BusySecondResponse(
            at=rfc3339(busiest.at), ticks=busiest.ticks, schedules=busiest.names, is_complete=busiest.is_complete
        ),
        database_bytes=facts.database_bytes,
        free_bytes=facts.free_bytes,
        tables=[TableSizeResponse(**one._asdict()) for one in facts.tables],
        oldest_transaction_seconds=facts.oldest_transaction_seconds,
        slow_calls=[
            SlowCallResponse(
                verb=one.verb,
                calls=one.calls,
                mean_ms=round(one.mean_seconds * 1000, 3),
                max_ms=round(one.max_seconds * 1000, 3),
            )
            for one in facts.slow_calls
        ],
        advice=[CapacityAdviceResponse(**one._asdict()) for one in advise(facts)],
    )


def _partitions(view: ClusterView) -> list[PartitionResponse]:
    return [
        PartitionResponse(one.partition, optional_id(one.owner), one.epoch, optional_rfc3339(one.lease_until))
        for one in view.partitions
    ]


ROUTES = [cluster]
