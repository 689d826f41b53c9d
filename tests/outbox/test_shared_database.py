"""Tasks that an application writes in its own transaction, in a PostgreSQL database that it shares with Everbeat."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import psycopg
import pytest

from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tasks import TaskState
from everbeat.outbox import SharedDatabase
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.values import Notice

ENQUEUE = "SELECT everbeat_enqueue($1::jsonb)"


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url, listen=False)
    await store.open()
    yield store
    await store.close()


async def enqueue(connection: asyncpg.Connection, **task: Any) -> UUID:
    id_: UUID = await connection.fetchval(ENQUEUE, json.dumps({"type": "t", **task}))
    return id_


async def test_a_task_exists_when_its_transaction_commits_and_only_then(
    connection: asyncpg.Connection, store: PostgresStore
) -> None:
    shared = SharedDatabase()
    transaction = connection.transaction()
    await transaction.start()
    rolled_back = await shared.submit_async(connection, "receipt", {"order": 1})
    await transaction.rollback()
    async with connection.transaction():
        committed = await shared.submit_async(
            connection,
            "receipt",
            {"order": 2},
            queue="mail",
            priority=5,
            max_attempts=7,
            labels={"a": "b"},
            timeout="5m",
            retry={"kind": "fixed", "base_seconds": 2},
            fair_key="customer-1",
        )
        assert await store.task_find(DEFAULT_TENANT, [committed]) == []
    assert await store.task_find(DEFAULT_TENANT, [rolled_back]) == []
    (task,) = await store.task_find(DEFAULT_TENANT, [committed])
    assert (task.type, task.queue, task.state, task.priority) == ("receipt", "mail", TaskState.READY, 5)
    assert (json.loads(task.payload), task.labels, task.fair_key) == ({"order": 2}, {"a": "b"}, "customer-1")
    assert (task.max_attempts, task.timeout_seconds) == (7, 300)
    assert json.loads(task.retry)["base_seconds"] == 2
    assert committed.version == 7


async def test_partitions_and_ids_are_those_of_the_engine(connection: asyncpg.Connection) -> None:
    for id_ in [UUID(int=0), UUID(int=2**128 - 1), *(uuid4() for _ in range(20))]:
        assert await connection.fetchval("SELECT everbeat_partition($1)", id_) == zlib.crc32(id_.bytes) % 256
    ids = [await enqueue(connection) for _ in range(20)]
    assert ids == sorted(ids)
    made_at = datetime.fromtimestamp((ids[0].int >> 80) / 1000, UTC)
    assert abs(made_at - await connection.fetchval("SELECT now()")) < timedelta(seconds=5)
    assert {id_.variant for id_ in ids} == {"specified in RFC 4122"}


async def test_delayed_tasks_wait_for_the_promoter(connection: asyncpg.Connection, store: PostgresStore) -> None:
    later = datetime(2099, 1, 31, 9, tzinfo=UTC)
    first = await enqueue(connection, delay_seconds=60)
    second = await enqueue(connection, run_at="2099-01-31T10:00:00+01:00")
    tasks = {task.id: task for task in await store.task_find(DEFAULT_TENANT, [first, second])}
    assert {task.state for task in tasks.values()} == {TaskState.SCHEDULED}
    assert tasks[second].run_at == later
    assert tasks[first].run_at - tasks[first].created_at == timedelta(seconds=60)


async def test_a_repeated_key_returns_the_first_task_and_another_task_is_refused(connection: asyncpg.Connection) -> None:
    first = await enqueue(connection, idempotency_key="k", payload={"a": 1})
    assert await enqueue(connection, idempotency_key="k", payload={"a": 1}) == first
    with pytest.raises(asyncpg.UniqueViolationError, match="was used before with another task"):
        await enqueue(connection, idempotency_key="k", payload={"a": 2})
    assert await connection.fetchval("SELECT count(*) FROM tasks") == 1
    await connection.execute("UPDATE task_keys SET expires_at = now() - interval '1 second'")
    assert await enqueue(connection, idempotency_key="k", payload={"a": 2}) != first


async def test_two_transactions_with_one_key_write_one_task(postgres_url: str, connection: asyncpg.Connection) -> None:
    other = await asyncpg.connect(postgres_url)
    transaction = connection.transaction()
    await transaction.start()
    first = await enqueue(connection, idempotency_key="k")
    second = asyncio.create_task(enqueue(other, idempotency_key="k"))
    locks = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    while not await connection.fetchval(locks):
        await asyncio.sleep(0.01)
    await transaction.commit()
    assert await second == first
    assert await connection.fetchval("SELECT count(*) FROM tasks") == 1
    await other.close()


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"type": "a b"}, "type: must be 1 to 200 characters"),
        ({"type": None}, "type: must be 1 to 200 characters"),
        ({"queue": "everbeat:http"}, "queue: must not start with everbeat:"),
        ({"queue": 3}, "queue: must be 1 to 200 characters"),
        ({"priority": 1001}, "priority: must be a number from 0 to 1000"),
        ({"priority": 1.5}, "priority: must be a number"),
        ({"max_attempts": "3"}, "max_attempts: must be a number"),
        ({"timeout_seconds": 0}, "timeout_seconds: must be greater than 0"),
        ({"delay_seconds": -1}, "delay_seconds: must be a number"),
        ({"run_at": "2099-01-01T00:00:00"}, "run_at: must be a time with an offset"),
        ({"run_at": "2099-01-01T00:00:00Z", "delay_seconds": 1}, "delay_seconds: cannot be used together"),
        ({"retry": {"kind": "never"}}, "retry: has a field that is unknown or out of range"),
        ({"retry": {"base_seconds": "1"}}, "retry: has a field"),
        ({"retry": {"other": 1}}, "retry: has a field"),
        ({"labels": {"a": 1}}, "labels: must have valid names"),
        ({"labels": {"a b": "c"}}, "labels: must have valid names"),
        ({"target": {"kind": "http"}}, "target: is not a field that can be written in SQL"),
        ({"idempotency_key": "a b"}, "idempotency_key: must be 1 to 255 visible"),
        ({"payload": "x" * 70_000}, "payload: has 70002 bytes; at most 65536"),
        ({"payload": json.loads("[" * 66 + "]" * 66)}, "payload: is nested deeper"),
    ],
)
async def test_an_invalid_task_is_refused_with_the_field(
    connection: asyncpg.Connection, task: dict[str, Any], message: str
) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match=message):
        await enqueue(connection, **task)


async def test_null_is_the_default_of_a_field(connection: asyncpg.Connection, store: PostgresStore) -> None:
    fields = (
        "queue",
        "priority",
        "max_attempts",
        "retry",
        "timeout_seconds",
        "labels",
        "fair_key",
        "idempotency_key",
        "run_at",
    )
    (task,) = await store.task_find(DEFAULT_TENANT, [await enqueue(connection, **dict.fromkeys(fields))])
    assert (task.queue, task.priority, task.max_attempts, task.timeout_seconds) == ("default", 100, 3, 3600)


async def test_the_quotas_of_the_tenant_are_respected(connection: asyncpg.Connection) -> None:
    async def set_quota(name: str, value: str) -> None:
        await connection.execute("UPDATE tenants SET max_ready = NULL, max_payload_bytes = NULL, submits_per_second = NULL")
        await connection.execute(f"UPDATE tenants SET {name} = {value}")

    await set_quota("max_ready", "2")
    for _ in range(2):
        await enqueue(connection)
    with pytest.raises(asyncpg.ConfigurationLimitExceededError, match="max_ready: 2 tasks are ready"):
        await enqueue(connection)
    await enqueue(connection, delay_seconds=3600)
    await set_quota("max_payload_bytes", "20")
    with pytest.raises(asyncpg.ConfigurationLimitExceededError, match="max_payload_bytes"):
        await enqueue(connection, payload="x" * 20)
    await set_quota("submits_per_second", "5")
    with pytest.raises(asyncpg.ConfigurationLimitExceededError, match="which only nodes enforce"):
        await enqueue(connection)
    await set_quota("min_priority", "50")
    id_ = await enqueue(connection, priority=1)
    assert await connection.fetchval("SELECT priority FROM tasks WHERE id = $1", id_) == 50
    with pytest.raises(asyncpg.InvalidParameterValueError, match="there is no tenant nobody"):
        await connection.fetchval("SELECT everbeat_enqueue('{\"type\": \"t\"}', 'nobody')")


async def test_nodes_are_notified_at_the_commit(postgres_url: str, connection: asyncpg.Connection) -> None:
    store = PostgresStore(postgres_url)
    notices: asyncio.Queue[Notice] = asyncio.Queue()
    store.subscribe(notices.put_nowait)
    await store.open()
    try:
        for _ in Notice:  # each is delivered once when the connection is open
            await asyncio.wait_for(notices.get(), 10)
        async with connection.transaction():
            await enqueue(connection)
        assert await asyncio.wait_for(notices.get(), 10) is Notice.TASKS
    finally:
        await store.close()


async def test_a_role_needs_only_execute_and_nobody_else_has_it(postgres_url: str, connection: asyncpg.Connection) -> None:
    role = f"app_{uuid4().hex[:12]}"
    await connection.execute(f"CREATE ROLE {role}")
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL ROLE {role}")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with connection.transaction():
                    await enqueue(connection)
        await connection.execute(f"GRANT EXECUTE ON FUNCTION everbeat_enqueue(jsonb, text) TO {role}")
        async with connection.transaction():
            await connection.execute(f"SET LOCAL ROLE {role}")
            assert await enqueue(connection, labels={"a": "b"})
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.fetchval("SELECT count(*) FROM tasks")
    finally:
        await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_sync_driver_writes_tasks_too(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        at = datetime(2099, 1, 31, 9, 0, 0, 5, tzinfo=UTC)
        id_ = SharedDatabase().submit(connection, "receipt", {"percent": "100%"}, key="k", run_at=at)
        row = connection.execute("SELECT payload, run_at FROM tasks WHERE id = %s", [id_]).fetchone()
    assert row is not None
    assert (json.loads(row[0]), row[1]) == ({"percent": "100%"}, at)
