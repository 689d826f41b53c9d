"""The audit: the expected ticks, the recorded ticks and the difference, from independent sources."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from everbeat.core.errors import InvalidInput
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.audit import AuditCount, AuditReport
from everbeat.store.base import Store
from tests.factories import NOW, OTHER_TENANT, SteppedNode, definition, execute_raw, minutes, seconds


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


async def audit(node: SteppedNode, from_: float | None = 0, to: float | None = None, **more: Any) -> AuditReport:
    """Return the audit of a window given in minutes since NOW."""
    start = None if from_ is None else NOW + minutes(from_)
    end = None if to is None else NOW + minutes(to)
    return await node.audit.run(DEFAULT_TENANT, from_=start, to=end, now=node.now, **more)


def summary(count: AuditCount) -> tuple[int, int, dict[str, int], int, int]:
    skipped = {reason: number for reason, number in count.skipped.items() if number}
    return count.expected, count.fired, skipped, count.missing, count.doubled


async def test_expected_and_fired_ticks_are_equal(node: SteppedNode) -> None:
    await node.put("a", overlap="allow")
    await node.put("b", cron="*/5 * * * *", overlap="allow")
    await node.run(NOW + minutes(10), by_seconds=60)
    found = await audit(node)
    assert summary(found.total) == (12, 12, {}, 0, 0)
    assert [(one.schedule.spec.name, summary(one.counted)[:2]) for one in found.schedules] == [("a", (10, 10)), ("b", (2, 2))]


async def test_expected_ticks_are_fired_or_skipped_across_edits_and_pauses(node: SteppedNode) -> None:
    await node.put(overlap="allow")
    await node.run(NOW + minutes(3), by_seconds=60)
    await node.schedules.pause(DEFAULT_TENANT, "job", note=None, now=node.now)
    node.move_to(NOW + minutes(6))
    await node.schedules.resume(DEFAULT_TENANT, "job", now=node.now)
    await node.run(NOW + minutes(8), by_seconds=60)
    await node.put(every_seconds=120, anchor=(NOW + minutes(1)).isoformat(), overlap="allow")
    await node.run(NOW + minutes(13), by_seconds=60)
    await node.put(cron="*/5 * * * *", timezone="Asia/Kolkata", overlap="allow")
    await node.run(NOW + minutes(20), by_seconds=60)
    # 3 fired, 3 paused, 2 fired; 9, 11, 13; 15, 20
    assert summary((await audit(node)).total) == (13, 10, {"paused": 3}, 0, 0)
    assert summary((await audit(node, 4, 10)).total) == (6, 3, {"paused": 3}, 0, 0)
    assert summary((await audit(node, 5, 13)).total) == (6, 4, {"paused": 2}, 0, 0)


@pytest.mark.parametrize(
    ("from_", "to", "expected"),
    [
        (0, 20, (19, 1, {"misfire": 18}, 0, 0)),
        (5, 20, (15, 1, {"misfire": 14}, 0, 0)),
        (5, 10, (5, 0, {"misfire": 5}, 0, 0)),
        (0, 10, (9, 0, {"misfire": 9}, 0, 0)),
        (18, 19, (1, 0, {"misfire": 1}, 0, 0)),
        (1, 2, (1, 0, {"misfire": 1}, 0, 0)),
        (19, 20, (1, 1, {}, 0, 0)),
    ],
)
async def test_a_skipped_range_that_crosses_the_window_counts_with_its_part_inside(
    node: SteppedNode, from_: float, to: float, expected: Any
) -> None:
    await node.put()
    await node.step(NOW + minutes(19) + seconds(10))  # ticks 1 to 18 skipped as one range, 19 fired
    node.move_to(NOW + minutes(20))
    await node.step(node.now)
    assert summary((await audit(node, from_, to)).total) == expected


async def test_a_row_removed_from_the_ledger_is_missing(node: SteppedNode) -> None:
    await node.put(overlap="allow")
    await node.run(NOW + minutes(5), by_seconds=60)
    await execute_raw(node.store, "DELETE FROM ticks WHERE scheduled_for = ?", NOW + minutes(2))
    assert summary((await audit(node)).total) == (5, 4, {}, 1, 0)


async def test_a_tick_missing_before_an_edit_is_still_missing_after_it(node: SteppedNode) -> None:
    await node.put(overlap="allow")
    await node.run(NOW + minutes(5), by_seconds=60)
    await node.put(cron="0 0 1 1 *")
    await execute_raw(node.store, "DELETE FROM ticks WHERE scheduled_for = ?", NOW + minutes(2))
    assert summary((await audit(node)).total) == (5, 4, {}, 1, 0)


async def test_a_tick_with_two_tasks_is_doubled(node: SteppedNode) -> None:
    await node.put(overlap="allow")
    await node.run(NOW + minutes(3), by_seconds=60)
    columns = "queue, type, target, payload, origin, schedule_id, scheduled_for, run_at, priority, state, max_attempts, retry"
    columns += ", timeout_seconds, labels, created_at, tenant_id, partition"
    copy = f"INSERT INTO tasks (id, {columns}) SELECT ?, {columns} FROM tasks WHERE scheduled_for = ?"
    await execute_raw(node.store, copy, uuid4(), NOW + minutes(2))
    assert summary((await audit(node)).total) == (3, 3, {}, 0, 1)


async def test_ticks_that_no_node_fires_are_missing_once_they_are_late(node: SteppedNode) -> None:
    await node.put()
    node.move_to(NOW + minutes(3) + seconds(3))
    assert summary((await audit(node)).total)[0] == 2
    node.move_to(NOW + minutes(3) + seconds(6))
    assert summary((await audit(node)).total) == (3, 0, {}, 3, 0)


async def test_a_paused_schedule_expects_no_ticks(node: SteppedNode) -> None:
    await node.put()
    await node.schedules.pause(DEFAULT_TENANT, "job", note=None, now=NOW)
    node.move_to(NOW + minutes(30))
    assert summary((await audit(node)).total) == (0, 0, {}, 0, 0)


async def test_another_tenant_sees_no_ticks(node: SteppedNode) -> None:
    await node.put()
    await node.step(NOW + minutes(1))
    found = await node.audit.run(OTHER_TENANT, from_=NOW, to=None, now=node.now)
    assert (summary(found.total), found.schedules) == ((0, 0, {}, 0, 0), [])


async def test_the_total_counts_all_schedules_and_the_list_is_one_page(node: SteppedNode) -> None:
    await node.schedules.put_batch(DEFAULT_TENANT, [definition(f"job-{number:03}") for number in range(620)], now=NOW)
    await node.step(NOW + minutes(1))
    found = await audit(node, limit=3, after_name="job-100")
    assert summary(found.total) == (620, 620, {}, 0, 0)
    assert [one.schedule.spec.name for one in found.schedules] == ["job-101", "job-102", "job-103"]


async def test_faulty_schedules_are_listed(node: SteppedNode) -> None:
    job = await node.put()
    await execute_raw(node.store, "UPDATE schedules SET timezone = 'Mars/Olympus'")
    await node.step(NOW + minutes(1))
    found = await audit(node)
    assert [one.id for one in found.faulty] == [job.id]
    assert summary(found.total) == (0, 0, {}, 0, 0)


async def test_the_default_window_is_the_last_day(node: SteppedNode) -> None:
    node.move_to(NOW)
    await node.put(overlap="allow")
    await node.step(NOW + minutes(1))
    found = await audit(node, from_=None)
    assert (found.from_, found.total.fired) == (NOW + minutes(1) - timedelta(days=1), 1)


@pytest.mark.parametrize(("from_", "message"), [(5, "not in the future"), (-367 * 24 * 60, "longer than 366 days")])
async def test_an_invalid_window_is_refused(node: SteppedNode, from_: float, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        await audit(node, from_=from_)
