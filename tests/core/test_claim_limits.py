"""Claims with limits per fair key: groups without capacity are parked until they have some."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from everbeat.core.fairness import ClaimPlanner, ClaimStep, Flow

ONE, OTHER = UUID(int=1), UUID(int=2)


class Capacities:
    """The capacity of each fair key; 100 if none is given."""

    def __init__(self, **capacities: int) -> None:
        self.capacities = capacities
        self.claimed: list[tuple[str, int]] = []

    def limits(self, steps: Sequence[ClaimStep]) -> list[int]:
        return [min(step.limit, self.capacities.get(step.fair_key, 100)) for step in steps]

    def note_claimed(self, steps: Sequence[ClaimStep], counts: Sequence[int]) -> None:
        self.claimed += [(step.fair_key, count) for step, count in zip(steps, counts, strict=True)]


def flow(fair_key: str, *, tenant_id: UUID = ONE, priority: int = 100) -> Flow:
    return Flow("everbeat:http", tenant_id, priority, fair_key, "call")


def planner(limits: Capacities, *flows: Flow) -> ClaimPlanner:
    made = ClaimPlanner(lambda _tenant_id: 1.0, limits)
    made.add_ready(flows)
    return made


def planned(made: ClaimPlanner, count: int = 100) -> dict[str, int]:
    return {step.fair_key: step.limit for step in made.plan(count)}


def test_a_step_requests_at_most_the_capacity_of_its_destination() -> None:
    assert planned(planner(Capacities(a=3), flow("a"), flow("b")))["a"] == 3


def test_a_destination_without_capacity_is_parked_and_the_others_are_served() -> None:
    made = planner(Capacities(a=0), flow("a"), flow("b"))
    assert set(planned(made)) == {"b"}
    assert made.parked_keys == {(ONE, "a")}
    assert set(planned(made)) == {"b"}


def test_if_all_are_parked_there_is_nothing_to_plan() -> None:
    made = planner(Capacities(a=0, b=0), flow("a"), flow("b", tenant_id=OTHER))
    assert planned(made) == {}
    assert made.is_empty


def test_a_parked_group_does_not_hold_back_a_lower_priority() -> None:
    made = planner(Capacities(a=0), flow("a", priority=1), flow("b", priority=200))
    assert set(planned(made)) == {"b"}


def test_unparking_serves_the_group_again() -> None:
    limits = Capacities(a=0)
    made = planner(limits, flow("a"))
    assert planned(made) == {}
    limits.capacities["a"] = 2
    assert not made.unpark({"b"})
    assert made.unpark({"a"})
    assert planned(made) == {"a": 2}


def test_a_scan_leaves_parked_groups_parked_and_forgets_those_without_tasks() -> None:
    made = planner(Capacities(a=0, b=0), flow("a"), flow("b"))
    planned(made)
    made.mark_query_start()
    made.replace([flow("a"), flow("c")])
    assert made.parked_keys == {(ONE, "a")}
    assert set(planned(made)) == {"c"}


def test_a_parked_group_of_a_blocked_tenant_stays_blocked_after_unparking() -> None:
    made = planner(Capacities(a=0), flow("a"))
    planned(made)
    made.block([ONE])
    made.unpark({"a"})
    assert made.is_empty
    made.unblock([ONE])
    assert not made.is_empty
