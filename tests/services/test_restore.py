"""A restored database: old fences and epochs are refused, and each tick of the lost time is recorded once."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.access import LOCAL_CALLER
from everbeat.core.errors import Conflict
from everbeat.core.explain import Verdict
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.explainer import Explainer
from everbeat.services.restore import RAISED_BY, Gap, Restored, RestoreService
from everbeat.store.base import Store
from tests.factories import NOW, SteppedNode, claim, count_rows, execute_raw, lease_of, ledger, ledger_summary, minutes, seconds

AT_RESTORE = NOW + minutes(30) + seconds(10)


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


async def restore(store: Store, gap: Gap, now: datetime = AT_RESTORE) -> Restored:
    return await RestoreService(store).restored(gap, by=LOCAL_CALLER, now=now)


async def started_again(store: Store, now: datetime) -> SteppedNode:
    """Return a new node on the restored database, which has run for two minutes."""
    node = SteppedNode(store, name="after")
    node.move_to(now)
    await node.run(now + minutes(2), by_seconds=5)
    return node


async def test_skip_records_the_ticks_of_the_gap_and_fires_from_now_on(node: SteppedNode) -> None:
    job = await node.put(overlap="allow", catch_up="all")
    await node.run(NOW + minutes(2), by_seconds=20)
    done = await restore(node.store, "skip")
    assert (done.skipped_schedules, done.now) == (1, AT_RESTORE)
    after = await started_again(node.store, AT_RESTORE)
    rows = ledger_summary(await ledger(node.store, job.id))
    fired = [at for at, outcome, _ in rows if outcome == "fired"]
    assert fired == [60.0, 120.0, 31 * 60.0, 32 * 60.0]
    skipped = await execute_raw(node.store, "SELECT reason, count FROM ticks WHERE outcome = 'skipped'")
    assert skipped == [("paused", 28)]
    explainer = Explainer(after.store, after.schedules, after.tasks, after.timelines, late_seconds=5, retention_days=90)
    why = await explainer.explain(DEFAULT_TENANT, "job", NOW + minutes(10), now=after.now)
    assert why.verdict is Verdict.SKIPPED
    assert "restored from a backup" in str(why)


async def test_catch_up_leaves_the_gap_to_the_policies(node: SteppedNode) -> None:
    latest = await node.put("latest", catch_up="latest", overlap="allow")
    every = await node.put("all", catch_up="all", overlap="allow")
    none = await node.put("none", catch_up="none", overlap="allow")
    await node.run(NOW + minutes(2), by_seconds=20)
    await restore(node.store, "catch-up")
    node = SteppedNode(node.store, name="after")
    node.move_to(AT_RESTORE)
    await node.run(AT_RESTORE + minutes(35), by_seconds=5)
    fired = {}
    for name, job in (("latest", latest), ("all", every), ("none", none)):
        rows = await ledger(node.store, job.id)
        fired[name] = sum(row.task_id is not None for row in rows)
        accounted = sum(row.count for row in rows)
        assert accounted == 65 or name == "all", (name, accounted)
        assert len({row.scheduled_for for row in rows}) == len(rows)
    assert fired["latest"] == 2 + 1 + 35
    assert fired["none"] == 2 + 35
    assert fired["all"] > 60


async def test_old_fences_and_epochs_are_refused(node: SteppedNode) -> None:
    await node.put(overlap="allow")
    await node.run(NOW + minutes(1), by_seconds=20)
    (task,) = await claim(node.store, now=node.now)
    epochs = {one.partition: one.epoch for one in await node.store.partition_list()}
    done = await restore(node.store, "catch-up")
    assert done.tasks == 1
    assert (await node.store.task_complete([(lease_of(task), None)], now=AT_RESTORE)).finished == set()
    assert await count_rows(node.store, "task_history") == 0
    # The former owner still believes that it owns its partitions.
    fired = await count_rows(node.store, "ticks")
    node.move_to(AT_RESTORE)
    await node.ticker.run_once(AT_RESTORE)
    assert await count_rows(node.store, "ticks") == fired
    after = await started_again(node.store, AT_RESTORE)
    assert all(epoch > epochs[number] + RAISED_BY for number, epoch in after.ownership.current().items())


async def test_it_refuses_while_a_node_runs(node: SteppedNode) -> None:
    await node.run(NOW + minutes(1), by_seconds=20)
    with pytest.raises(Conflict, match="nodes run on this database"):
        await restore(node.store, "skip", now=node.now + seconds(1))


async def test_it_can_be_repeated(node: SteppedNode) -> None:
    job = await node.put(overlap="allow")
    await node.run(NOW + minutes(1), by_seconds=20)
    for _ in range(2):
        await restore(node.store, "skip")
    rows: list[Any] = await ledger(node.store, job.id)
    assert sum(row.count for row in rows) == 30
    assert await count_rows(node.store, "pauses") == 1


async def test_a_schedule_that_cannot_be_computed_does_not_stop_the_others(node: SteppedNode) -> None:
    broken, fine = await node.put("broken"), await node.put("fine")
    await execute_raw(node.store, "UPDATE schedules SET timezone = 'Mars/Olympus' WHERE id = ?", broken.id)
    done = await restore(node.store, "skip")
    assert done.skipped_schedules == 1
    assert sum(row.count for row in await ledger(node.store, fine.id)) == 30
    assert (await node.store.schedule_faulty(DEFAULT_TENANT, limit=10))[0].id == broken.id


async def test_a_database_without_nodes_and_schedules_is_restored(store: Store) -> None:
    assert await restore(store, "skip", now=NOW + timedelta(days=1)) == (None, NOW + timedelta(days=1), 0, 0)
    assert await execute_raw(store, "SELECT count(*) FROM audit_log") == [(1,)]
    assert UUID(int=0) == DEFAULT_TENANT
