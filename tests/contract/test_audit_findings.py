"""finding_record, finding_resolve, finding_list, finding_open, finding_count, finding_prune;
loop_lease_take, loop_lease_end, loop_lease_list."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import uuid_utils.compat

from everbeat.core.audit_findings import AuditFinding, FindingKind, FindingState, Resolution
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.base import Store
from everbeat.store.values import FindingFilter, LoopLease
from tests.factories import NOW, OTHER_TENANT, minutes, seconds

SCHEDULE, OTHER_SCHEDULE = UUID(int=21), UUID(int=22)
NODE, OTHER_NODE = UUID(int=1), UUID(int=2)
LEASE: dict[str, Any] = {"lease_seconds": 20.0, "interval_seconds": 15.0}


def a_finding(kind: FindingKind = FindingKind.MISSING, **more: Any) -> AuditFinding:
    defaults: dict[str, Any] = {
        "id": uuid_utils.compat.uuid7(),
        "tenant_id": DEFAULT_TENANT,
        "schedule_id": SCHEDULE,
        "scheduled_for": NOW,
        "found_at": NOW + seconds(20),
        "details": '{"name":"job"}',
    }
    return AuditFinding(kind=kind, **{**defaults, **more})


def of_the_cluster(**more: Any) -> AuditFinding:
    return a_finding(FindingKind.UNOWNED_PARTITIONS, tenant_id=None, schedule_id=None, **more)


async def listed(store: Store, tenant_id: UUID | None = DEFAULT_TENANT, **filter_: Any) -> list[AuditFinding]:
    return await store.finding_list(tenant_id, FindingFilter(**filter_), limit=10)


async def test_finding_record_stores_a_finding_once(store: Store) -> None:
    first = a_finding()
    assert await store.finding_record([first, a_finding()]) == [first]
    assert await store.finding_record([a_finding(found_at=NOW + minutes(1))]) == []
    assert await listed(store) == [first]
    assert first.state is FindingState.OPEN


async def test_finding_record_keeps_kinds_ticks_and_schedules_apart(store: Store) -> None:
    found = [
        a_finding(),
        a_finding(FindingKind.DOUBLED),
        a_finding(scheduled_for=NOW + minutes(1)),
        a_finding(schedule_id=OTHER_SCHEDULE),
    ]
    assert await store.finding_record(found) == found
    assert await listed(store) == list(reversed(found))


async def test_finding_record_opens_a_resolved_finding_again(store: Store) -> None:
    first, second = a_finding(), a_finding(found_at=NOW + minutes(9))
    await store.finding_record([first])
    await store.finding_resolve({first.id: Resolution.RECORDED}, now=NOW + minutes(2))
    assert await store.finding_record([second]) == [second]
    assert await listed(store) == [second]


async def test_finding_record_of_a_late_tick_is_resolved_from_the_beginning(store: Store) -> None:
    late = a_finding(FindingKind.LATE, resolved_at=NOW + seconds(20), resolution=Resolution.NOTED)
    assert await store.finding_record([late]) == [late]
    assert await store.finding_record([late]) == []
    assert await listed(store) == []
    assert await listed(store, is_resolved=True) == [late]


async def test_finding_resolve_changes_an_open_finding_only_once(store: Store) -> None:
    finding = a_finding()
    await store.finding_record([finding])
    (resolved,) = await store.finding_resolve({finding.id: Resolution.BACKFILLED}, now=NOW + minutes(2))
    assert (resolved.resolved_at, resolved.resolution) == (NOW + minutes(2), Resolution.BACKFILLED)
    assert resolved.state is FindingState.RESOLVED
    assert await store.finding_resolve({finding.id: Resolution.OVER}, now=NOW + minutes(3)) == []
    assert await listed(store, is_resolved=True) == [resolved]


async def test_finding_list_of_a_tenant_has_those_of_the_cluster_but_not_of_other_tenants(store: Store) -> None:
    own, other, shared = a_finding(), a_finding(tenant_id=OTHER_TENANT, schedule_id=OTHER_SCHEDULE), of_the_cluster()
    await store.finding_record([own, other, shared])
    assert await listed(store) == [shared, own]
    assert await listed(store, OTHER_TENANT) == [shared, other]
    assert await listed(store, None) == [shared, other, own]


async def test_finding_list_filters_and_continues_after_a_page(store: Store) -> None:
    found = [a_finding(scheduled_for=NOW + minutes(index)) for index in range(4)] + [a_finding(FindingKind.DOUBLED)]
    await store.finding_record(found)
    assert await listed(store, kind=FindingKind.DOUBLED) == [found[4]]
    assert await listed(store, schedule_id=OTHER_SCHEDULE) == []
    assert await listed(store, from_at=NOW + minutes(2), to_at=NOW + minutes(3)) == [found[2]]
    first = await store.finding_list(DEFAULT_TENANT, FindingFilter(), limit=2)
    assert first == [found[4], found[3]]
    assert await listed(store, before=found[3].id) == [found[2], found[1], found[0]]


async def test_finding_open_returns_the_oldest_of_all_tenants_first(store: Store) -> None:
    found = [a_finding(), a_finding(tenant_id=OTHER_TENANT, schedule_id=OTHER_SCHEDULE), of_the_cluster()]
    await store.finding_record(found)
    await store.finding_resolve({found[1].id: Resolution.REMOVED}, now=NOW)
    assert await store.finding_open(after=None, limit=10) == [found[0], found[2]]
    assert await store.finding_open(after=None, limit=1) == [found[0]]
    assert await store.finding_open(after=found[0].id, limit=10) == [found[2]]


async def test_finding_count_counts_open_findings_by_kind_up_to_the_limit(store: Store) -> None:
    found = [a_finding(scheduled_for=NOW + minutes(index)) for index in range(3)] + [a_finding(FindingKind.DOUBLED)]
    await store.finding_record(found)
    await store.finding_resolve({found[0].id: Resolution.OVER}, now=NOW)
    assert await store.finding_count(limit=10) == {"missing": 2, "doubled": 1}
    assert sum((await store.finding_count(limit=2)).values()) == 2


async def test_finding_prune_deletes_old_findings_in_batches(store: Store) -> None:
    found = [a_finding(scheduled_for=NOW + minutes(index), found_at=NOW + minutes(index)) for index in range(4)]
    await store.finding_record(found)
    assert await store.finding_prune(age_seconds=60, limit=2, now=NOW + minutes(4)) == 2
    assert await store.finding_prune(age_seconds=60, limit=2, now=NOW + minutes(4)) == 1
    assert await listed(store) == [found[3]]


async def test_loop_lease_take_succeeds_on_one_node(store: Store) -> None:
    assert await store.loop_lease_take("audit", NODE, **LEASE, now=NOW) == LoopLease(NOW, None, "{}")
    assert await store.loop_lease_take("audit", OTHER_NODE, **LEASE, now=NOW) is None
    assert await store.loop_lease_take("other", OTHER_NODE, **LEASE, now=NOW) is not None
    (audit, _) = await store.loop_lease_list()
    assert (audit.name, audit.holder, audit.lease_until) == ("audit", NODE, NOW + seconds(20))


async def test_loop_lease_take_is_refused_until_the_interval_has_passed(store: Store) -> None:
    await store.loop_lease_take("audit", NODE, **LEASE, now=NOW)
    assert await store.loop_lease_end("audit", NODE, position='{"at":1}', interval_seconds=15, now=NOW + seconds(1))
    assert await store.loop_lease_take("audit", OTHER_NODE, **LEASE, now=NOW + seconds(15)) is None
    lease = await store.loop_lease_take("audit", OTHER_NODE, **LEASE, now=NOW + seconds(16))
    assert lease == LoopLease(NOW + seconds(16), NOW + seconds(1), '{"at":1}')


async def test_loop_lease_take_succeeds_when_the_lease_of_another_node_has_expired(store: Store) -> None:
    await store.loop_lease_take("audit", NODE, **LEASE, now=NOW)
    assert await store.loop_lease_take("audit", OTHER_NODE, **LEASE, now=NOW + seconds(19)) is None
    assert await store.loop_lease_take("audit", OTHER_NODE, **LEASE, now=NOW + seconds(20)) is not None
    assert not await store.loop_lease_end("audit", NODE, position="{}", interval_seconds=15, now=NOW + seconds(21))


async def test_loop_lease_take_succeeds_after_the_clock_was_set_back(store: Store) -> None:
    await store.loop_lease_take("audit", NODE, **LEASE, now=NOW)
    earlier = NOW - minutes(60)
    assert await store.loop_lease_take("audit", OTHER_NODE, **LEASE, now=earlier) is not None
    await store.loop_lease_end("audit", OTHER_NODE, position="{}", interval_seconds=15, now=NOW)
    lease = await store.loop_lease_take("audit", NODE, **LEASE, now=earlier)
    assert lease is not None
    assert lease.ran_at == NOW


async def test_loop_lease_end_does_not_move_the_last_run_back(store: Store) -> None:
    await store.loop_lease_take("audit", NODE, **LEASE, now=NOW)
    await store.loop_lease_end("audit", NODE, position="{}", interval_seconds=15, now=NOW)
    await store.loop_lease_take("audit", NODE, **LEASE, now=NOW - minutes(60))
    await store.loop_lease_end("audit", NODE, position="{}", interval_seconds=15, now=NOW - minutes(60))
    (lease,) = await store.loop_lease_list()
    assert (lease.ran_at, lease.next_at) == (NOW, NOW - minutes(60) + seconds(15))


async def test_loop_lease_list_is_empty_before_the_first_run(store: Store) -> None:
    assert await store.loop_lease_list() == []
