"""The sampler: reads the state of the whole cluster for metrics, so that a scrape needs no query.

Every node with the role scheduler samples and exports the same values, so that they are known as long as one of them lives.
Rules and dashboards use the maximum over the nodes. The queries are bounded. If they are slow nevertheless, the interval grows,
so that sampling takes at most a hundredth of the time of one connection.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime

from everbeat.clock import Monotonic
from everbeat.services.events import ClusterSampled, Emit, ignore
from everbeat.services.loops import Periodic, wait_for_event
from everbeat.store.base import Store
from everbeat.store.samples import ClusterSample, QueueSample, ReadySample, RunningSample

MAX_QUEUES = 50
OTHER_QUEUES = "other"
NEAR_TIMEOUT_RATIO = 0.9
MAX_WAITING = 20_000
MAX_READY_PER_QUEUE, MIN_READY_PER_QUEUE = 10_000, 1_000
_MAX_READY = 100_000
_MAX_QUEUES_READ = 1000
_MAX_FLOWS = 1000
_MAX_RUNNING = 20_000
_MAX_WORKERS = 10_000
_REST_FACTOR = 100
# A node that has just started owns nothing yet.
_START_SECONDS = 3.0
_MIN_VALID_SECONDS = 60.0


class Sampler(Periodic):
    name = "sampler"
    deadline_seconds = 15.0

    def __init__(
        self, store: Store, *, emit: Emit = ignore, interval_seconds: float = 15.0, monotonic: Monotonic = time.monotonic
    ) -> None:
        super().__init__(interval_seconds)
        self._store = store
        self._emit = emit
        self._monotonic = monotonic
        self._rest_seconds = interval_seconds
        self._has_started = False
        self._queues = 0

    async def run_once(self, now: datetime | None = None) -> bool:
        if now is None and not self._has_started:
            self._has_started, self._rest_seconds = True, _START_SECONDS
            return False
        started = self._monotonic()
        try:
            sample = await self._sample(now)
        finally:
            self._rest_seconds = max(self._interval, _REST_FACTOR * (self._monotonic() - started))
        self._emit(ClusterSampled(sample, max(_MIN_VALID_SECONDS, 3 * self._rest_seconds)))
        return False

    async def wait(self) -> None:
        await wait_for_event(self._woken, self._rest_seconds)

    async def _sample(self, now: datetime | None) -> ClusterSample:
        store = self._store
        partitions = await store.partition_list()
        moment = await store.clock(now=now)
        limit = max(MIN_READY_PER_QUEUE, min(MAX_READY_PER_QUEUE, _MAX_READY // max(1, self._queues)))
        ready = await store.sample_ready(max_queues=_MAX_QUEUES_READ, max_flows=_MAX_FLOWS, limit=limit)
        self._queues = len(ready)
        running = await store.sample_running(near_ratio=NEAR_TIMEOUT_RATIO, limit=_MAX_RUNNING, now=now)
        workers = await store.sample_workers(limit=_MAX_WORKERS, now=now)
        return ClusterSample(
            at=moment,
            states={
                **await store.sample_waiting(limit=MAX_WAITING),
                "ready": sum(one.ready for one in ready),
                "running": sum(one.running for one in running),
            },
            queues=bounded_queues(ready, running, workers, moment),
            near_timeout=sum(one.near_timeout for one in running),
            unowned_partitions=sum(
                one.owner is None or one.lease_until is None or one.lease_until <= moment for one in partitions
            ),
            database=await store.sample_database(),
        )


def bounded_queues(
    ready: Sequence[ReadySample],
    running: Sequence[RunningSample],
    workers: Mapping[str, int],
    now: datetime,
    max_queues: int = MAX_QUEUES,
) -> list[QueueSample]:
    """Return the queues with the most ready and running tasks, and the others together as `other`, in order of name."""
    ready_of = {one.queue: one for one in ready}
    running_of = {one.queue: one.running for one in running}
    queues = [
        QueueSample(
            name,
            ready_of[name].ready if name in ready_of else 0,
            running_of.get(name, 0),
            workers.get(name, 0),
            max(0.0, (now - ready_of[name].oldest_at).total_seconds()) if name in ready_of else 0.0,
        )
        for name in ready_of.keys() | running_of.keys() | workers.keys()
    ]
    # The oldest task breaks ties, so that a small queue that nobody serves is not hidden by busy ones of its size.
    queues.sort(key=lambda one: (-(one.ready + one.running), -one.oldest_ready_seconds, one.queue))
    # A queue may have the name of the rest. It is added to it, because a series can have one value only.
    others = [one for place, one in enumerate(queues) if place >= max_queues or one.queue == OTHER_QUEUES]
    shown = [one for one in queues[:max_queues] if one.queue != OTHER_QUEUES]
    if others:
        shown.append(
            QueueSample(
                OTHER_QUEUES,
                sum(one.ready for one in others),
                sum(one.running for one in others),
                sum(one.workers for one in others),
                max(one.oldest_ready_seconds for one in others),
            )
        )
    return sorted(shown)
