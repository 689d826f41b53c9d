"""Fair shares: whose tasks the next claim takes, by weight across tenants and in equal parts across fair keys.

Stride scheduling. Each tenant has a pass, which grows by 1/weight with every task it is given; the smallest pass goes next.
Whoever has nothing to do leaves, and comes back at the present pass of the others: idleness earns no credit, and nobody is
made to wait for what they had while they were alone. Priorities come first: a level is only reached when the better ones
have nothing. Inside a tenant its fair keys take turns in the same way, with equal weights.

A roster knows which flows have ready tasks, not how many. So a plan may ask a flow for more than it has; what was not there
is learned and charged to nobody. Nothing here is durable: a roster that is lost is made anew from what is ready.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

# Tasks per pick: one in small claims, more in big ones, so that a claim of 1,000 over 1,000 tenants is some 60 index seeks.
_MAX_PICK_SIZE = 16
_PICKS = 32
# Flows named beyond what is needed, in case the first ones have nothing any more: they cost nothing unless they are reached.
_SPARES = 32
_MAX_LEVELS = 8
_MAX_ABSENT = 10_000


class Flow(NamedTuple):
    """Ready tasks that differ only in their time: what an index holds side by side."""

    queue: str
    tenant_id: UUID
    priority: int
    fair_key: str
    type: str


class ClaimStep(NamedTuple):
    """What a claim may take of one tenant's fair key at one priority: the oldest tasks of its lanes, (queue, type) each."""

    priority: int
    tenant_id: UUID
    fair_key: str
    queue_types: tuple[tuple[str, str], ...]
    limit: int


def pick_size(count: int) -> int:
    return max(1, min(_MAX_PICK_SIZE, count // _PICKS))


K = TypeVar("K", bound=Hashable)


class StrideScheduler(Generic[K]):
    """Members take turns in proportion to their weights."""

    def __init__(self, weight_of: Callable[[K], float]) -> None:
        self._weight_of = weight_of
        # With a number, which tells a member's place from those that it had before.
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
        """Its pass is kept as long as it is ahead of the others: leaving and coming back must not pay."""
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
        """How many of the next `count` each member gets, and who comes after them. Charges nobody."""
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
        if len(self._heap) > 4 * len(self._places) + 64:  # mostly of those who left or moved on
            self._heap = [(*place, one) for one, place in self._places.items()]
            heapq.heapify(self._heap)

    def _top(self) -> tuple[float, int, K] | None:
        """The first in turn; what is no longer so is dropped on the way."""
        while self._heap and self._places.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def _advance(self) -> None:
        if (first := self._top()) is not None:
            self._now = max(self._now, first[0])


class _Tenant:
    """One tenant's fair keys at one priority, and the lanes that each has tasks in."""

    def __init__(self) -> None:
        self.queue_types: dict[str, set[tuple[str, str]]] = {}
        self.keys: StrideScheduler[str] = StrideScheduler(lambda _key: 1.0)


FlowGroup = tuple[int, UUID, str]


class ClaimPlanner:
    """Which flows have ready tasks, and whose turn it is."""

    def __init__(self, weight_of: Callable[[UUID], float]) -> None:
        self._weight_of = weight_of
        self._levels: dict[int, StrideScheduler[UUID]] = {}
        self._tenants: dict[tuple[int, UUID], _Tenant] = {}
        self._deep: set[FlowGroup] = set()
        self._noted: set[FlowGroup] = set()
        self._blocked: set[UUID] = set()
        self._size = 0

    def __len__(self) -> int:
        """How many flows are known."""
        return self._size

    @property
    def is_empty(self) -> bool:
        """Nothing to plan with: no flows, or only those of tenants that may not have more at the moment."""
        return not any(len(level) for level in self._levels.values())

    @property
    def blocked(self) -> frozenset[UUID]:
        return frozenset(self._blocked)

    # What is ready

    def add_ready(self, flows: Iterable[Flow]) -> None:
        """These have ready tasks; what else is known stays so."""
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
        """A look or a claim goes out: what is noted from here on may be news to it."""
        self._noted.clear()

    def replace(self, flows: Iterable[Flow]) -> None:
        """All that has ready tasks, as a look found it; what was noted since it began stays as well."""
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
        """These may have no more for now."""
        for tenant_id in tenants:
            self._blocked.add(tenant_id)
            for level in self._levels.values():
                level.leave(tenant_id)

    def unblock(self, tenants: Iterable[UUID] | None = None) -> bool:
        """These may have more again (None: all may); whether that is news."""
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
        """What to ask for so that `count` tasks come together, in order; the whole may name more than that.

        A level with one flow group goes over into the next: all it has comes first. With several, each is asked for its
        part only, so that what is missing must be planned anew before a lower level may be reached.
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
            if len(tenant.queue_types) == 1:  # as nearly all have: no turns to take
                shares += [self._step_for(priority, tenant_id, key, part) for key in tenant.queue_types]
                continue
            keys, others = tenant.keys.allocate(part, _SPARES)
            shares += [self._step_for(priority, tenant_id, key, size) for key, size in keys.items()]
            spares += [self._step_for(priority, tenant_id, key, pick_size(count)) for key in others]
        for tenant_id in after:
            keys, _ = self._tenants[priority, tenant_id].keys.allocate(1)
            spares += [self._step_for(priority, tenant_id, key, pick_size(count)) for key in keys]
        # One that had plenty the last time comes last, and makes up for those that have less than their part.
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
        """What a claim of `count` by that plan brought, of what each share was asked for in the end.

        `full`: tenants that may have no more for now.
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
