"""The history of the fire lag: the worst lag of the live nodes at each time, limited to an hour."""

from __future__ import annotations

from uuid import uuid4

from everbeat.services.lag_history import LagHistory, LagPoint
from everbeat.store.base import Store
from everbeat.store.values import NodeHeartbeat
from tests.factories import NOW, seconds


async def test_it_keeps_the_worst_lag_of_the_live_nodes_for_an_hour(store: Store) -> None:
    history = LagHistory(store)
    await history.run_once(NOW)
    assert history.points == []
    for lag, partition in ((0.1, 1), (0.4, 2)):
        heartbeat = NodeHeartbeat(uuid4(), "node", ("scheduler",), "1", 10.0, lag_seconds=lag)
        await store.partition_renew(heartbeat, frozenset({partition}), now=NOW)
    await history.run_once(NOW + seconds(1))
    assert history.points == [LagPoint(NOW + seconds(1), 0.4)]
    await history.run_once(NOW + seconds(60))  # the nodes are gone
    assert len(history.points) == 1
    for number in range(400):
        await history.run_once(NOW + seconds(number / 100))
    assert len(history.points) == 360
