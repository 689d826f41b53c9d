"""Checks with time that is moved by hand: the evaluator, races with pings and edits, the ledger and the audit."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from everbeat.core.checks import CheckChange, CheckInput, CheckState, PingKind, PingRequest
from everbeat.core.errors import StoreLocked
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tenants import Tenant, TenantQuotas
from everbeat.services.check_changes import CheckPublisher
from everbeat.services.check_evaluator import CheckEvaluator
from everbeat.services.event_stream import EventKind
from everbeat.services.events import CheckChanged, PingsReceived
from everbeat.services.pings import PingService
from everbeat.store.base import Store
from everbeat.store.values import TenantWrite
from tests.factories import NOW, OTHER_TENANT, SteppedNode, StoreOverride, minutes

HOURLY = CheckInput(every_seconds=3600, grace_seconds=60)


@pytest.fixture
def node(store: Store) -> SteppedNode:
    return SteppedNode(store)


async def put(node: SteppedNode, name: str = "backup", given: CheckInput = HOURLY, *, at: float = 0) -> str:
    """Create a check, and return its token."""
    found = await node.engine.checks.put(DEFAULT_TENANT, name, given, now=NOW + minutes(at))
    return found.check.token


async def ping(node: SteppedNode, token: str, at: float, kind: PingKind = PingKind.SUCCESS, **more: Any) -> None:
    await node.engine.pings.accept(token, PingRequest(kind=kind, **more), now=NOW + minutes(at))


async def state(node: SteppedNode, name: str = "backup") -> tuple[str, str | None]:
    position = (await node.engine.checks.get(DEFAULT_TENANT, name)).check.position
    return position.state.value, None if position.reason is None else position.reason.value


async def transitions(node: SteppedNode, name: str = "backup") -> list[tuple[float, str, str | None]]:
    check = (await node.engine.checks.get(DEFAULT_TENANT, name)).check
    found = await node.engine.checks.transitions(check, before=None, limit=100)
    return [
        ((one.at - NOW).total_seconds() / 60, one.to_state.value, one.reason and one.reason.value) for _, one in reversed(found)
    ]


async def ledger(node: SteppedNode, at: float, name: str = "backup") -> list[tuple[float, str, int]]:
    check, _, _ = await node.engine.checks.get(DEFAULT_TENANT, name)
    moment = NOW + minutes(at)
    entries = await node.engine.check_ledger.entries(check, moment, from_=NOW, to=moment + minutes(61), limit=100)
    return [((one.scheduled_for - NOW).total_seconds() / 60, one.outcome, one.count) for one in entries]


async def test_the_evaluator_takes_down_what_is_due(node: SteppedNode) -> None:
    token = await put(node)
    await put(node, "quiet")
    await ping(node, token, 0)
    evaluator = node.engine.check_evaluator
    await evaluator.run_once(NOW + minutes(60.9))
    assert await state(node) == ("up", None)
    await evaluator.run_once(NOW + minutes(61))
    assert await state(node) == ("down", "missed")
    assert await state(node, "quiet") == ("new", None)
    await evaluator.run_once(NOW + minutes(500))
    assert await transitions(node) == [(0, "up", None), (61, "down", "missed")]
    changed = [(one.check, one.from_state, one.to_state, one.reason) for one in node.events_of(CheckChanged)]
    assert changed == [("backup", "new", "up", None), ("backup", "up", "down", "missed")]
    assert [one.counts for one in node.events_of(PingsReceived)] == [{"success": 1}]


async def test_it_works_in_batches(node: SteppedNode) -> None:
    for number in range(5):
        await ping(node, await put(node, str(number)), 0)
    evaluator = CheckEvaluator(node.store, node.timelines, CheckPublisher(), batch_size=2)
    assert [await evaluator.run_once(NOW + minutes(70)) for _ in range(4)] == [True, True, False, False]
    assert await node.store.check_state_counts() == {"down": 5}


async def test_a_transition_is_written_once_although_every_node_evaluates(store: Store) -> None:
    nodes = [SteppedNode(store, name=str(number)) for number in range(4)]
    token = await put(nodes[0])
    await ping(nodes[0], token, 0)
    await asyncio.gather(*(node.engine.check_evaluator.run_once(NOW + minutes(61)) for node in nodes))
    assert await transitions(nodes[0]) == [(0, "up", None), (61, "down", "missed")]
    assert sum(len(node.events_of(CheckChanged)) for node in nodes) == 2


async def test_a_new_owner_of_everything_continues_after_a_crash(store: Store) -> None:
    first = SteppedNode(store, name="first")
    await ping(first, await put(first), 0)
    second = SteppedNode(store, name="second")  # the first one is gone, without a word
    await second.engine.check_evaluator.run_once(NOW + minutes(61))
    assert await state(second) == ("down", "missed")


class _Between(StoreOverride):
    """Runs something between the read of checks and the write of their changes, once."""

    def __init__(self, inner: Store, work: Any) -> None:
        super().__init__(inner)
        self.work = work

    async def check_advance(self, changes: Sequence[CheckChange], *, now: datetime | None = None) -> set[UUID]:
        work, self.work = self.work, None
        if work is not None:
            await work()
        return await self.inner.check_advance(changes, now=now)


async def test_a_ping_that_arrives_during_the_evaluation_wins(node: SteppedNode) -> None:
    token = await put(node)
    await ping(node, token, 0)

    async def arrive() -> None:
        await ping(node, token, 60.5)

    evaluator = CheckEvaluator(_Between(node.store, arrive), node.timelines, CheckPublisher())
    await evaluator.run_once(NOW + minutes(61))
    assert await state(node) == ("up", None)
    assert await transitions(node) == [(0, "up", None)]


async def test_a_ping_is_applied_to_what_an_evaluation_has_written_meanwhile(node: SteppedNode) -> None:
    token = await put(node)
    await ping(node, token, 0)

    async def evaluate() -> None:
        await node.engine.check_evaluator.run_once(NOW + minutes(61))

    pings = PingService(_Between(node.store, evaluate), node.timelines, CheckPublisher())
    await pings.accept(token, PingRequest(kind=PingKind.SUCCESS), now=NOW + minutes(62))
    assert await transitions(node) == [(0, "up", None), (61, "down", "missed"), (62, "up", None)]


async def test_a_check_that_changes_all_the_time_is_answered_as_locked(node: SteppedNode) -> None:
    token = await put(node)

    class Loser(StoreOverride):
        async def check_advance(self, _changes: Collection[CheckChange], *, now: datetime | None = None) -> set[UUID]:
            return set()

    pings = PingService(Loser(node.store), node.timelines, CheckPublisher())
    with pytest.raises(StoreLocked):
        await pings.accept(token, PingRequest(kind=PingKind.SUCCESS))


async def test_the_ledger_is_complete_whether_or_not_the_evaluator_runs(node: SteppedNode) -> None:
    cron = CheckInput(cron="0 * * * *", grace_seconds=60)
    token = await put(node, "evaluated", cron, at=-10)
    await ping(node, token, 0.5)
    await node.engine.check_evaluator.run_once(NOW + minutes(61))
    await ping(node, await put(node, "not", cron, at=-10), 0.5)  # no evaluator has run since
    shown = await ledger(node, 250, "evaluated")
    assert shown == [(0, "pinged", 1), (60, "missed", 1), (120, "missed", 3), (300, "upcoming", 1)]
    assert await ledger(node, 250, "not") == [(0, "pinged", 1), (60, "missed", 4), (300, "upcoming", 1)]
    count = await node.engine.check_ledger.audit(DEFAULT_TENANT, from_=NOW, to=None, now=NOW + minutes(250))
    assert (count.expected, count.pinged, count.missed) == (10, 2, 8)
    within = await node.engine.check_ledger.audit(
        DEFAULT_TENANT, from_=NOW + minutes(100), to=NOW + minutes(200), now=NOW + minutes(250)
    )
    assert (within.expected, within.missed) == (4, 4)


async def test_a_late_ping_is_shown_as_late_before_it_is_missed(node: SteppedNode) -> None:
    token = await put(node)
    await ping(node, token, 0)
    assert await ledger(node, 60.5) == [(0, "pinged", 1), (60, "late", 1)]


async def test_checks_of_a_tenant_count_toward_its_quota(node: SteppedNode) -> None:
    from everbeat.core.errors import QuotaExceeded

    tenant = Tenant(id=OTHER_TENANT, name="small", quotas=TenantQuotas(max_schedules=2), created_at=NOW, updated_at=NOW)
    assert await node.store.tenant_write([TenantWrite(tenant)])
    await node.engine.directory.refresh()
    for name in ("a", "b"):
        await node.engine.checks.put(OTHER_TENANT, name, HOURLY, now=NOW)
    with pytest.raises(QuotaExceeded, match="max_schedules: 2 of 2 in use"):
        await node.engine.checks.put(OTHER_TENANT, "c", HOURLY, now=NOW)
    await node.engine.checks.put(OTHER_TENANT, "a", CheckInput(every_seconds=60), now=NOW)  # an edit is not a new check


async def test_transitions_are_events_of_the_tenant(node: SteppedNode) -> None:
    subscription = node.event_stream.subscribe(DEFAULT_TENANT, [EventKind.CHECK])
    token = await put(node)
    await ping(node, token, 0, PingKind.FAIL, exit_status=2)
    (event,) = await subscription.take(5)
    assert event.tenant_id == DEFAULT_TENANT
    assert {**event.data, "at": None} == {"check": "backup", "from": "new", "to": "down", "reason": "failed", "at": None}


async def test_an_old_token_ends_after_a_day(node: SteppedNode) -> None:
    from everbeat.core.errors import NotFound

    old = await put(node)
    await node.engine.checks.rotate(DEFAULT_TENANT, "backup", now=NOW)
    await ping(node, old, 60 * 24 - 1)
    with pytest.raises(NotFound):
        await ping(node, old, 60 * 24)


async def test_concurrent_edits_and_pings_lose_nothing(node: SteppedNode) -> None:
    token = await put(node)
    service = node.engine.checks

    async def edit(number: int) -> None:
        await service.put(DEFAULT_TENANT, "backup", CheckInput(every_seconds=3600 + number), now=NOW)

    await asyncio.gather(*(ping(node, token, 0) for _ in range(20)), *(edit(number) for number in range(1, 6)))
    check = (await service.get(DEFAULT_TENANT, "backup")).check
    assert (check.position.ping_count, check.revision, check.position.state) == (20, 6, CheckState.UP)
    assert check.position.due_at is not None
    assert check.position.due_at - NOW >= timedelta(seconds=3600)
