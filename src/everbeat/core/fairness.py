"""Fair sharing: which tasks the next claim takes, by weight between tenants and in equal parts between fair keys.

The algorithm is stride scheduling. Each tenant has a pass that grows by 1/weight with every claimed task. The tenant with the
smallest pass is next. A tenant without ready tasks leaves the scheduler and later rejoins at the current pass: an idle tenant
collects no credit, and a tenant that was the only one is not penalized for the tasks it got. Priorities come first: a priority
is served only when no better one has ready tasks. Within a tenant, fair keys are scheduled in the same way with equal weights.

A planner tracks which flows have ready tasks, but not how many. A plan may therefore request more tasks than a flow has. The
result of the claim corrects the planner, and only claimed tasks are charged. Nothing here is durable: a lost planner is rebuilt
from the ready tasks.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

# Tasks per pick: one in small claims, more in large ones, so that a claim of 1,000 over 1,000 tenants is about 60 index seeks.
_MAX_PICK_SIZE = 16
_PICKS = 32
# With limits there are usually many fair keys with few tasks each, so the picks are smaller.
_LIMITED_PICKS = 256
# Additional steps in a plan, in case the flows of the first ones are empty by now. They cost nothing unless they are reached.
_SPARES = 32
_MAX_LEVELS = 8
_MAX_SAVED_PASSES = 10_000


class Flow(NamedTuple):
    """The ready tasks with the same values in these fields. They are adjacent in the index, ordered by time."""

    queue: str
    tenant_id: UUID
    priority: int
    fair_key: str
    type: str


class ClaimStep(NamedTuple):
    """What a claim may take at one priority from one fair key of a tenant: the oldest tasks of these (queue, type) pairs."""

    priority: int
    tenant_id: UUID
    fair_key: str
    queue_types: tuple[tuple[str, str], ...]
    limit: int


def pick_size(count: int, picks: int = _PICKS) -> int:
    return max(1, min(_MAX_PICK_SIZE, count // picks))


K = TypeVar("K", bound=Hashable)


class StrideScheduler(Generic[K]):
    """Chooses members in proportion to their weights."""

    def __init__(self, weight_of: Callable[[K], float], picks: int = _PICKS) -> None:
        self._weight_of = weight_of
        self._picks = picks
        # The pass and a serial number. A heap entry with another serial number is stale.
        self._passes: dict[K, tuple[float, int]] = {}
        # The passes of former members that were ahead of the others.
        self._saved_passes: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._serials = itertools.count()
        self._current_pass = 0.0

    def __len__(self) -> int:
        return len(self._passes)

    def __contains__(self, member: K) -> bool:
        return member in self._passes

    def __iter__(self) -> Iterator[K]:
        return iter(self._passes)

    def join(self, member: K) -> None:
        if member not in self._passes:
            self._set_pass(member, max(self._saved_passes.pop(member, 0.0), self._current_pass))

    def leave(self, member: K) -> None:
        """Remove a member. A pass ahead of the others is saved, so that leaving and rejoining gives no advantage."""
        member_pass, _ = self._passes.pop(member, (0.0, 0))
        if member_pass <= self._current_pass:
            return
        if len(self._saved_passes) >= _MAX_SAVED_PASSES:
            self._saved_passes = {other: saved for other, saved in self._saved_passes.items() if saved > self._current_pass}
        if len(self._saved_passes) < _MAX_SAVED_PASSES:
            self._saved_passes[member] = member_pass

    def charge(self, member: K, count: int) -> None:
        if count and member in self._passes:
            self._set_pass(member, self._passes[member][0] + count / self._weight_of(member))
            self._advance()

    def allocate(self, count: int, spares: int = 0) -> tuple[dict[K, int], list[K]]:
        """Return how many of the next `count` each member gets, and the next `spares` members after these. Charges nothing."""
        size = pick_size(count, self._picks)
        allocated: dict[K, int] = {}
        repeated: list[tuple[float, int, K]] = []
        popped: list[tuple[float, int, K]] = []
        remaining = count
        while remaining > 0:
            first = self._top()
            if first is not None and (not repeated or first < repeated[0]):
                popped.append(heapq.heappop(self._heap))
            elif repeated:
                first = heapq.heappop(repeated)
            else:
                break
            member_pass, serial, member = first
            size = min(size, remaining)
            allocated[member] = allocated.get(member, 0) + size
            remaining -= size
            heapq.heappush(repeated, (member_pass + size / self._weight_of(member), serial, member))
        spare: list[K] = []
        while len(spare) < spares and (first := self._top()) is not None:
            popped.append(heapq.heappop(self._heap))
            spare.append(first[2])
        for entry in popped:
            heapq.heappush(self._heap, entry)
        return allocated, spare

    def _set_pass(self, member: K, new_pass: float) -> None:
        serial = next(self._serials)
        self._passes[member] = (new_pass, serial)
        heapq.heappush(self._heap, (new_pass, serial, member))
        if len(self._heap) > 4 * len(self._passes) + 64:  # most entries are stale
            self._heap = [(*current, other) for other, current in self._passes.items()]
            heapq.heapify(self._heap)

    def _top(self) -> tuple[float, int, K] | None:
        """Return the entry with the smallest pass, after removing stale entries before it."""
        while self._heap and self._passes.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def _advance(self) -> None:
        if (first := self._top()) is not None:
            self._current_pass = max(self._current_pass, first[0])


class _Tenant:
    """The fair keys of one tenant at one priority, and the (queue, type) pairs of each."""

    def __init__(self, picks: int) -> None:
        self.queue_types: dict[str, set[tuple[str, str]]] = {}
        self.keys: StrideScheduler[str] = StrideScheduler(lambda _key: 1.0, picks)


FlowGroup = tuple[int, UUID, str]


class ClaimLimits(Protocol):
    """Limits the tasks that claims take from fair keys, such as those of destinations that are busy or unavailable."""

    def limits(self, steps: Sequence[ClaimStep]) -> list[int]:
        """Return how many tasks each step may take, at most its own limit. A group that may take none is parked."""

    def note_claimed(self, steps: Sequence[ClaimStep], counts: Sequence[int]) -> None:
        """Note how many tasks a claim took by these steps."""


class ClaimPlanner:
    """Tracks which flows have ready tasks, and plans what the next claim takes from them."""

    def __init__(self, weight_of: Callable[[UUID], float], limits: ClaimLimits | None = None) -> None:
        self._weight_of = weight_of
        self._limits = limits
        self._picks = _PICKS if limits is None else _LIMITED_PICKS
        # Groups that the limits exclude for now, by fair key. They are known, but not scheduled.
        self._parked: dict[str, set[FlowGroup]] = {}
        self._levels: dict[int, StrideScheduler[UUID]] = {}
        self._tenants: dict[tuple[int, UUID], _Tenant] = {}
        # Groups that filled their last step completely, and therefore probably have more tasks.
        self._backlogged: set[FlowGroup] = set()
        self._added_since_query: set[FlowGroup] = set()
        self._blocked: set[UUID] = set()
        self._size = 0

    def __len__(self) -> int:
        """Return the number of known flows."""
        return self._size

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to plan: there are no flows, or only flows of blocked tenants."""
        return not any(len(level) for level in self._levels.values())

    @property
    def blocked(self) -> frozenset[UUID]:
        return frozenset(self._blocked)

    # Ready flows

    def add_ready(self, flows: Iterable[Flow]) -> None:
        """Add flows that have ready tasks."""
        for flow in flows:
            tenant = self._tenants.setdefault((flow.priority, flow.tenant_id), _Tenant(self._picks))
            queue_types = tenant.queue_types.setdefault(flow.fair_key, set())
            if (queue_type := (flow.queue, flow.type)) not in queue_types:
                queue_types.add(queue_type)
                self._size += 1
            self._added_since_query.add((flow.priority, flow.tenant_id, flow.fair_key))
            if (flow.priority, flow.tenant_id, flow.fair_key) in self._parked.get(flow.fair_key, ()):
                continue
            tenant.keys.join(flow.fair_key)
            if flow.tenant_id not in self._blocked:
                self._level(flow.priority).join(flow.tenant_id)

    def mark_query_start(self) -> None:
        """Mark the start of a query. The query may miss flows that are added from here on."""
        self._added_since_query.clear()

    def replace(self, flows: Iterable[Flow]) -> None:
        """Replace the known flows with the result of a query. Keep the flows that were added since it started."""
        found = list(flows)
        added = set(self._added_since_query)
        self._blocked.clear()
        current = {(flow.priority, flow.tenant_id, flow.fair_key) for flow in found} | added
        for (priority, tenant_id), tenant in list(self._tenants.items()):
            for key in list(tenant.queue_types):
                if (priority, tenant_id, key) not in current:
                    self._remove((priority, tenant_id, key))
                elif (priority, tenant_id, key) not in added:
                    self._size -= len(tenant.queue_types[key])
                    tenant.queue_types[key].clear()
        self.add_ready(found)
        self._rejoin()
        self._added_since_query = added

    def block(self, tenants: Iterable[UUID]) -> None:
        """Block tenants that have reached their limit of running tasks."""
        for tenant_id in tenants:
            self._blocked.add(tenant_id)
            for level in self._levels.values():
                level.leave(tenant_id)

    def unblock(self, tenants: Iterable[UUID] | None = None) -> bool:
        """Unblock these tenants (None: all tenants). Return whether any of them was blocked."""
        unblocked = self._blocked if tenants is None else self._blocked.intersection(tenants)
        if not unblocked:
            return False
        self._blocked = self._blocked - unblocked
        self._rejoin()
        return True

    def _rejoin(self) -> None:
        for (priority, tenant_id), tenant in self._tenants.items():
            if tenant_id not in self._blocked and len(tenant.keys):
                self._level(priority).join(tenant_id)

    def unpark(self, fair_keys: Collection[str]) -> bool:
        """Schedule parked groups with these fair keys again. Return whether there were any."""
        groups = [group for key in fair_keys for group in self._parked.pop(key, ())]
        for priority, tenant_id, key in groups:
            self._tenants[priority, tenant_id].keys.join(key)
            if tenant_id not in self._blocked:
                self._level(priority).join(tenant_id)
        return bool(groups)

    @property
    def has_parked(self) -> bool:
        return bool(self._parked)

    @property
    def parked_keys(self) -> set[tuple[UUID, str]]:
        """The tenants and fair keys of parked groups."""
        return {(tenant_id, key) for groups in self._parked.values() for _, tenant_id, key in groups}

    def is_parked(self, fair_key: str) -> bool:
        return fair_key in self._parked

    def _park(self, group: FlowGroup) -> None:
        priority, tenant_id, key = group
        tenant = self._tenants[priority, tenant_id]
        self._parked.setdefault(key, set()).add(group)
        tenant.keys.leave(key)
        if not len(tenant.keys):
            self._level(priority).leave(tenant_id)

    def _level(self, priority: int) -> StrideScheduler[UUID]:
        if priority not in self._levels:
            self._levels[priority] = StrideScheduler(self._weight_of, self._picks)
        return self._levels[priority]

    def _remove(self, group: FlowGroup) -> None:
        priority, tenant_id, key = group
        tenant = self._tenants.get((priority, tenant_id))
        if tenant is None or key not in tenant.queue_types:
            return
        self._size -= len(tenant.queue_types.pop(key))
        tenant.keys.leave(key)
        self._backlogged.discard(group)
        if parked := self._parked.get(key):
            parked.discard(group)
            if not parked:
                del self._parked[key]
        if not tenant.queue_types:
            del self._tenants[priority, tenant_id]
        if not len(tenant.keys):
            self._level(priority).leave(tenant_id)

    # Planning

    def plan(self, count: int) -> list[ClaimStep]:
        """Return the steps of a claim of `count` tasks, in order. Their limits may add up to more than `count`.

        If a priority has only one group of flows, the plan continues with the next priority, because the claim first takes all
        tasks of that group. With several groups, each step requests only its part. If they have too few tasks, another plan is
        needed before a lower priority is served.
        """
        self.mark_query_start()
        while steps := self._plan_levels(count):
            if self._limits is None:
                break
            limits = self._limits.limits(steps)
            for step, limit in zip(steps, limits, strict=True):
                if limit <= 0:
                    self._park((step.priority, step.tenant_id, step.fair_key))
            allowed = [step._replace(limit=limit) for step, limit in zip(steps, limits, strict=True) if limit > 0]
            if allowed:
                return allowed
        return steps

    def _plan_levels(self, count: int) -> list[ClaimStep]:
        steps: list[ClaimStep] = []
        for priority in sorted(priority for priority, level in self._levels.items() if len(level))[:_MAX_LEVELS]:
            level_steps = self._plan_level(priority, count)
            steps += level_steps
            if len(level_steps) != 1 or not self._has_one_group(priority):
                break
        return steps

    def _has_one_group(self, priority: int) -> bool:
        level = self._levels[priority]
        return len(level) == 1 and all(len(self._tenants[priority, tenant_id].keys) == 1 for tenant_id in level)

    def _plan_level(self, priority: int, count: int) -> list[ClaimStep]:
        allocated, spare_tenants = self._levels[priority].allocate(count, _SPARES)
        steps: list[ClaimStep] = []
        spares: list[ClaimStep] = []
        for tenant_id, part in allocated.items():
            tenant = self._tenants[priority, tenant_id]
            if len(tenant.keys) == 1:  # the usual case
                steps += [self._step_for(priority, tenant_id, key, part) for key in tenant.keys]
                continue
            keys, spare_keys = tenant.keys.allocate(part, _SPARES)
            steps += [self._step_for(priority, tenant_id, key, size) for key, size in keys.items()]
            spares += [self._step_for(priority, tenant_id, key, pick_size(count, self._picks)) for key in spare_keys]
        for tenant_id in spare_tenants:
            keys, _ = self._tenants[priority, tenant_id].keys.allocate(1)
            spares += [self._step_for(priority, tenant_id, key, pick_size(count, self._picks)) for key in keys]
        # A group with a backlog comes last and may fill the whole claim, which makes up for groups that have too few tasks.
        for index, step in enumerate(steps):
            if (step.priority, step.tenant_id, step.fair_key) in self._backlogged or len(steps) == 1:
                steps.append(steps.pop(index)._replace(limit=count))
                break
        return steps + spares[:_SPARES]

    def _step_for(self, priority: int, tenant_id: UUID, key: str, limit: int) -> ClaimStep:
        queue_types = self._tenants[priority, tenant_id].queue_types[key]
        return ClaimStep(
            priority, tenant_id, key, tuple(queue_types) if len(queue_types) == 1 else tuple(sorted(queue_types)), limit
        )

    def record_result(
        self,
        steps: Sequence[ClaimStep],
        limits: Sequence[int],
        claimed_counts: Sequence[int],
        count: int,
        at_limit: Iterable[UUID] = (),
    ) -> None:
        """Record the result of a claim of `count` tasks by a plan: the limit and the claimed number of each step.

        `at_limit`: tenants that have reached their limit of running tasks.
        """
        remaining = count
        for step, limit, claimed in zip(steps, limits, claimed_counts, strict=True):
            group = (step.priority, step.tenant_id, step.fair_key)
            requested = min(limit, remaining)
            remaining -= claimed
            self._charge(group, claimed)
            if claimed < requested:
                self._backlogged.discard(group)
                if group not in self._added_since_query:
                    self._remove(group)
            elif requested > 0:
                self._backlogged.add(group)
        self.block(at_limit)

    def _charge(self, group: FlowGroup, count: int) -> None:
        priority, tenant_id, key = group
        self._level(priority).charge(tenant_id, count)
        if (tenant := self._tenants.get((priority, tenant_id))) is not None:
            tenant.keys.charge(key, count)
