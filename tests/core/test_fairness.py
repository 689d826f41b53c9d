"""Fair shares: by weight, within a priority, work-conserving, without starvation, and without credit for idle time."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.core.fairness import ClaimPlanner, ClaimStep, Flow, StrideScheduler, pick_size

A, B, C = (UUID(int=number) for number in (1, 2, 3))


def flow(tenant_id: UUID, *, priority: int = 100, fair_key: str = "", queue: str = "q", type_: str = "t") -> Flow:
    return Flow(queue, tenant_id, priority, fair_key, type_)


class FakeDispatcher:
    """Executes claim plans without a store: the number of ready tasks of each flow, and the order of claims."""

    def __init__(self, ready: dict[Flow, int], weights: dict[UUID, float] | None = None) -> None:
        self.ready = Counter(ready)
        self.planner = ClaimPlanner(lambda tenant_id: (weights or {}).get(tenant_id, 1.0))
        self.planner.add_ready(ready)
        self.served: list[Flow] = []
        self.rounds = 0

    def take(self, step: ClaimStep, limit: int) -> int:
        got = 0
        for queue, type_ in step.queue_types:
            one = Flow(queue, step.tenant_id, step.priority, step.fair_key, type_)
            part = min(self.ready[one], limit - got)
            self.ready[one] -= part
            self.served += [one] * part
            got += part
        return got

    def claim(self, count: int) -> int:
        """Claim as the dispatcher does: plan repeatedly until there are enough tasks, or no flow with ready tasks is known."""
        left = count
        while left and (steps := self.planner.plan(left)):
            self.rounds += 1
            groups = [(step.priority, step.tenant_id, step.fair_key) for step in steps]
            assert len(groups) == len(set(groups)), "no group occurs twice in a plan: the same tasks would be claimed twice"
            remaining, claimed_counts = left, []
            for step in steps:
                claimed_counts.append(self.take(step, min(step.limit, remaining)))
                remaining -= claimed_counts[-1]
            self.planner.record_result(steps, [step.limit for step in steps], claimed_counts, left)
            left = remaining
        return count - left

    def by_tenant(self) -> Counter[UUID]:
        return Counter(one.tenant_id for one in self.served)


def test_shares_follow_the_weights() -> None:
    dispatcher = FakeDispatcher({flow(A): 100_000, flow(B): 100_000}, {A: 3.0})
    for _ in range(1000):
        assert dispatcher.claim(10) == 10
    counts = dispatcher.by_tenant()
    assert abs(counts[A] / counts[B] - 3) < 0.01


@settings(max_examples=50, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0, 10.0]), min_size=2, max_size=6),
    sizes=st.lists(st.sampled_from([1, 2, 7, 64, 1000]), min_size=1, max_size=5),
)
def test_shares_follow_any_weights_and_claim_sizes(weights: list[float], sizes: list[int]) -> None:
    tenants = {UUID(int=number + 1): weight for number, weight in enumerate(weights)}
    dispatcher = FakeDispatcher({flow(tenant): 10**6 for tenant in tenants}, tenants)
    while len(dispatcher.served) < 8000:
        for size in sizes:
            assert dispatcher.claim(size) == size
    counts, total = dispatcher.by_tenant(), len(dispatcher.served)
    for tenant, weight in tenants.items():
        assert abs(counts[tenant] / total - weight / sum(weights)) < 0.06 * len(weights)


FLOWS = st.builds(
    flow,
    st.sampled_from([UUID(int=number) for number in range(1, 8)]),
    priority=st.sampled_from([1, 50, 100]),
    fair_key=st.sampled_from(["", "x", "y"]),
    queue=st.sampled_from(["q", "r"]),
    type_=st.sampled_from(["t", "u"]),
)


@settings(max_examples=200, deadline=None)
@given(ready=st.dictionaries(FLOWS, st.integers(1, 40), max_size=20), sizes=st.lists(st.integers(1, 50), min_size=1))
def test_claims_are_work_conserving_and_ordered_by_priority(ready: dict[Flow, int], sizes: list[int]) -> None:
    dispatcher = FakeDispatcher(ready)
    for size in sizes * 50:
        left = sum(dispatcher.ready.values())
        best = sorted(one.priority for one, count in dispatcher.ready.items() for _ in range(count))[:size]
        start = len(dispatcher.served)
        assert dispatcher.claim(size) == min(size, left), "all available tasks, whatever their tenant"
        assert [one.priority for one in dispatcher.served[start:]] == best
    if sum(sizes) * 50 > sum(ready.values()):
        assert dispatcher.planner.is_empty
        assert len(dispatcher.planner) == 0


@settings(max_examples=50, deadline=None)
@given(others=st.integers(1, 60), size=st.sampled_from([1, 5, 100]))
def test_a_tenant_with_one_task_is_served_within_one_round(others: int, size: int) -> None:
    dispatcher = FakeDispatcher({flow(UUID(int=number + 10)): 10**6 for number in range(others)})
    for _ in range(50):
        dispatcher.claim(size)
    dispatcher.ready[flow(A)] += 1
    dispatcher.planner.add_ready([flow(A)])
    before = len(dispatcher.served)
    while flow(A) not in dispatcher.served:
        dispatcher.claim(size)
    assert len(dispatcher.served) - before <= (others + 1) * pick_size(size) + size


def test_idle_time_gives_no_credit() -> None:
    dispatcher = FakeDispatcher({flow(A): 10**6})
    for _ in range(1000):
        dispatcher.claim(10)
    dispatcher.ready[flow(B)] = 10**6
    dispatcher.planner.add_ready([flow(B)])
    start = len(dispatcher.served)
    for _ in range(100):
        dispatcher.claim(10)
    counts = Counter(one.tenant_id for one in dispatcher.served[start:])
    assert abs(counts[A] - counts[B]) <= 10


def test_leaving_and_rejoining_gives_no_advantage() -> None:
    """A tenant that submits a few tasks at a time gets no more than its share next to a tenant with many tasks."""
    dispatcher = FakeDispatcher({flow(A): 10**6})
    for _ in range(500):
        dispatcher.ready[flow(B)] += 3
        dispatcher.planner.add_ready([flow(B)])
        dispatcher.claim(4)
    counts = dispatcher.by_tenant()
    assert counts[B] <= 1100, counts


def test_fair_keys_of_a_tenant_get_equal_parts() -> None:
    dispatcher = FakeDispatcher({flow(A, fair_key="big"): 10**6, flow(A, fair_key="small"): 500, flow(B): 10**6})
    for _ in range(100):
        dispatcher.claim(20)
    counts = Counter((one.tenant_id, one.fair_key) for one in dispatcher.served)
    assert abs(counts[B, ""] - 1000) <= 20, "a tenant has one share, whatever the number of its keys"
    assert abs(counts[A, "small"] - 500) <= 20


def test_a_large_claim_over_many_tenants_has_few_steps() -> None:
    dispatcher = FakeDispatcher({flow(UUID(int=number + 1)): 1000 for number in range(1000)})
    assert len(dispatcher.planner.plan(1000)) <= 100
    for _ in range(64):
        assert dispatcher.claim(1000) == 1000
    counts = dispatcher.by_tenant()
    assert len(counts) == 1000
    assert max(counts.values()) - min(counts.values()) <= 16
    assert dispatcher.rounds == 64


def test_a_single_tenant_without_fair_keys_is_planned_over_all_priorities() -> None:
    planner = ClaimPlanner(lambda _tenant: 1.0)
    planner.add_ready([flow(A, priority=priority, queue=queue) for priority in (5, 1) for queue in "rq"])
    queue_types = (("q", "t"), ("r", "t"))
    assert planner.plan(7) == [ClaimStep(1, A, "", queue_types, 7), ClaimStep(5, A, "", queue_types, 7)]


def test_flows_added_during_a_claim_are_kept() -> None:
    planner = ClaimPlanner(lambda _tenant: 1.0)
    planner.add_ready([flow(A), flow(B)])
    steps = planner.plan(10)
    planner.add_ready([flow(A)])
    planner.record_result(steps, [step.limit for step in steps], [0] * len(steps), 10)
    assert {step.tenant_id for step in planner.plan(10)} == {A}


def test_flows_added_during_a_query_are_kept() -> None:
    planner = ClaimPlanner(lambda _tenant: 1.0)
    planner.add_ready([flow(A), flow(B)])
    planner.mark_query_start()
    planner.add_ready([flow(C)])
    planner.replace([flow(A)])
    assert {step.tenant_id for step in planner.plan(10)} == {A, C}
    assert len(planner) == 2


def test_a_tenant_at_its_limit_is_skipped_until_it_is_below_it() -> None:
    planner = ClaimPlanner(lambda _tenant: 1.0)
    planner.add_ready([flow(A), flow(B)])
    steps = planner.plan(2)
    planner.record_result(steps, [0 if step.tenant_id == A else step.limit for step in steps], [0, 1], 2, at_limit=[A])
    assert {step.tenant_id for step in planner.plan(2)} == {B}
    planner.add_ready([flow(A)])
    assert {step.tenant_id for step in planner.plan(2)} == {B}
    assert not planner.unblock([C])
    assert planner.unblock([A])
    assert {step.tenant_id for step in planner.plan(2)} == {A, B}


def test_a_stride_scheduler_keeps_only_the_debt_of_members_that_leave() -> None:
    scheduler: StrideScheduler[str] = StrideScheduler(lambda _member: 1.0)
    for member in "ab":
        scheduler.join(member)
    scheduler.charge("a", 5)
    scheduler.leave("a")
    scheduler.charge("b", 2)
    scheduler.join("a")
    assert scheduler.allocate(1)[0] == {"b": 1}
    assert scheduler.allocate(4, spares=1) == ({"b": 4}, ["a"])
