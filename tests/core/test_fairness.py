"""Fair shares: by weight, within priority, work-conserving, nobody starved, idleness earns nothing."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.core.fairness import ClaimPlanner, ClaimStep, Flow, StrideScheduler, pick_size

A, B, C = (UUID(int=number) for number in (1, 2, 3))


def flow(tenant_id: UUID, *, priority: int = 100, fair_key: str = "", queue: str = "q", type_: str = "t") -> Flow:
    return Flow(queue, tenant_id, priority, fair_key, type_)


class Shop:
    """What a store would do with plans: so many ready tasks of each flow, and who was served in which order."""

    def __init__(self, ready: dict[Flow, int], weights: dict[UUID, float] | None = None) -> None:
        self.ready = Counter(ready)
        self.planner = ClaimPlanner(lambda tenant_id: (weights or {}).get(tenant_id, 1.0))
        self.planner.add_ready(ready)
        self.served: list[Flow] = []
        self.rounds = 0

    def take(self, share: ClaimStep, limit: int) -> int:
        got = 0
        for queue, type_ in share.queue_types:
            one = Flow(queue, share.tenant_id, share.priority, share.fair_key, type_)
            part = min(self.ready[one], limit - got)
            self.ready[one] -= part
            self.served += [one] * part
            got += part
        return got

    def claim(self, count: int) -> int:
        """As a dispatcher claims: round after round until there is enough, or nothing left that is known of."""
        left = count
        while left and (shares := self.planner.plan(left)):
            self.rounds += 1
            groups = [(share.priority, share.tenant_id, share.fair_key) for share in shares]
            assert len(groups) == len(set(groups)), "a plan names nobody twice: the same tasks would be taken twice"
            remaining, claimed_counts = left, []
            for share in shares:
                claimed_counts.append(self.take(share, min(share.limit, remaining)))
                remaining -= claimed_counts[-1]
            self.planner.record_result(shares, [share.limit for share in shares], claimed_counts, left)
            left = remaining
        return count - left

    def by_tenant(self) -> Counter[UUID]:
        return Counter(one.tenant_id for one in self.served)


def test_weights_are_kept_over_a_run() -> None:
    shop = Shop({flow(A): 100_000, flow(B): 100_000}, {A: 3.0})
    for _ in range(1000):
        assert shop.claim(10) == 10
    counts = shop.by_tenant()
    assert abs(counts[A] / counts[B] - 3) < 0.01


@settings(max_examples=50, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0, 10.0]), min_size=2, max_size=6),
    sizes=st.lists(st.sampled_from([1, 2, 7, 64, 1000]), min_size=1, max_size=5),
)
def test_any_weights_and_sizes_of_claims(weights: list[float], sizes: list[int]) -> None:
    tenants = {UUID(int=number + 1): weight for number, weight in enumerate(weights)}
    shop = Shop({flow(tenant): 10**6 for tenant in tenants}, tenants)
    while len(shop.served) < 8000:
        for size in sizes:
            assert shop.claim(size) == size
    counts, total = shop.by_tenant(), len(shop.served)
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
def test_work_is_conserved_and_priorities_come_first(ready: dict[Flow, int], sizes: list[int]) -> None:
    shop = Shop(ready)
    for size in sizes * 50:
        left = sum(shop.ready.values())
        best = sorted(one.priority for one, count in shop.ready.items() for _ in range(count))[:size]
        start = len(shop.served)
        assert shop.claim(size) == min(size, left), "as much as there is, whoever it belongs to"
        assert [one.priority for one in shop.served[start:]] == best
    if sum(sizes) * 50 > sum(ready.values()):
        assert shop.planner.is_empty
        assert len(shop.planner) == 0


@settings(max_examples=50, deadline=None)
@given(others=st.integers(1, 60), size=st.sampled_from([1, 5, 100]))
def test_a_tenant_with_one_task_is_served_within_one_turn_of_the_others(others: int, size: int) -> None:
    shop = Shop({flow(UUID(int=number + 10)): 10**6 for number in range(others)})
    for _ in range(50):
        shop.claim(size)
    shop.ready[flow(A)] += 1
    shop.planner.add_ready([flow(A)])
    before = len(shop.served)
    while flow(A) not in shop.served:
        shop.claim(size)
    assert len(shop.served) - before <= (others + 1) * pick_size(size) + size


def test_idleness_earns_no_credit() -> None:
    shop = Shop({flow(A): 10**6})
    for _ in range(1000):
        shop.claim(10)
    shop.ready[flow(B)] = 10**6
    shop.planner.add_ready([flow(B)])
    start = len(shop.served)
    for _ in range(100):
        shop.claim(10)
    counts = Counter(one.tenant_id for one in shop.served[start:])
    assert abs(counts[A] - counts[B]) <= 10


def test_leaving_and_coming_back_does_not_pay() -> None:
    """One that submits a few at a time gets no more than its part beside one that has plenty."""
    shop = Shop({flow(A): 10**6})
    for _ in range(500):
        shop.ready[flow(B)] += 3
        shop.planner.add_ready([flow(B)])
        shop.claim(4)
    counts = shop.by_tenant()
    assert counts[B] <= 1100, counts


def test_fair_keys_of_a_tenant_take_turns() -> None:
    shop = Shop({flow(A, fair_key="big"): 10**6, flow(A, fair_key="small"): 500, flow(B): 10**6})
    for _ in range(100):
        shop.claim(20)
    counts = Counter((one.tenant_id, one.fair_key) for one in shop.served)
    assert abs(counts[B, ""] - 1000) <= 20, "however many keys a tenant has, its share is one"
    assert abs(counts[A, "small"] - 500) <= 20


def test_a_big_claim_over_many_tenants_is_a_few_dozen_seeks() -> None:
    shop = Shop({flow(UUID(int=number + 1)): 1000 for number in range(1000)})
    assert len(shop.planner.plan(1000)) <= 100
    for _ in range(64):
        assert shop.claim(1000) == 1000
    counts = shop.by_tenant()
    assert len(counts) == 1000
    assert max(counts.values()) - min(counts.values()) <= 16
    assert shop.rounds == 64


def test_one_tenant_without_keys_is_asked_in_one_go_over_all_priorities() -> None:
    planner = ClaimPlanner(lambda _tenant: 1.0)
    planner.add_ready([flow(A, priority=priority, queue=queue) for priority in (5, 1) for queue in "rq"])
    queue_types = (("q", "t"), ("r", "t"))
    assert planner.plan(7) == [ClaimStep(1, A, "", queue_types, 7), ClaimStep(5, A, "", queue_types, 7)]


def test_what_is_noted_while_a_claim_is_out_is_not_forgotten() -> None:
    planner = ClaimPlanner(lambda _tenant: 1.0)
    planner.add_ready([flow(A), flow(B)])
    shares = planner.plan(10)
    planner.add_ready([flow(A)])
    planner.record_result(shares, [share.limit for share in shares], [0] * len(shares), 10)
    assert {share.tenant_id for share in planner.plan(10)} == {A}


def test_what_is_noted_while_a_look_is_out_is_not_forgotten() -> None:
    planner = ClaimPlanner(lambda _tenant: 1.0)
    planner.add_ready([flow(A), flow(B)])
    planner.mark_query_start()
    planner.add_ready([flow(C)])
    planner.replace([flow(A)])
    assert {share.tenant_id for share in planner.plan(10)} == {A, C}
    assert len(planner) == 2


def test_a_tenant_that_is_full_is_skipped_until_it_is_below_its_limit() -> None:
    planner = ClaimPlanner(lambda _tenant: 1.0)
    planner.add_ready([flow(A), flow(B)])
    shares = planner.plan(2)
    planner.record_result(shares, [0 if share.tenant_id == A else share.limit for share in shares], [0, 1], 2, full=[A])
    assert {share.tenant_id for share in planner.plan(2)} == {B}
    planner.add_ready([flow(A)])
    assert {share.tenant_id for share in planner.plan(2)} == {B}
    assert not planner.unblock([C])
    assert planner.unblock([A])
    assert {share.tenant_id for share in planner.plan(2)} == {A, B}


def test_a_wheel_forgets_those_who_are_behind_and_remembers_those_ahead() -> None:
    wheel: StrideScheduler[str] = StrideScheduler(lambda _member: 1.0)
    for member in "ab":
        wheel.join(member)
    wheel.charge("a", 5)
    wheel.leave("a")
    wheel.charge("b", 2)
    wheel.join("a")
    assert wheel.allocate(1)[0] == {"b": 1}
    assert wheel.allocate(4, spares=1) == ({"b": 4}, ["a"])
