"""Fair sharing: which tasks the next claim takes, by weight between tenants and in equal parts between fair keys.

The algorithm is stride scheduling. Each tenant has a pass value that grows by 1/weight with every task it gets; the tenant with
the smallest pass is next. A tenant without ready tasks leaves and later rejoins at the current pass of the others: an idle
tenant collects no credit, and is not penalized for what it used while it was alone. Priorities come first: a priority is only
served when no better one has ready tasks. Within a tenant, fair keys are scheduled in the same way with equal weights.

A planner knows which flows have ready tasks, but not how many. A plan may therefore request more from a flow than it has; the
planner then learns this from the result, and only claimed tasks are charged. Nothing here is durable: a lost planner is rebuilt
from the ready tasks.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

# Tasks per pick: one in small claims, more in large ones, so that a claim of 1,000 over 1,000 tenants is about 60 index seeks.
_MAX_PICK_SIZE = 16
_PICKS = 32
# Additional flows in a plan, in case the first ones are empty by now. They cost nothing unless they are reached.
_SPARES = 32
_MAX_LEVELS = 8
_MAX_ABSENT = 10_000


class Flow(NamedTuple):
    """The ready tasks that are equal in these fields; they are adjacent in the index, ordered by time."""

    queue: str
    tenant_id: UUID
    priority: int
    fair_key: str
    type: str


class ClaimStep(NamedTuple):
    """What a claim may take from one fair key of a tenant at one priority: the oldest tasks of these (queue, type) pairs."""

    priority: int
    tenant_id: UUID
    fair_key: str
    queue_types: tuple[tuple[str, str], ...]
    limit: int


def pick_size(count: int) -> int:
    return max(1, min(_MAX_PICK_SIZE, count // _PICKS))


K = TypeVar("K", bound=Hashable)


class StrideScheduler(Generic[K]):
    """Chooses members in proportion to their weights."""

    def __init__(self, weight_of: Callable[[K], float]) -> None:
        self._weight_of = weight_of
        # Pass and a serial number; entries in the heap with another number are stale.
        self._places: dict[K, tuple[float, int]] = {}
        self._absent: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._numbers = itertools.count()
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, member: K) -> bool:
        return member in self._places

    def __iter__(self) -> Iterator[K]:
        return iter(self._places)

    def join(self, member: K) -> None:
        if member not in self._places:
            self._place(member, max(self._absent.pop(member, 0.0), self._now))

    def leave(self, member: K) -> None:
        """Remove a member. A pass ahead of the others is remembered, so that leaving and rejoining gives no advantage."""
        passed, _ = self._places.pop(member, (0.0, 0))
        if passed <= self._now:
            return
        if len(self._absent) >= _MAX_ABSENT:
            self._absent = {one: at for one, at in self._absent.items() if at > self._now}
        if len(self._absent) < _MAX_ABSENT:
            self._absent[member] = passed

    def charge(self, member: K, count: int) -> None:
        if count and member in self._places:
            self._place(member, self._places[member][0] + count / self._weight_of(member))
            self._advance()

    def allocate(self, count: int, spares: int = 0) -> tuple[dict[K, int], list[K]]:
        """How many of the next `count` each member gets, and the next `spares` members after them. Charges no one."""
        size = pick_size(count)
        taken: dict[K, int] = {}
        again: list[tuple[float, int, K]] = []
        drawn: list[tuple[float, int, K]] = []
        left = count
        while left > 0:
            first = self._top()
            if first is not None and (not again or first < again[0]):
                drawn.append(heapq.heappop(self._heap))
            elif again:
                first = heapq.heappop(again)
            else:
                break
            passed, number, member = first
            size = min(size, left)
            taken[member] = taken.get(member, 0) + size
            left -= size
            heapq.heappush(again, (passed + size / self._weight_of(member), number, member))
        after: list[K] = []
        while len(after) < spares and (first := self._top()) is not None:
            drawn.append(heapq.heappop(self._heap))
            after.append(first[2])
        for entry in drawn:
            heapq.heappush(self._heap, entry)
        return taken, after

    def _place(self, member: K, passed: float) -> None:
        number = next(self._numbers)
        self._places[member] = (passed, number)
        heapq.heappush(self._heap, (passed, number, member))
        if len(self._heap) > 4 * len(self._places) + 64:  # most entries are stale
            self._heap = [(*place, one) for one, place in self._places.items()]
            heapq.heapify(self._heap)

    def _top(self) -> tuple[float, int, K] | None:
        """The entry with the smallest pass. Stale entries before it are removed."""
        while self._heap and self._places.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def _advance(self) -> None:
        if (first := self._top()) is not None:
            self._now = max(self._now, first[0])


class _Tenant:
    """The fair keys of one tenant at one priority, and the (queue, type) pairs of each."""

    def __init__(self) -> None:
        self.queue_types: dict[str, set[tuple[str, str]]] = {}
        self.keys: StrideScheduler[str] = StrideScheduler(lambda _key: 1.0)


FlowGroup = tuple[int, UUID, str]


class ClaimPlanner:
    """Knows which flows have ready tasks, and plans which of them the next claim takes."""

    def __init__(self, weight_of: Callable[[UUID], float]) -> None:
        self._weight_of = weight_of
        self._levels: dict[int, StrideScheduler[UUID]] = {}
        self._tenants: dict[tuple[int, UUID], _Tenant] = {}
        self._deep: set[FlowGroup] = set()
        self._noted: set[FlowGroup] = set()
        self._blocked: set[UUID] = set()
        self._size = 0

    def __len__(self) -> int:
        """The number of known flows."""
        return self._size

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to plan: no flows, or only flows of blocked tenants."""
        return not any(len(level) for level in self._levels.values())

    @property
    def blocked(self) -> frozenset[UUID]:
        return frozenset(self._blocked)

    # Ready flows

    def add_ready(self, flows: Iterable[Flow]) -> None:
        """Add flows that have ready tasks."""
        for flow in flows:
            tenant = self._tenants.setdefault((flow.priority, flow.tenant_id), _Tenant())
            queue_types = tenant.queue_types.setdefault(flow.fair_key, set())
            if (queue_type := (flow.queue, flow.type)) not in queue_types:
                queue_types.add(queue_type)
                self._size += 1
            self._noted.add((flow.priority, flow.tenant_id, flow.fair_key))
            tenant.keys.join(flow.fair_key)
            if flow.tenant_id not in self._blocked:
                self._level(flow.priority).join(flow.tenant_id)

    def mark_query_start(self) -> None:
        """Mark the start of a query: it may not see flows that are added from here on."""
        self._noted.clear()

    def replace(self, flows: Iterable[Flow]) -> None:
        """Replace the known flows by the result of a query. Flows that were added since it started are kept."""
        found = list(flows)
        noted = set(self._noted)
        self._blocked.clear()
        known = {(flow.priority, flow.tenant_id, flow.fair_key) for flow in found} | noted
        for (priority, tenant_id), tenant in list(self._tenants.items()):
            for key in list(tenant.queue_types):
                if (priority, tenant_id, key) not in known:
                    self._forget((priority, tenant_id, key))
                elif (priority, tenant_id, key) not in noted:
                    self._size -= len(tenant.queue_types[key])
                    tenant.queue_types[key].clear()
        self.add_ready(found)
        self._rejoin()
        self._noted = noted

    def block(self, tenants: Iterable[UUID]) -> None:
        """Block tenants that have reached their limit of running tasks."""
        for tenant_id in tenants:
            self._blocked.add(tenant_id)
            for level in self._levels.values():
                level.leave(tenant_id)

    def unblock(self, tenants: Iterable[UUID] | None = None) -> bool:
        """Unblock these tenants (None: all of them). Returns whether any of them was blocked."""
        freed = self._blocked if tenants is None else self._blocked.intersection(tenants)
        if not freed:
            return False
        self._blocked = self._blocked - freed
        self._rejoin()
        return True

    def _rejoin(self) -> None:
        for priority, tenant_id in self._tenants:
            if tenant_id not in self._blocked:
                self._level(priority).join(tenant_id)

    def _level(self, priority: int) -> StrideScheduler[UUID]:
        if priority not in self._levels:
            self._levels[priority] = StrideScheduler(self._weight_of)
        return self._levels[priority]

    def _forget(self, group: FlowGroup) -> None:
        priority, tenant_id, key = group
        tenant = self._tenants.get((priority, tenant_id))
        if tenant is None or key not in tenant.queue_types:
            return
        self._size -= len(tenant.queue_types.pop(key))
        tenant.keys.leave(key)
        self._deep.discard(group)
        if not tenant.queue_types:
            del self._tenants[priority, tenant_id]
            self._level(priority).leave(tenant_id)

    # Planning

    def plan(self, count: int) -> list[ClaimStep]:
        """The steps of a claim of `count` tasks, in order. Their limits may add up to more than `count`.

        If a priority has only one group of flows, the plan continues with the next priority, because the claim takes all its
        tasks first. With several groups, each step requests only its part; if tasks are missing, another plan must follow
        before a lower priority is served.
        """
        self.mark_query_start()
        shares: list[ClaimStep] = []
        for priority in sorted(priority for priority, level in self._levels.items() if len(level))[:_MAX_LEVELS]:
            of_level = self._plan_level(priority, count)
            shares += of_level
            if len(of_level) != 1 or not self._is_alone(priority):
                break
        return shares

    def _is_alone(self, priority: int) -> bool:
        level = self._levels[priority]
        return len(level) == 1 and all(len(self._tenants[priority, tenant_id].queue_types) == 1 for tenant_id in level)

    def _plan_level(self, priority: int, count: int) -> list[ClaimStep]:
        allocate, after = self._levels[priority].allocate(count, _SPARES)
        shares: list[ClaimStep] = []
        spares: list[ClaimStep] = []
        for tenant_id, part in allocate.items():
            tenant = self._tenants[priority, tenant_id]
            if len(tenant.queue_types) == 1:  # the usual case: nothing to choose
                shares += [self._step_for(priority, tenant_id, key, part) for key in tenant.queue_types]
                continue
            keys, others = tenant.keys.allocate(part, _SPARES)
            shares += [self._step_for(priority, tenant_id, key, size) for key, size in keys.items()]
            spares += [self._step_for(priority, tenant_id, key, pick_size(count)) for key in others]
        for tenant_id in after:
            keys, _ = self._tenants[priority, tenant_id].keys.allocate(1)
            spares += [self._step_for(priority, tenant_id, key, pick_size(count)) for key in keys]
        # A group that had more than enough tasks the last time comes last, and fills up for groups that have too few.
        for place, share in enumerate(shares):
            if (share.priority, share.tenant_id, share.fair_key) in self._deep or len(shares) == 1:
                shares.append(shares.pop(place)._replace(limit=count))
                break
        return shares + spares[:_SPARES]

    def _step_for(self, priority: int, tenant_id: UUID, key: str, limit: int) -> ClaimStep:
        queue_types = self._tenants[priority, tenant_id].queue_types[key]
        return ClaimStep(
            priority, tenant_id, key, tuple(queue_types) if len(queue_types) == 1 else tuple(sorted(queue_types)), limit
        )

    def record_result(
        self,
        shares: Sequence[ClaimStep],
        limits: Sequence[int],
        claimed_counts: Sequence[int],
        count: int,
        full: Iterable[UUID] = (),
    ) -> None:
        """Record the result of a claim of `count` tasks by a plan: the requested and the claimed number of each step.

        `full`: tenants that have reached their limit.
        """
        left = count
        for share, limit, got in zip(shares, limits, claimed_counts, strict=True):
            group = (share.priority, share.tenant_id, share.fair_key)
            asked = min(limit, left)
            left -= got
            self._charge(group, got)
            if got < asked:
                self._deep.discard(group)
                if group not in self._noted:
                    self._forget(group)
            elif asked > 0:
                self._deep.add(group)
        self.block(full)

    def _charge(self, group: FlowGroup, count: int) -> None:
        priority, tenant_id, key = group
        self._level(priority).charge(tenant_id, count)
        if (tenant := self._tenants.get((priority, tenant_id))) is not None:
            tenant.keys.charge(key, count)
