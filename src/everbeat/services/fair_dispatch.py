"""Fair dispatch: claims tasks for the workers of a wait queue, and shares the workers fairly among the tenants.

A dispatcher has a planner with the flows that have ready tasks, and claims from them in one round trip. Flows are added by
scans (a walk over the flows in an index, not over the tasks) and by the tasks that this node submits. A scan is made when the
planner is empty, after a wake-up that does not name a flow, and once per poll interval. Scans may take up to a tenth of the
time, so that thousands of flows do not cost more than they yield. Only a scan that finds nothing shows that a wait queue has
no work.

Each node is fair by itself, so the sum over all nodes is fair too. Nothing is durable: a node that starts treats all tenants
as equal.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol
from uuid import UUID

from everbeat.clock import Monotonic
from everbeat.core.fairness import ClaimLimits, ClaimPlanner, Flow
from everbeat.core.tasks import ClaimedTask
from everbeat.services.publisher import ChangePublisher
from everbeat.store.base import Store
from everbeat.store.values import ClaimRequest

_MAX_FLOWS = 10_000
_MAX_KEPT = 1000
_PAUSE_PER_SCAN = 10


class FairnessDirectory(Protocol):
    """The data of tenants that fair dispatch needs, available without a query."""

    def weight_of(self, tenant_id: UUID) -> float: ...
    def max_running_of(self, tenant_id: UUID) -> int | None: ...
    def limited_tenants(self) -> Collection[UUID]: ...
    def is_paused(self, tenant_id: UUID, queue: str) -> bool: ...
    def has_pauses(self, tenant_id: UUID | None, queues: Collection[str]) -> bool: ...
    async def refresh(self, *, now: datetime | None = None) -> None: ...


class EqualShares:
    """A directory in which all tenants have the same weight, no limits and no pauses."""

    def weight_of(self, _tenant_id: UUID) -> float:
        return 1.0

    def max_running_of(self, _tenant_id: UUID) -> int | None:
        return None

    def limited_tenants(self) -> Collection[UUID]:
        return ()

    def is_paused(self, _tenant_id: UUID, _queue: str) -> bool:
        return False

    def has_pauses(self, _tenant_id: UUID | None, _queues: Collection[str]) -> bool:
        return False

    async def refresh(self, *, now: datetime | None = None) -> None:
        """Do nothing: the values are constant."""


class ClaimScope(NamedTuple):
    """The tasks that the workers of a wait queue claim. `tenant_id` None: tasks of all tenants, for a fleet."""

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
    """The tasks for each claim request. If `may_be_more` is False, there is no more work for the wait queue."""

    tasks: list[list[ClaimedTask]]
    may_be_more: bool


class FairDispatcher:
    """Claims tasks for the workers of one wait queue."""

    def __init__(
        self,
        scope: ClaimScope,
        store: Store,
        publisher: ChangePublisher,
        directory: FairnessDirectory,
        total_seconds: float,
        monotonic: Monotonic = time.monotonic,
        limits: ClaimLimits | None = None,
    ) -> None:
        self.scope = scope
        self.planner = ClaimPlanner(directory.weight_of, limits)
        self._limits = limits
        self._store = store
        self._publisher = publisher
        self._directory = directory
        self._total_seconds = total_seconds
        self._monotonic = monotonic
        self._needs_scan = True
        self._has_scanned = False
        self._next_scan_at = float("-inf")
        self._scan_positions: list[Flow] = []

    # Ready flows

    def mark_stale(self) -> None:
        """Note that there may be flows that the planner does not have."""
        self._needs_scan = True

    def add_flows(self, flows: Iterable[Flow]) -> bool:
        """Add flows that got ready tasks. Returns whether one is for this wait queue, of a tenant that is not blocked."""
        own = [flow for flow in flows if self.scope.serves(flow.tenant_id, flow.queue, flow.type)]
        active = self._without_paused(own)
        if len(self.planner) > 2 * _MAX_FLOWS:
            self._needs_scan = True
        else:
            self.planner.add_ready(active)
        # The tasks of a paused flow may be of a manual trigger.
        return len(active) < len(own) or any(flow.tenant_id not in self.planner.blocked for flow in active)

    def _without_paused(self, flows: Iterable[Flow]) -> list[Flow]:
        return [flow for flow in flows if not self._directory.is_paused(flow.tenant_id, flow.queue)]

    def unblock(self, tenant_ids: Iterable[UUID]) -> bool:
        """Unblock tenants that may be able to run more tasks. Returns whether any of them was blocked."""
        return self.planner.unblock(tenant_ids)

    def reset(self) -> None:
        """Drop the flows while no worker waits. The shares of the tenants so far are kept."""
        self.planner.mark_query_start()
        self.planner.replace(())
        self._scan_positions = []
        self._needs_scan = True

    # Claims

    async def find(self) -> bool:
        """Return whether there may be work for the wait queue. The cost does not depend on the number of waiting workers."""
        self._has_scanned = self._is_scan_due()
        if self._has_scanned:
            await self._scan()
        return not self.planner.is_empty or self._has_pauses()

    def _has_pauses(self) -> bool:
        return self._directory.has_pauses(self.scope.tenant_id, self.scope.queues)

    async def dispatch(self, claim_requests: Sequence[ClaimRequest], *, now: datetime | None = None) -> DispatchResult:
        """Claim tasks for these requests, after `find` has returned True. With `now`, as in tests, `find` is not needed."""
        tasks: list[list[ClaimedTask]] = [[] for _ in claim_requests]
        has_scanned, self._has_scanned = self._has_scanned, False
        if now is not None:
            has_scanned = True
            await self._scan()
        if self._has_pauses():
            await self._claim_triggered(tasks, claim_requests, now)
        is_exhausted = await self._claim(tasks, claim_requests, has_scanned, now)
        if not has_scanned and not any(tasks):
            await self._scan()
            has_scanned = True
            is_exhausted = await self._claim(tasks, claim_requests, has_scanned, now)
        is_filled = all(len(part) == claim_request.limit for part, claim_request in zip(tasks, claim_requests, strict=True))
        return DispatchResult(tasks, is_filled or not (has_scanned and is_exhausted))

    async def _claim_triggered(
        self, tasks: list[list[ClaimedTask]], claim_requests: Sequence[ClaimRequest], now: datetime | None
    ) -> None:
        """Claim tasks of manual triggers in paused queues, which the planner does not have."""
        scope = self.scope
        limited = set(self._directory.limited_tenants())
        if scope.tenant_id is not None:
            limited &= {scope.tenant_id}
        for part, claim_request in zip(tasks, claim_requests, strict=True):
            claim = await self._store.task_claim_triggered(
                *scope, claim_request, limited=limited, total_seconds=self._total_seconds, now=now
            )
            if not claim.tasks[0]:
                return
            self._publisher.publish(claim.changes)
            part += claim.tasks[0]

    async def _claim(
        self, tasks: list[list[ClaimedTask]], claim_requests: Sequence[ClaimRequest], has_scanned: bool, now: datetime | None
    ) -> bool:
        """Claim until all requests are filled. Returns whether the planner ran out of flows before that."""
        while True:
            remaining = [one._replace(limit=one.limit - len(part)) for one, part in zip(claim_requests, tasks, strict=True)]
            count = sum(one.limit for one in remaining)
            steps = self.planner.plan(count) if count else []
            if not steps:
                return count > 0
            limited = {step.tenant_id for step in steps if self._directory.max_running_of(step.tenant_id) is not None}
            try:
                claims = await self._store.task_claim(
                    steps, remaining, limited=limited, total_seconds=self._total_seconds, now=now
                )
            except Exception:
                if any(tasks):  # the tasks already claimed must reach their workers; the next claim reports the error
                    return False
                raise
            self._publisher.publish(claims.changes)
            if self._limits is not None:
                self._limits.note_claimed(steps, claims.claimed_counts)
            self.planner.record_result(steps, claims.limits, claims.claimed_counts, count, claims.full)
            for part, got in zip(tasks, claims.tasks, strict=True):
                part += got
            if not has_scanned and not any(claims.claimed_counts):
                return False

    # Scans

    def _is_scan_due(self) -> bool:
        return self.planner.is_empty or (self._needs_scan and self._monotonic() >= self._next_scan_at)

    async def _scan(self) -> None:
        """Fill the planner. If there are more flows than one scan returns, continue until one can be served."""
        self._needs_scan = False
        started = self._monotonic()
        try:
            await self._directory.refresh()
            while await self._scan_next() and self.planner.is_empty:
                pass
        except BaseException:
            self._needs_scan = True
            raise
        ended = self._monotonic()
        self._next_scan_at = ended + _PAUSE_PER_SCAN * (ended - started)

    async def _scan_next(self) -> bool:
        """Scan flows from where the last scan ended. Returns whether there are more after them."""
        self.planner.mark_query_start()
        before, scope = self._scan_positions, self.scope
        flows = await self._store.task_flows(scope.tenant_id, scope.queues, after=before, limit=_MAX_FLOWS)
        counts = Counter(flow.queue for flow in flows)
        self._scan_positions = list({flow.queue: flow for flow in flows if counts[flow.queue] >= _MAX_FLOWS}.values())
        own = self._without_paused(flows if scope.types is None else [flow for flow in flows if flow.type in scope.types])
        if (before or self._scan_positions) and len(self.planner) <= 2 * _MAX_FLOWS:
            self.planner.unblock()
            self.planner.add_ready(own)
        else:
            self.planner.replace(own)
        return bool(self._scan_positions)


class FairDispatchers:
    """The dispatchers of a node, kept for a while without workers, so that returning workers find the shares unchanged."""

    def __init__(self, store: Store, publisher: ChangePublisher, directory: FairnessDirectory, total_seconds: float) -> None:
        self.directory = directory
        self._store = store
        self._publisher = publisher
        self._total_seconds = total_seconds
        self._dispatchers: OrderedDict[ClaimScope, FairDispatcher] = OrderedDict()

    def of(self, scope: ClaimScope) -> FairDispatcher:
        dispatcher = self._dispatchers.get(scope)
        if dispatcher is None:
            dispatcher = self._dispatchers[scope] = FairDispatcher(
                scope, self._store, self._publisher, self.directory, self._total_seconds
            )
            if len(self._dispatchers) > _MAX_KEPT:
                self._dispatchers.popitem(last=False)
        self._dispatchers.move_to_end(scope)
        return dispatcher

    def limited(self, tenant_ids: Collection[UUID]) -> set[UUID]:
        """Return those of the tenants that have a limit of running tasks."""
        return {tenant_id for tenant_id in tenant_ids if self.directory.max_running_of(tenant_id) is not None}
