"""The fire lag of the cluster in the last hour, for the chart of the dashboard."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import NamedTuple

from everbeat.services.loops import Periodic
from everbeat.store.base import Store

_POINTS = 360


class LagPoint(NamedTuple):
    at: datetime
    lag_seconds: float


class LagHistory(Periodic):
    """Reads the lag that nodes report with their heartbeats. Each node with the role api keeps its own history, in memory."""

    name = "lag_history"
    deadline_seconds = 10.0

    def __init__(self, store: Store, *, interval_seconds: float = 10.0) -> None:
        super().__init__(interval_seconds)
        self._store = store
        self._points: deque[LagPoint] = deque(maxlen=_POINTS)

    @property
    def points(self) -> list[LagPoint]:
        return list(self._points)

    async def run_once(self, now: datetime | None = None) -> bool:
        moment, nodes = await self._store.node_list(now=now)
        lags = [
            node.lag_seconds
            for node in nodes
            if node.lag_seconds is not None and (moment - node.seen_at).total_seconds() < node.lease_seconds
        ]
        if lags:
            self._points.append(LagPoint(moment, max(lags)))
        return False
