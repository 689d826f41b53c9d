"""Dealing out work: what one line of workers may have, shared fairly among the tenants it works for.

A dealer knows from its roster which flows have ready tasks, and claims from them in one round trip. The roster is filled by
looks (an index walk over the flows, not over the tasks) and by what this node submits itself. It is looked anew when it runs
out, when somebody has rung who could not say for what, and once per look of the polls; a look may take a tenth of the time,
so that thousands of flows do not cost more than they bring. Only a look that finds nothing makes a line known to be empty.

Each node is fair by itself, and so the sum of them is. Nothing of it is durable: a node that starts treats all alike.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol
from uuid import UUID

from everbeat.clock import Monotonic
from everbeat.core.fairness import ClaimPlanner, Flow
from everbeat.core.tasks import ClaimedTask
from everbeat.services.publisher import ChangePublisher
from everbeat.store.base import Store
from everbeat.store.values import ClaimRequest

_MAX_FLOWS = 10_000
_MAX_KEPT = 1000
_PAUSE_PER_SCAN = 10


class FairnessDirectory(Protocol):
    """What fairness needs to know of tenants, at hand without asking the database."""

    def weight_of(self, tenant_id: UUID) -> float: ...
    def max_running_of(self, tenant_id: UUID) -> int | None: ...
    async def refresh(self, *, now: datetime | None = None) -> None: ...


class EqualShares:
    """A directory in which all tenants are alike, and none is limited."""

    def weight_of(self, _tenant_id: UUID) -> float:
        return 1.0

    def max_running_of(self, _tenant_id: UUID) -> int | None:
        return None

    async def refresh(self, *, now: datetime | None = None) -> None:
        """There is nothing to read."""


class ClaimScope(NamedTuple):
    """What the workers of a line ask for. `tenant_id` None: tasks of every tenant, as a fleet does."""

    tenant_id: UUID | None
    queues: tuple[str, ...]
    types: tuple[str, ...] | None

    def serves(self, tenant_id: UUID, queue: str, type_: str) -> bool:
        return (
            queue in self.queues
            and (self.tenant_id is None or self.tenant_id == tenant_id)
            and (self.types is None or type_ in self.types)
        )


class DispatchResult(NamedTuple):
    """What each claimer got; unless there may be more, the line is known to be empty."""

    tasks: list[list[ClaimedTask]]
    may_be_more: bool


class FairDispatcher:
    """Deals tasks to the workers of one line."""

    def __init__(
        self,
        key: ClaimScope,
        store: Store,
        publisher: ChangePublisher,
        directory: FairnessDirectory,
        total_seconds: float,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self.key = key
        self.planner = ClaimPlanner(directory.weight_of)
        self._store = store
        self._publisher = publisher
        self._directory = directory
        self._total_seconds = total_seconds
        self._monotonic = monotonic
        self._is_stale = True
        self._is_fresh = False
        self._next_look = float("-inf")
        self._places: list[Flow] = []

    # What is heard

    def mark_stale(self) -> None:
        """There may be flows that the roster does not know."""
        self._is_stale = True

    def note(self, flows: Iterable[Flow]) -> bool:
        """Flows that got ready tasks; whether any of them is for this line, and may be served now."""
        own = [flow for flow in flows if self.key.serves(flow.tenant_id, flow.queue, flow.type)]
        if len(self.planner) > 2 * _MAX_FLOWS:
            self._is_stale = True
        else:
            self.planner.add_ready(own)
        return any(flow.tenant_id not in self.planner.blocked for flow in own)

    def free(self, tenant_ids: Iterable[UUID]) -> bool:
        """Tenants may have room for more running tasks; whether that matters here."""
        return self.planner.unblock(tenant_ids)

    def rest(self) -> None:
        """Nobody stands in the line: forget the flows, and keep only who had how much."""
        self.planner.mark_query_start()
        self.planner.replace(())
        self._places = []
        self._is_stale = True

    # What is dealt

    async def find(self) -> bool:
        """Whether there may be something to deal; else the line is known to be empty. However many wait, it costs the same."""
        self._is_fresh = self._is_due()
        if self._is_fresh:
            await self._look()
        return not self.planner.is_empty

    async def dispatch(self, claim_requests: Sequence[ClaimRequest], *, now: datetime | None = None) -> DispatchResult:
        """What there is for these, after `find` has said that there may be something; stepped by hand, it looks by itself."""
        tasks: list[list[ClaimedTask]] = [[] for _ in claim_requests]
        is_fresh, self._is_fresh = self._is_fresh, False
        if now is not None:
            is_fresh = True
            await self._look()
        is_settled = await self._serve(tasks, claim_requests, is_fresh, now)
        if not is_fresh and not any(tasks):
            await self._look()
            is_fresh = True
            is_settled = await self._serve(tasks, claim_requests, is_fresh, now)
        is_filled = all(len(part) == claimer.limit for part, claimer in zip(tasks, claim_requests, strict=True))
        return DispatchResult(tasks, is_filled or not (is_fresh and is_settled))

    async def _serve(
        self, tasks: list[list[ClaimedTask]], claim_requests: Sequence[ClaimRequest], is_fresh: bool, now: datetime | None
    ) -> bool:
        """Claim by the roster until all have what they asked for; whether the roster has nothing left."""
        while True:
            wanted = [one._replace(limit=one.limit - len(part)) for one, part in zip(claim_requests, tasks, strict=True)]
            count = sum(one.limit for one in wanted)
            shares = self.planner.plan(count) if count else []
            if not shares:
                return count > 0
            limited = {share.tenant_id for share in shares if self._directory.max_running_of(share.tenant_id) is not None}
            try:
                claims = await self._store.task_claim(
                    shares, wanted, limited=limited, total_seconds=self._total_seconds, now=now
                )
            except Exception:
                if any(tasks):  # what is claimed must reach its workers; the next claim will tell of the trouble
                    return False
                raise
            self._publisher.publish(claims.changes)
            self.planner.record_result(shares, claims.limits, claims.claimed_counts, count, claims.full)
            for part, got in zip(tasks, claims.tasks, strict=True):
                part += got
            if not is_fresh and not any(claims.claimed_counts):
                return False

    # Looking

    def _is_due(self) -> bool:
        return self.planner.is_empty or (self._is_stale and self._monotonic() >= self._next_look)

    async def _look(self) -> None:
        """Fill the roster. Of more flows than can be looked at in one go, go on until there is something to serve."""
        self._is_stale = False
        started = self._monotonic()
        try:
            await self._directory.refresh()
            while await self._look_on() and self.planner.is_empty:
                pass
        except BaseException:
            self._is_stale = True
            raise
        ended = self._monotonic()
        self._next_look = ended + _PAUSE_PER_SCAN * (ended - started)

    async def _look_on(self) -> bool:
        """Look at the flows from where the last look ended; whether there are more behind them."""
        self.planner.mark_query_start()
        before, key = self._places, self.key
        flows = await self._store.task_flows(key.tenant_id, key.queues, after=before, limit=_MAX_FLOWS)
        counts = Counter(flow.queue for flow in flows)
        self._places = list({flow.queue: flow for flow in flows if counts[flow.queue] >= _MAX_FLOWS}.values())
        own = flows if key.types is None else [flow for flow in flows if flow.type in key.types]
        if (before or self._places) and len(self.planner) <= 2 * _MAX_FLOWS:
            self.planner.unblock()
            self.planner.add_ready(own)
        else:
            self.planner.replace(own)
        return bool(self._places)


class FairDispatchers:
    """The dealers of a node. One whose line is gone is kept for a while: who comes back finds the shares as they were."""

    def __init__(self, store: Store, publisher: ChangePublisher, directory: FairnessDirectory, total_seconds: float) -> None:
        self.directory = directory
        self._store = store
        self._publisher = publisher
        self._total_seconds = total_seconds
        self._dispatchers: OrderedDict[ClaimScope, FairDispatcher] = OrderedDict()

    def of(self, key: ClaimScope) -> FairDispatcher:
        dispatcher = self._dispatchers.get(key)
        if dispatcher is None:
            dispatcher = self._dispatchers[key] = FairDispatcher(
                key, self._store, self._publisher, self.directory, self._total_seconds
            )
            if len(self._dispatchers) > _MAX_KEPT:
                self._dispatchers.popitem(last=False)
        self._dispatchers.move_to_end(key)
        return dispatcher

    def limited(self, tenant_ids: Collection[UUID]) -> set[UUID]:
        """Those that may have only so many tasks running."""
        return {tenant_id for tenant_id in tenant_ids if self.directory.max_running_of(tenant_id) is not None}
