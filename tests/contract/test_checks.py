"""Checks: check_write, check_advance, check_due, their lists, totals and retention."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from everbeat.core.checks import (
    Check,
    CheckChange,
    CheckOutcome,
    CheckPosition,
    CheckSpec,
    CheckState,
    CheckTick,
    CheckTransition,
    DownReason,
    OpenRun,
    Ping,
    PingKind,
)
from everbeat.core.errors import QuotaExceeded
from everbeat.core.rules import Rule, TriggerKind
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tenants import Tenant
from everbeat.store.base import Store
from everbeat.store.values import AuditLogFilter, CheckTickTotal, TenantWrite
from tests.factories import NOW, OTHER_TENANT, make_audit_entry, minutes

EVERY = Rule(kind=TriggerKind.EVERY, expression="3600")


def make_check(name: str = "backup", **more: Any) -> Check:
    position = {field: more.pop(field) for field in list(more) if field in CheckPosition.__struct_fields__}
    defaults: dict[str, Any] = {"id": uuid4(), "tenant_id": DEFAULT_TENANT, "token": str(uuid4())}
    return Check(
        **{**defaults, **more},
        spec=CheckSpec(name=name, rule=EVERY, grace_seconds=60),
        position=CheckPosition(**{"state": CheckState.UP, "state_since": NOW, **position}),
        created_at=NOW,
        updated_at=NOW,
    )


def full_check() -> Check:
    spec = CheckSpec(
        name="full",
        rule=Rule(kind=TriggerKind.CRON, expression="0 3 * * *", timezone="Europe/Berlin"),
        grace_seconds=0.5,
        timeout_seconds=90,
        description="ä",
        labels={"team": "infra"},
    )
    check = make_check(
        state=CheckState.DOWN,
        reason=DownReason.FAILED,
        cursor_at=NOW,
        expected_at=NOW + minutes(1),
        due_at=NOW + minutes(2),
        last_ping_at=NOW - minutes(1),
        last_duration_seconds=1.5,
        ping_count=7,
        runs=(OpenRun(NOW, uuid4()), OpenRun(NOW - minutes(1))),
        old_token=str(uuid4()),
        old_token_until=NOW + timedelta(days=1),
    )
    return msgspec.structs.replace(check, spec=spec)


async def insert(store: Store, *checks: Check) -> None:
    for check in checks:
        assert await store.check_write(CheckChange(check, None), now=NOW)


def advanced(check: Check, *, pings: int = 0, **position: Any) -> CheckChange:
    """Return the next change of a check, with that many pings."""
    count = check.position.ping_count
    changed = msgspec.structs.replace(check.position, **{"ping_count": count + pings, **position})
    made = tuple(make_ping(count + 1 + number) for number in range(pings))
    return CheckChange(msgspec.structs.replace(check, position=changed, version=check.version + 1), check.version, made)


def make_ping(number: int, **more: Any) -> Ping:
    return Ping(**{"at": NOW + minutes(number), "kind": PingKind.SUCCESS, "number": number, **more})


def make_tick(minute: float, outcome: CheckOutcome = CheckOutcome.PINGED, **more: Any) -> CheckTick:
    return CheckTick(scheduled_for=NOW + minutes(minute), outcome=outcome, recorded_at=NOW + minutes(minute), **more)


async def test_check_write_stores_every_field(store: Store) -> None:
    check, plain = full_check(), make_check()
    await insert(store, check, plain)
    assert await store.check_find(DEFAULT_TENANT, ["full", "backup", "none"], now=NOW) in (
        (NOW, [check, plain]),
        (NOW, [plain, check]),
    )


async def test_check_write_inserts_a_name_once_in_a_tenant(store: Store) -> None:
    entry = make_audit_entry(action="check.put")
    changes = [CheckChange(make_check(), None) for _ in range(4)]
    results = await asyncio.gather(*(store.check_write(change, audit_log=[entry], now=NOW) for change in changes[:1]))
    assert results == [True]
    assert not any([await store.check_write(change, now=NOW) for change in changes[1:]])
    assert await store.check_write(CheckChange(make_check(tenant_id=OTHER_TENANT), None), now=NOW)
    assert len(await store.audit_log_list(DEFAULT_TENANT, AuditLogFilter(), before=None, limit=10)) == 1


async def test_check_write_replaces_only_the_expected_version(store: Store) -> None:
    check = make_check()
    await insert(store, check)
    edited = msgspec.structs.replace(check, version=2, revision=2, spec=msgspec.structs.replace(check.spec, grace_seconds=9))
    transition = CheckTransition(at=NOW, from_state=CheckState.UP, to_state=CheckState.PAUSED)
    assert not await store.check_write(CheckChange(edited, 5, (), (), (transition,)), now=NOW)
    assert await store.check_write(CheckChange(edited, 1, (), (), (transition,)), now=NOW)
    assert (await store.check_find(DEFAULT_TENANT, ["backup"]))[1] == [edited]
    assert await store.check_transition_list(DEFAULT_TENANT, check.id, limit=10) == [(2, transition)]


async def test_check_write_counts_checks_and_schedules_together(store: Store) -> None:
    tenant = Tenant(id=UUID(int=9), name="small", created_at=NOW, updated_at=NOW)
    assert await store.tenant_write([TenantWrite(tenant)])
    for name in ("a", "b"):
        assert await store.check_write(CheckChange(make_check(name, tenant_id=tenant.id), None), max_schedules=2, now=NOW)
    with pytest.raises(QuotaExceeded, match="2 of 2"):
        await store.check_write(CheckChange(make_check("c", tenant_id=tenant.id), None), max_schedules=2, now=NOW)


async def test_check_advance_writes_position_and_records_once(store: Store) -> None:
    check, other = make_check(), make_check("other")
    await insert(store, check, other)
    transition = CheckTransition(
        at=NOW,
        from_state=CheckState.UP,
        to_state=CheckState.DOWN,
        reason=DownReason.MISSED,
        scheduled_for=NOW,
        ping_number=None,
    )
    ping = make_ping(
        1,
        kind=PingKind.FAIL,
        rid=uuid4(),
        exit_status=255,
        method="POST",
        address="::1",
        user_agent="curl/8",
        body=b"\x00\xff out",
        body_bytes=20_000,
        duration_seconds=0.25,
    )
    tick = make_tick(0, CheckOutcome.MISSED, reason=DownReason.MISSED, until=NOW + minutes(2), count=3)
    change = advanced(check, state=CheckState.DOWN, ping_count=1)._replace(
        pings=(ping,), ticks=(tick,), transitions=(transition, transition)
    )
    stale = advanced(msgspec.structs.replace(other, version=5), pings=1)
    results = await asyncio.gather(*(store.check_advance([change, stale], now=NOW) for _ in range(3)))
    assert sorted(map(len, results)) == [0, 0, 1]
    assert await store.check_ping_list(DEFAULT_TENANT, check.id, limit=10) == [ping]
    assert await store.check_tick_list(DEFAULT_TENANT, check.id, from_=NOW, to=NOW + minutes(9), limit=10) == [tick]
    assert await store.check_transition_list(DEFAULT_TENANT, check.id, limit=10) == [(3, transition), (2, transition)]
    assert await store.check_ping_list(DEFAULT_TENANT, other.id, limit=10) == []
    assert (await store.check_find(DEFAULT_TENANT, ["backup"]))[1] == [change.check]
    assert await store.check_advance([], now=NOW) == set()


async def test_check_find_tokens_finds_present_and_old_tokens_of_all_tenants(store: Store) -> None:
    ours, theirs = full_check(), make_check(tenant_id=OTHER_TENANT)
    await insert(store, ours, theirs)
    assert ours.old_token is not None
    moment, found = await store.check_find_tokens([ours.old_token, theirs.token, "none"], now=NOW)
    assert (moment, {check.id for check in found}) == (NOW, {ours.id, theirs.id})
    assert (await store.check_find_tokens([], now=NOW))[1] == []


async def test_check_due_returns_what_is_due_the_oldest_first(store: Store) -> None:
    due = [make_check(str(number), due_at=NOW - minutes(number)) for number in range(3)]
    await insert(store, *due, make_check("later", due_at=NOW + minutes(1)), make_check("never"))
    assert [check.spec.name for check in (await store.check_due(limit=2, now=NOW))[1]] == ["2", "1"]
    assert (await store.check_due(limit=10, now=NOW - minutes(5)))[1] == []


async def test_check_list_is_in_order_of_name_and_filtered(store: Store) -> None:
    await insert(store, make_check("b"), make_check("a", state=CheckState.DOWN), make_check("a_1"), make_check("c"))
    await insert(store, make_check("a", tenant_id=OTHER_TENANT))

    async def names(**more: Any) -> list[str]:
        return [check.spec.name for check in await store.check_list(DEFAULT_TENANT, **{"limit": 10, **more})]

    assert await names() == ["a", "a_1", "b", "c"]
    assert await names(after_name="a_1", limit=1) == ["b"]
    assert await names(state=CheckState.DOWN) == ["a"]
    assert await names(prefix="a_") == ["a_1"]
    assert await store.check_state_counts() == {"up": 4, "down": 1}


async def test_check_state_counts_of_nothing_is_empty(store: Store) -> None:
    assert await store.check_state_counts() == {}


async def test_check_delete_concerns_one_tenant(store: Store) -> None:
    await insert(store, make_check())
    assert await store.check_delete(OTHER_TENANT, "backup", now=NOW) == 0
    assert await store.check_delete(DEFAULT_TENANT, "backup", audit_log=[make_audit_entry()], now=NOW) == 1
    assert (await store.check_find(DEFAULT_TENANT, ["backup"]))[1] == []


async def test_check_ping_list_goes_back_from_a_number(store: Store) -> None:
    check = make_check()
    await insert(store, check)
    await store.check_advance([advanced(check, pings=5)], now=NOW)
    assert [ping.number for ping in await store.check_ping_list(DEFAULT_TENANT, check.id, before=4, limit=2)] == [3, 2]
    assert await store.check_ping_list(OTHER_TENANT, check.id, limit=10) == []


async def test_check_tick_list_includes_a_range_that_began_before(store: Store) -> None:
    check = make_check()
    await insert(store, check)
    ticks = (make_tick(0), make_tick(10, CheckOutcome.SKIPPED, until=NOW + minutes(30), count=3), make_tick(40))
    await store.check_advance([advanced(check)._replace(ticks=ticks)], now=NOW)

    async def starts(from_: float, to: float) -> list[float]:
        window = {"from_": NOW + minutes(from_), "to": NOW + minutes(to)}
        found = await store.check_tick_list(DEFAULT_TENANT, check.id, **window, limit=10)
        return [(tick.scheduled_for - NOW).total_seconds() / 60 for tick in found]

    assert await starts(0, 60) == [0, 10, 40]
    assert await starts(20, 40) == [10]
    assert await starts(31, 40) == []
    assert await store.check_tick_list(OTHER_TENANT, check.id, from_=NOW, to=NOW + minutes(60), limit=10) == []


async def test_check_tick_recent_returns_the_newest_of_each_check(store: Store) -> None:
    one, two = make_check("one"), make_check("two")
    await insert(store, one, two)
    ticks = tuple(make_tick(number) for number in range(4))
    await store.check_advance([advanced(one)._replace(ticks=ticks), advanced(two)._replace(ticks=ticks[:1])], now=NOW)
    found = await store.check_tick_recent(DEFAULT_TENANT, [one.id, two.id], from_=NOW, limit=2)
    assert found == {one.id: list(ticks[2:]), two.id: list(ticks[:1])}
    assert await store.check_tick_recent(OTHER_TENANT, [one.id], from_=NOW, limit=2) == {one.id: []}


async def test_check_tick_totals_adds_the_counts_of_a_window(store: Store) -> None:
    check = make_check()
    await insert(store, check)
    ticks = (make_tick(0), make_tick(1), make_tick(2, CheckOutcome.MISSED, count=5, until=NOW + minutes(9)), make_tick(60))
    await store.check_advance([advanced(check)._replace(ticks=ticks)], now=NOW)
    totals = await store.check_tick_totals(DEFAULT_TENANT, from_=NOW, to=NOW + minutes(60))
    assert set(totals) == {CheckTickTotal(check.id, CheckOutcome.PINGED, 2), CheckTickTotal(check.id, CheckOutcome.MISSED, 5)}
    assert await store.check_tick_totals(OTHER_TENANT, from_=NOW, to=NOW + minutes(60)) == []


async def test_check_transition_list_goes_back_from_a_number(store: Store) -> None:
    check = make_check()
    await insert(store, check)
    one = CheckTransition(at=NOW, from_state=CheckState.UP, to_state=CheckState.DOWN)
    await store.check_advance([advanced(check)._replace(transitions=(one, one, one))], now=NOW)
    assert [number for number, _ in await store.check_transition_list(DEFAULT_TENANT, check.id, before=4, limit=5)] == [3, 2]
    assert await store.check_transition_list(OTHER_TENANT, check.id, limit=5) == []


async def test_check_prune_keeps_the_newest_pings_and_what_is_recent(store: Store) -> None:
    check, quiet = make_check("busy"), make_check("quiet")
    await insert(store, check, quiet)
    transition = CheckTransition(at=NOW - minutes(100), from_state=CheckState.UP, to_state=CheckState.DOWN)
    busy = advanced(check, pings=30)._replace(ticks=(make_tick(-100), make_tick(5)), transitions=(transition,))
    await store.check_advance([busy, advanced(quiet, pings=3)], now=NOW)
    assert await store.check_prune(before=NOW - minutes(500), keep=20, limit=4) == 4
    assert await store.check_prune(before=NOW - minutes(50), keep=20, limit=100) == 6 + 2
    assert [ping.number for ping in await store.check_ping_list(DEFAULT_TENANT, check.id, limit=50)] == list(range(30, 10, -1))
    assert len(await store.check_ping_list(DEFAULT_TENANT, quiet.id, limit=50)) == 3
    assert await store.check_prune(before=NOW + minutes(2.5), keep=20, limit=100) == 2  # pings 1 and 2 of the quiet check
    assert await store.check_transition_list(DEFAULT_TENANT, check.id, limit=5) == []
