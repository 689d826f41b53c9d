"""The roll-up equals the exact audit, is counted again when the past changes, and outlives the ledger."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from everbeat.core.audit_findings import FindingKind
from everbeat.core.ledger_days import closed_days
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services import audit as audit_module
from everbeat.services.audit import AuditCount, AuditReport, AuditService
from everbeat.services.maintenance import roll_up as roll_up_module
from everbeat.store.base import Store
from everbeat.store.values import FindingFilter, LoopLeaseInfo
from tests.factories import SteppedNode, StoreOverride, execute_raw, seconds

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
START = datetime(2026, 3, 2, 21, 17, tzinfo=UTC)
MIDNIGHT = datetime(2026, 3, 3, tzinfo=UTC)


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store, now=START)


class WithoutRollUp(StoreOverride):
    """A store on which no day is closed, so that the audit computes all of it."""

    async def loop_lease_list(self) -> list[LoopLeaseInfo]:
        return []


async def exact(node: SteppedNode, from_: datetime, to: datetime | None, limit: int = 100) -> AuditReport:
    audit = AuditService(WithoutRollUp(node.store), node.timelines, late_seconds=5, retention_days=36_500)
    return await audit.run(DEFAULT_TENANT, from_=from_, to=to, limit=limit, now=node.now)


async def counted(node: SteppedNode, from_: datetime, to: datetime | None, limit: int = 100) -> AuditReport:
    return await node.audit.run(DEFAULT_TENANT, from_=from_, to=to, limit=limit, now=node.now)


def by_name(report: AuditReport) -> dict[str, AuditCount]:
    return {one.schedule.spec.name: one.counted for one in report.schedules}


def plain(count: AuditCount) -> tuple[int, int, dict[str, int], int, int]:
    skipped = {reason: number for reason, number in count.skipped.items() if number}
    return count.expected, count.fired, skipped, count.missing, count.doubled


async def assert_equal(node: SteppedNode, from_: datetime, to: datetime | None) -> None:
    one, other = await counted(node, from_, to), await exact(node, from_, to)
    assert plain(one.total) == plain(other.total)
    assert {name: plain(found) for name, found in by_name(one).items()} == {
        name: plain(found) for name, found in by_name(other).items()
    }


async def roll_up(node: SteppedNode) -> None:
    """Run the roll-up until nothing is left to count."""
    for _ in range(3):
        node.move_to(node.now + seconds(15))
        await node.engine.roll_up.run_once(node.now)


async def closed(node: SteppedNode) -> tuple[datetime, datetime] | None:
    return closed_days(next(one.position for one in await node.store.loop_lease_list() if one.name == "roll_up"))


async def do_anything(node: SteppedNode, chance: random.Random, names: list[str]) -> None:
    name = chance.choice(names)
    match chance.randrange(8):
        case 0:
            await node.schedules.pause(DEFAULT_TENANT, name, note=None, now=node.now)
        case 1:
            await node.schedules.resume(DEFAULT_TENANT, name, now=node.now)
        case 2:
            expression = chance.choice(["*/20 * * * *", "7 * * * *", "0 0 * * *", "*/30 1-5 * * *"])
            await node.put(name, cron=expression, overlap=chance.choice(["allow", "skip"]))
        case 3:
            tick = node.now.replace(minute=0, second=0, microsecond=0) - chance.randrange(30) * HOUR
            await execute_raw(node.store, "DELETE FROM ticks WHERE scheduled_for = ?", tick)
        case 4:
            node.move_to(node.now + chance.randrange(30) * HOUR)  # nobody fires for a while
        case _:
            pass


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.chaos) for seed in range(2, 20))])
async def test_the_roll_up_equals_the_exact_audit_after_random_histories(node: SteppedNode, seed: int) -> None:
    chance = random.Random(seed)
    names = ["hourly", "often", "nightly", "weekdays", "many"]
    await node.put("hourly", cron="0 * * * *", overlap="allow")
    await node.put("often", cron="*/20 * * * *", overlap="skip")
    await node.put("nightly", cron="30 23 * * *", timezone="Europe/Berlin", overlap="allow")
    await node.put("weekdays", cron="0 */6 * * MON-FRI", overlap="allow", catch_up="all")
    await node.put("many", every_seconds=900, overlap="allow", jitter_seconds=60, catch_up="none")
    for _ in range(10):
        await do_anything(node, chance, names)
        await node.run(node.now + chance.randrange(1, 9) * HOUR, by_seconds=1800)
        if chance.random() < 0.4:
            await roll_up(node)
    await node.run(node.now + 2 * HOUR, by_seconds=1800)
    await roll_up(node)
    days = await closed(node)
    assert days is not None
    assert days[1] - days[0] >= 2 * DAY
    for from_, to in ((START, None), (days[0], days[1]), (days[0] + 5 * HOUR, days[1] - 7 * HOUR), (START, days[1])):
        await assert_equal(node, from_, to)


async def test_days_are_closed_after_their_end_page_by_page(node: SteppedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_up_module, "_PAGE", 2)
    monkeypatch.setattr(roll_up_module, "_SHARE", 0.0)
    for index in range(5):
        await node.put(f"job{index}", cron="0 * * * *", overlap="allow")
    await node.run(MIDNIGHT + seconds(60), by_seconds=60)
    await node.engine.roll_up.run_once(node.now)
    assert await closed(node) == (MIDNIGHT - DAY, MIDNIGHT - DAY)
    node.move_to(MIDNIGHT + seconds(120))
    for _ in range(3):
        assert await closed(node) == (MIDNIGHT - DAY, MIDNIGHT - DAY)
        await node.engine.roll_up.run_once(node.now)
        node.move_to(node.now + seconds(15))
    assert await closed(node) == (MIDNIGHT - DAY, MIDNIGHT)
    report = await counted(node, MIDNIGHT - DAY, MIDNIGHT, limit=2)
    assert (report.total.expected, report.total.fired, len(report.schedules)) == (10, 10, 2)


async def test_the_days_of_a_pause_are_counted_again_after_the_resume(node: SteppedNode) -> None:
    await node.put("job", cron="0 * * * *", overlap="allow")
    await node.schedules.pause(DEFAULT_TENANT, "job", note=None, now=node.now)
    await node.run(MIDNIGHT + DAY + HOUR, by_seconds=3600)
    await roll_up(node)
    assert (await counted(node, MIDNIGHT, MIDNIGHT + DAY)).total.expected == 0
    await node.schedules.resume(DEFAULT_TENANT, "job", now=node.now)
    await roll_up(node)
    total = (await counted(node, MIDNIGHT, MIDNIGHT + DAY)).total
    assert plain(total) == (24, 0, {"paused": 24}, 0, 0)


async def test_the_roll_up_outlives_the_ledger(node: SteppedNode) -> None:
    await node.put("job", cron="0 * * * *", overlap="allow")
    await node.run(MIDNIGHT + DAY + HOUR, by_seconds=3600)
    await roll_up(node)
    await execute_raw(node.store, "DELETE FROM ticks")
    node.move_to(node.now + 95 * DAY)
    await node.engine.roll_up.run_once(node.now)
    assert plain((await counted(node, MIDNIGHT, MIDNIGHT + DAY)).total) == (24, 24, {}, 0, 0)


async def test_rows_that_disappear_from_a_closed_day_are_found_by_the_next_sweep(node: SteppedNode) -> None:
    await node.put("job", cron="0 * * * *", overlap="allow")
    await node.run(MIDNIGHT + 2 * DAY + HOUR, by_seconds=3600)
    await roll_up(node)
    gone = MIDNIGHT + 5 * HOUR
    await execute_raw(node.store, "DELETE FROM ticks WHERE scheduled_for = ?", gone)
    assert (await counted(node, MIDNIGHT, MIDNIGHT + DAY)).total.missing == 0
    node.move_to(node.now + seconds(15))
    await node.engine.roll_up.run_once(node.now)
    assert plain((await counted(node, MIDNIGHT, MIDNIGHT + DAY)).total) == (24, 23, {}, 1, 0)
    (finding,) = await node.store.finding_list(DEFAULT_TENANT, FindingFilter(), limit=10)
    assert (finding.kind, finding.scheduled_for) == (FindingKind.MISSING, gone)


async def test_a_row_that_disappeared_hours_ago_today_is_found(node: SteppedNode) -> None:
    await node.put("job", cron="0 * * * *", overlap="allow")
    await node.run(MIDNIGHT + 9 * HOUR + seconds(30), by_seconds=3600)
    await execute_raw(node.store, "DELETE FROM ticks WHERE scheduled_for = ?", MIDNIGHT + 2 * HOUR)
    await roll_up(node)
    (finding,) = await node.store.finding_list(DEFAULT_TENANT, FindingFilter(), limit=10)
    assert (finding.kind, finding.scheduled_for) == (FindingKind.MISSING, MIDNIGHT + 2 * HOUR)


async def test_a_tenant_with_many_schedules_is_counted_from_the_ledger_at_the_edges(
    node: SteppedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(3):
        await node.put(f"job{index}", cron="0 * * * *", overlap="skip")
    await node.run(MIDNIGHT + 2 * DAY + 3 * HOUR, by_seconds=3600)
    await execute_raw(node.store, "DELETE FROM ticks WHERE scheduled_for = ?", MIDNIGHT + 2 * DAY + HOUR)
    await roll_up(node)
    await node.engine.auditor.run_once(node.now)
    expected = await exact(node, START, None)
    monkeypatch.setattr(audit_module, "_MAX_EXACT", 2)
    found = await counted(node, START, None)
    assert plain(found.total) == plain(expected.total)
    assert found.total.missing == 3
    assert by_name(found) == by_name(expected)
    page = await counted(node, START, None, limit=2)
    assert list(by_name(page)) == ["job0", "job1"]


async def test_old_days_are_removed(node: SteppedNode) -> None:
    await node.put("job", cron="0 * * * *", overlap="allow")
    await node.run(MIDNIGHT + HOUR, by_seconds=3600)
    await roll_up(node)
    assert (await counted(node, MIDNIGHT - DAY, MIDNIGHT)).total.fired == 2
    node.move_to(node.now + 405 * DAY)
    await node.engine.roll_up.run_once(node.now)
    days = await node.store.ledger_day_total(DEFAULT_TENANT, from_=MIDNIGHT - DAY, to=MIDNIGHT)
    assert days.fired == 0
