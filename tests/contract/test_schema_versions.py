"""schema_version, and migration_show: which migrations nodes of 0.1.0 see, and which code the schema requires."""

from __future__ import annotations

from uuid import UUID

from everbeat.core.tasks import TaskState
from everbeat.store.base import Store
from everbeat.store.migrate import BASELINE, load_migrations
from everbeat.store.values import AuditLogFilter
from tests.factories import (
    NOW,
    apply_unknown_migration,
    claim,
    execute_raw,
    insert,
    lease_of,
    make_audit_entry,
    make_schedule,
    make_task,
    node_heartbeat,
    own_all_partitions,
    seconds,
)

ALL = frozenset(range(256))


def newest(store: Store) -> int:
    return load_migrations(f"everbeat.store.{store.dialect}")[-1].number


async def seen_by_0_1_0(store: Store) -> int:
    ((number,),) = await execute_raw(store, "SELECT max(number) FROM everbeat_migrations")
    return int(number)


async def record(store: Store, number: int, minimum: int) -> None:
    """Record a migration as a newer version does."""
    applied_at = "0" if store.dialect == "sqlite" else "now()"
    for table, values in (
        ("everbeat_migrations (number, name, applied_at)", f"{number}, 'later', {applied_at}"),
        ("everbeat_applied_migrations (number, name, minimum, applied_at)", f"{number}, 'later', {minimum}, {applied_at}"),
    ):
        await execute_raw(store, f"INSERT INTO {table} VALUES ({values})")


async def owned(store: Store) -> int:
    return len((await store.partition_renew(node_heartbeat(UUID(int=1)), ALL, now=NOW)).owned)


async def test_schema_version_says_which_code_the_schema_requires(store: Store) -> None:
    schema = await store.schema_version()
    assert schema == (newest(store), newest(store), BASELINE)
    assert schema.is_usable
    await record(store, newest(store) + 1, BASELINE)
    compatible = await store.schema_version()
    assert (compatible.version, compatible.is_usable, compatible.is_newer) == (newest(store) + 1, True, False)
    await record(store, newest(store) + 2, newest(store) + 1)
    assert (await store.schema_version()).is_newer


async def test_partition_renew_gives_partitions_to_nodes_that_the_schema_is_compatible_with(store: Store) -> None:
    await record(store, newest(store) + 1, newest(store))
    assert await owned(store) == 256
    await record(store, newest(store) + 2, newest(store) + 2)
    assert await owned(store) == 0


async def test_schema_version_takes_an_unrecorded_migration_for_one_that_requires_code_that_knows_it(store: Store) -> None:
    await apply_unknown_migration(store)
    assert (await store.schema_version()) == (9000, newest(store), 9000)
    assert await owned(store) == 0


async def test_migration_show_hides_and_shows_migrations_and_keeps_the_schema(store: Store) -> None:
    await store.task_submit([make_task()], now=NOW)
    await store.migration_show(BASELINE)
    assert await seen_by_0_1_0(store) == BASELINE
    assert (await store.schema_version()) == (newest(store), newest(store), BASELINE)
    assert await store.migrate() == []
    assert await seen_by_0_1_0(store) == BASELINE
    assert await owned(store) == 256
    (task,) = await claim(store)
    assert (await store.task_find(task.tenant_id, [task.id]))[0].state is TaskState.RUNNING
    await store.migration_show(None)
    assert await seen_by_0_1_0(store) == newest(store)
    await store.migration_show(None)
    assert await seen_by_0_1_0(store) == newest(store)


async def test_fence_raise_refuses_the_reports_of_older_leases_and_works_in_pages(store: Store) -> None:
    await store.task_submit([make_task() for _ in range(5)], now=NOW)
    tasks = await claim(store, limit=2)
    seen: list[UUID] = []
    while page := await store.fence_raise(raised_by=1000, after=max(seen, default=None), limit=2):
        seen += page
    assert len(seen) == len(set(seen)) == 5
    done = await store.task_complete([(lease_of(task), None) for task in tasks], now=NOW)
    assert done.finished == set()
    later = [task.fence for task in await claim(store, now=NOW)]
    assert min(later) > 1000
    _, expired = await store.task_expired(limit=10, now=NOW + seconds(31))
    assert {task.fence for task in expired} == {1001}


async def test_database_restored_ends_leases_and_raises_epochs(store: Store) -> None:
    before = await own_all_partitions(store, UUID(int=1))
    entry = make_audit_entry(action="database.restored")
    await store.database_restored(raised_by=1000, audit_log=[entry], now=NOW)
    assert (await store.node_list(now=NOW))[1] == []
    assert {one.owner for one in await store.partition_list()} == {None}
    after = await own_all_partitions(store, UUID(int=2))
    assert all(after[partition] == epoch + 1001 for partition, epoch in before.items())
    listed = await store.audit_log_list(None, AuditLogFilter(), before=None, limit=10)
    assert [one.action for one in listed] == ["database.restored"]


async def test_rollback_obstacles_are_rows_that_nodes_of_0_1_0_cannot_read(store: Store) -> None:
    await store.task_submit([make_task(), make_task()], now=NOW)
    assert await store.rollback_obstacles() == {}
    (id_,) = await store.fence_raise(raised_by=1, after=None, limit=1)
    await execute_raw(store, "UPDATE tasks SET origin = 'alert' WHERE id = ?", id_)
    await insert(store, make_schedule())
    await execute_raw(store, "UPDATE schedules SET target_kind = 'email'")
    assert await store.rollback_obstacles() == {"live tasks of alerts": 1, "schedules with the target slack or email": 1}
