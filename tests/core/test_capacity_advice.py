"""What the server advises: nothing for a healthy cluster, and what to do for each limit that is exceeded."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from everbeat.core.capacity_advice import Bloat, BusySecond, CapacityFacts, NodeShare, SlowCall, advise

AT = datetime(2027, 1, 1, 0, 0, tzinfo=UTC)
HEALTHY = CapacityFacts(
    BusySecond(AT, 4000, ["report"], True),
    [NodeShare("one", True, 1.0, 1.0, 0.01), NodeShare("two", False, 0.0, 1.0, None)],
    [Bloat("tasks", 10**6, 100_000, 10_000), Bloat("nodes", 8192, 1, 50)],
    3.0,
    [SlowCall("tick_fire", 100, 0.02, 1.0), SlowCall("audit", 1, 3.0, 3.0)],
)


def test_a_healthy_cluster_gets_no_advice() -> None:
    assert advise(HEALTHY) == []
    assert advise(CapacityFacts(None, [], [], None, [])) == []


@pytest.mark.parametrize(
    ("change", "about", "words"),
    [
        (
            {"busiest": BusySecond(AT, 5001, ["a", "b"], True)},
            "busiest second",
            ["5001", "00:00:00Z", "a, b", "jitter_seconds"],
        ),
        ({"database_bytes": 2**30, "free_bytes": 700 * 2**20}, "bloat", ["68%", "VACUUM"]),
        ({"nodes": [NodeShare("slow", True, 0.1, 0.25, 0.5)]}, "nodes", ["slow", "25%"]),
        ({"nodes": [NodeShare("late", True, 1.0, 1.0, 2.5)]}, "nodes", ["late", "2.5 s"]),
        ({"oldest_transaction_seconds": 900.0}, "transactions", ["900 s", "pg_terminate_backend"]),
        ({"tables": [Bloat("tasks", 10**9, 30_000, 60_000)]}, "bloat", ["67%", "VACUUM tasks"]),
        ({"slow_calls": [SlowCall("task_claim", 50, 0.25, 2.0)]}, "slow queries", ["task_claim", "250 ms", "50 calls"]),
    ],
)
def test_each_limit_has_its_advice(change: dict[str, Any], about: str, words: list[str]) -> None:
    (advice,) = advise(HEALTHY._replace(**change))
    assert advice.about == about
    assert all(word in f"{advice.detail} {advice.fix}" for word in words)


def test_more_nodes_may_fire_more_ticks_in_a_second() -> None:
    busy = HEALTHY._replace(busiest=BusySecond(AT, 9000, ["a"], True))
    assert [one.about for one in advise(busy)] == ["busiest second"]
    assert advise(busy._replace(nodes=[*busy.nodes, NodeShare("three", True, 0.5, 1.0, None)])) == []
