"""The plan of a chaos run depends on the seed alone, leaves calm parts, and has every kind of fault sooner or later."""

from __future__ import annotations

import itertools

import pytest

from tests.chaos import database_faults, faults
from tests.chaos.catalog import GROUPS, KINDS, STORES, kinds_of
from tests.chaos.plan import CALM_SECONDS, ROUND_SECONDS, make_plan


@pytest.mark.parametrize("store", STORES)
def test_the_same_seed_makes_the_same_plan(store: str) -> None:
    assert make_plan(7, 600, store) == make_plan(7, 600, store)
    assert make_plan(7, 600, store) != make_plan(8, 600, store)


@pytest.mark.parametrize("store", STORES)
def test_each_round_ends_without_faults_and_no_group_has_two_at_once(store: str) -> None:
    plan = make_plan(3, 600, store)
    assert all(fault.at % ROUND_SECONDS + fault.seconds <= ROUND_SECONDS - CALM_SECONDS for fault in plan)
    for group in GROUPS:
        own = [fault for fault in plan if fault.group == group]
        assert len(own) >= 10
        assert all(before.at + before.seconds < after.at for before, after in itertools.pairwise(own))


@pytest.mark.parametrize("store", STORES)
def test_ten_minutes_have_most_kinds_and_a_few_seeds_all(store: str) -> None:
    wanted = {kind for group in GROUPS for kind in kinds_of(group, store)}
    assert len({fault.kind for fault in make_plan(1, 600, store)}) >= 0.8 * len(wanted)
    assert {fault.kind for seed in range(4) for fault in make_plan(seed, 600, store)} == wanted


def test_every_kind_has_an_injector_for_each_of_its_stores() -> None:
    owners = (faults.NodeFaults, faults.WorkerFaults, faults.LinkFaults)
    databases = {"postgres": database_faults.PostgresFaults, "sqlite": database_faults.SqliteFaults}
    for name, kind in KINDS.items():
        for store in kind.stores:
            assert any(hasattr(owner, name) for owner in (*owners, databases[store])), f"{name} on {store}"
