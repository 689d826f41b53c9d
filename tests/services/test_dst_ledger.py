"""Ticks that a DST gap removes or moves: the ledger, the list of ticks, the audit, why and backfills agree about them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from everbeat.core.schedules import DEFAULT_TENANT, Status
from everbeat.core.ticks import SkipReason
from everbeat.store.base import Store
from tests.factories import SteppedNode, find, ledger, ledger_summary, minutes

# In Paris, clocks go from 02:00 to 03:00 at this instant.
GAP = datetime(2027, 3, 28, 1, tzinfo=UTC)
START = GAP - timedelta(hours=4)
PARIS = {"timezone": "Europe/Paris", "overlap": "allow"}


async def run(store: Store, until: datetime, **definition: Any) -> SteppedNode:
    node = SteppedNode(store, now=START)
    await node.put(**PARIS, **definition)
    await node.run(until, by_seconds=900)
    return node


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [
        ({"cron": "*/30 2 * * *"}, [(0, "dst_gap", 1), (82800, "fired", 1), (84600, "fired", 1)]),
        ({"cron": "15 */2 * * *"}, [(-13500, "fired", 1), (-6300, "fired", 1), (0, "dst_gap", 1), (4500, "fired", 1)]),
        ({"cron": "*/30 1-3 28 3 *"}, [(-3600, "fired", 1), (-1800, "fired", 1), (0, "fired", 1), (1800, "fired", 1)]),
        ({"cron": "30 2 28 3 *"}, [(0, "fired", 1)]),
        ({"cron": "30 2 28 3 *", "dst": {"gap": "shift"}}, [(1800, "fired", 1)]),
        ({"cron": "30 2 * 3 *", "dst": {"gap": "skip"}}, [(0, "dst_gap", 1), (84600, "fired", 1)]),
        ({"cron": None, "rrule": "DTSTART:20270328T023000 RRULE:FREQ=YEARLY"}, [(1800, "fired", 1)]),
        ({"cron": None, "rrule": "DTSTART:20270328T023000 RRULE:FREQ=YEARLY", "dst": {"gap": "after"}}, [(0, "fired", 1)]),
    ],
)
async def test_the_ledger_and_the_audit_agree_about_a_gap(
    store: Store, trigger: dict[str, Any], expected: list[tuple[float, str, int]]
) -> None:
    node = await run(store, GAP + timedelta(hours=24), **trigger)
    (schedule,) = (await store.schedule_find(DEFAULT_TENANT, names=["job"])).schedules
    rows = ledger_summary(await ledger(store, schedule.id), GAP)
    assert rows[: len(expected)] == expected
    count = await node.count(from_=START)
    assert (count.missing, count.doubled, count.expected) == (0, 0, len(rows))


async def test_a_lost_tick_is_listed_and_explained_before_and_after_it(store: Store) -> None:
    node = SteppedNode(store, now=START)
    schedule = await node.put(cron="*/30 2 * * *", **PARIS)
    for now, outcome, verdict in ((START, "upcoming", "will_skip"), (GAP + timedelta(days=1), "skipped", "skipped")):
        await node.run(now, by_seconds=900)
        entries = await node.engine.ledger.entries(
            await find(store, schedule), from_=START, to=GAP + minutes(1), after=None, limit=10, now=now
        )
        assert [(one.scheduled_for, one.outcome, one.reason) for one in entries] == [(GAP, outcome, SkipReason.DST_GAP)]
        explained = await node.engine.explainer.explain(DEFAULT_TENANT, "job", GAP, now=now)
        assert explained.verdict == verdict
        assert "its local time does not exist on that day in Europe/Paris" in explained.explanation


async def test_a_schedule_is_finished_after_the_last_tick_of_its_last_year(store: Store) -> None:
    node = await run(store, GAP + timedelta(hours=3), cron="0 30 3 28 3 ? 2027")
    (schedule,) = (await store.schedule_find(DEFAULT_TENANT, names=["job"])).schedules
    assert ledger_summary(await ledger(store, schedule.id), GAP) == [(1800, "fired", 1)]
    assert schedule.status is Status.FINISHED
    assert (await node.count(from_=START)).missing == 0


async def test_every_in_a_cron_expression_keeps_its_anchor(store: Store) -> None:
    node = await run(store, START + timedelta(hours=4), cron="@every 1h30m")
    same = await node.put(**PARIS, cron="@every 1h30m")
    assert (same.revision, same.spec.rule.anchor) == (1, START)
    rows = ledger_summary(await ledger(store, same.id), START)
    assert rows == [(5400, "fired", 1), (10800, "fired", 1)]
