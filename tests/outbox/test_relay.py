"""The relay: order for each key, several relays, late commits, refused rows, back-pressure and lost replies."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import defaultdict
from typing import Any, TypeAlias

import asyncpg
import pytest

from everbeat.client.errors import NotReachable, ServerProblem
from everbeat.outbox import table as outbox_table
from everbeat.outbox.sender import Refusal, errors_by_index, refusal_of
from everbeat.outbox.table import OutboxMissing, OutboxTable
from tests.outbox.conftest import RecordingServer, Relays, add
from tests.support.postgres import PostgresAdmin
from tests.support.processes import wait_until_async

Connection: TypeAlias = asyncpg.Connection


def refuse(
    *errors: tuple[str, str], status: int = 422, slug: str = "invalid-input", after: float | None = None
) -> ServerProblem:
    problem = {
        "type": f"urn:everbeat:problem:{slug}",
        "detail": "refused",
        "errors": [{"field": field, "message": message} for field, message in errors],
    }
    return ServerProblem(status, problem, after)


async def rejected(connection: Connection) -> dict[int, str]:
    rows = await connection.fetch("SELECT (task -> 'payload' ->> 'n')::int AS n, error FROM everbeat_outbox_rejected")
    return {row["n"]: row["error"] for row in rows}


def has_received(server: RecordingServer, number: int) -> bool:
    return server.numbers[-1:] == [number]


async def waiting(connection: Connection) -> int:
    count: int = await connection.fetchval("SELECT count(*) FROM everbeat_outbox")
    return count


async def test_committed_rows_become_tasks_in_order_and_rolled_back_rows_do_not(
    connection: Connection, server: RecordingServer, relays: Relays
) -> None:
    ids = [await add(connection, number, "k") for number in range(5)]
    transaction = connection.transaction()
    await transaction.start()
    await add(connection, 99, "k")
    await transaction.rollback()
    assert await relays.make(batch_size=2).drain() == 5
    assert server.numbers == [0, 1, 2, 3, 4]
    assert [task["idempotency_key"] for task in server.tasks] == [str(id_) for id_ in ids]
    assert [len(batch) for batch in server.batches] == [2, 2, 1]
    assert await waiting(connection) == 0


async def test_a_transaction_that_commits_late_keeps_its_place_in_the_order_of_its_key(
    connection: Connection, outbox_url: str, server: RecordingServer, relays: Relays
) -> None:
    other = await asyncpg.connect(outbox_url)
    relay = relays.make()
    transaction = connection.transaction()
    await transaction.start()
    await add(connection, 1, "k")
    second = asyncio.create_task(add(other, 2, "k"))
    await add(connection, 3, "k")
    # Another key and a row without a key do not wait for the open transaction.
    third = await asyncpg.connect(outbox_url)
    await add(third, 10, "other")
    await add(third, 11)
    assert await relay.run_once()
    assert sorted(server.numbers) == [10, 11]
    assert not second.done()
    await transaction.commit()
    await second
    await relay.drain()
    assert [number for number in server.numbers if number < 10] == [1, 3, 2]
    await other.close()
    await third.close()


async def test_two_relays_share_the_shards_and_keep_the_order_of_each_key(
    connection: Connection, server: RecordingServer, relays: Relays
) -> None:
    for number in range(400):
        await add(connection, number, f"key-{number % 40}")
    sending: set[int] = set()
    together = 0

    original = server.request

    async def slow(method: str, path: str, *, body: Any = None) -> Any:
        nonlocal together
        sending.add(id(body))
        together = max(together, len(sending))
        await asyncio.sleep(0.01)
        try:
            return await original(method, path, body=body)
        finally:
            sending.discard(id(body))

    server.request = slow  # type: ignore[method-assign]
    counts = await asyncio.gather(*(relays.make(batch_size=20).drain() for _ in range(3)))
    while await waiting(connection):  # a relay stops when it sees only shards that others have locked
        await relays.make().drain()
    assert together > 1
    assert sum(counts) <= 400
    by_key: dict[int, list[int]] = defaultdict(list)
    for number in server.numbers:
        by_key[number % 40].append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert sorted(server.numbers) == list(range(400))


async def test_refused_rows_are_moved_aside_and_the_others_follow(
    connection: Connection, server: RecordingServer, relays: Relays
) -> None:
    for number in range(6):
        await add(connection, number, "k")

    def fault(tasks: list[dict[str, Any]]) -> Exception | None:
        bad = [index for index, task in enumerate(tasks) if task["payload"]["n"] in (1, 4)]
        return refuse(*((f"tasks[{index}].type", "is wrong") for index in bad)) if bad else None

    server.fault = fault
    await relays.make().drain()
    assert server.numbers == [0, 2, 3, 5]
    assert await rejected(connection) == {1: "type: is wrong", 4: "type: is wrong"}


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_refusal_that_names_no_row_is_narrowed_down_to_the_row(
    connection: Connection, server: RecordingServer, relays: Relays, status: int
) -> None:
    for number in range(9):
        await add(connection, number, "k")
    server.fault = lambda tasks: refuse(status=status) if any(task["payload"]["n"] == 6 for task in tasks) else None
    await relays.make().drain()
    assert server.numbers == [0, 1, 2, 3, 4, 5, 7, 8]
    assert list(await rejected(connection)) == [6]


@pytest.mark.parametrize(
    "error",
    [
        refuse(status=429, slug="quota-exceeded", after=3),
        refuse(status=503, slug="database-unavailable", after=3),
        refuse(status=401, slug="unauthenticated"),
        refuse(status=500, slug="internal"),
        NotReachable("http://x", "refused"),
    ],
    ids=["429", "503", "401", "500", "no response"],
)
async def test_back_pressure_and_outages_keep_all_rows_and_wait(
    connection: Connection, server: RecordingServer, relays: Relays, error: Exception
) -> None:
    await add(connection, 1, "k")
    relay = relays.make(random_fraction=lambda: 1.0)
    server.fault = lambda _tasks: error
    delays = []
    for _ in range(3):
        assert not await relay.run_once()
        delays.append(relay._wait_seconds)
    requested = 3.0 if isinstance(error, ServerProblem) and error.retry_after_seconds else 0.0
    assert delays == [pytest.approx(requested + delay) for delay in (0.2, 0.4, 0.8)]
    assert await waiting(connection) == 1
    assert await rejected(connection) == {}
    server.fault = lambda _tasks: None
    assert await relay.run_once()
    assert server.numbers == [1]


async def test_rows_before_a_problem_are_removed_and_the_others_stay(
    connection: Connection, server: RecordingServer, relays: Relays
) -> None:
    for number in range(4):
        await add(connection, number, "k")

    def fault(tasks: list[dict[str, Any]]) -> Exception | None:
        if len(tasks) == 4:
            return refuse(status=413)
        return refuse(status=503) if tasks[0]["payload"]["n"] == 2 else None

    server.fault = fault
    assert not await relays.make().run_once()
    assert server.numbers == [0, 1]
    assert await waiting(connection) == 2


async def test_a_lost_reply_is_submitted_again_with_the_same_keys(
    connection: Connection, server: RecordingServer, relays: Relays
) -> None:
    await add(connection, 1)
    original = server.request

    async def lost(method: str, path: str, *, body: Any = None) -> Any:
        await original(method, path, body=body)
        raise NotReachable("http://x", "the connection was closed")

    server.request = lost  # type: ignore[method-assign]
    relay = relays.make()
    assert not await relay.run_once()
    server.request = original  # type: ignore[method-assign]
    assert await relay.run_once()
    assert len(server.batches) == 2
    assert server.numbers == [1]


async def test_a_relay_that_is_too_slow_releases_its_shards(
    connection: Connection, server: RecordingServer, relays: Relays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_table, "HOLD_SECONDS", 5.1)
    await add(connection, 1, "k")

    async def hang(method: str, path: str, *, body: Any = None) -> Any:
        await asyncio.sleep(60)

    original, server.request = server.request, hang  # type: ignore[method-assign]
    assert not await relays.make().run_once()
    server.request = original  # type: ignore[method-assign]
    assert await relays.make().run_once()
    assert server.numbers == [1]


async def test_a_frozen_relay_loses_its_shards_and_cannot_remove_rows(
    connection: Connection, server: RecordingServer, relays: Relays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_table, "IDLE_TRANSACTION_SECONDS", 0.5)
    await add(connection, 1, "k")
    frozen, released = asyncio.Event(), asyncio.Event()
    original = server.request

    async def freeze(method: str, path: str, *, body: Any = None) -> Any:
        frozen.set()
        await released.wait()
        return await original(method, path, body=body)

    server.request = freeze  # type: ignore[method-assign]
    first = asyncio.create_task(relays.make().run_once())
    await frozen.wait()
    server.request = original  # type: ignore[method-assign]
    second = relays.make()
    assert not await second.run_once()  # the shards are still locked
    while not await second.run_once():
        await asyncio.sleep(0.05)
    await add(connection, 2, "k")
    released.set()
    assert not await first
    assert await second.run_once()
    assert server.numbers == [1, 2]
    assert len(server.batches) == 3


async def test_an_insert_wakes_a_waiting_relay_and_a_busy_one_is_not_notified(
    connection: Connection, server: RecordingServer, relays: Relays
) -> None:
    relay = relays.make(poll_seconds=30)
    stopping = asyncio.Event()
    running = asyncio.create_task(relay.run(stopping))
    await wait_until_async(lambda: relays.tables[0]._connection is not None)
    flag = "SELECT last_value FROM everbeat_outbox_wakeup"
    for number in range(3):
        while await connection.fetchval(flag) != 1:
            await asyncio.sleep(0.01)
        started = time.monotonic()
        await add(connection, number)
        await wait_until_async(functools.partial(has_received, server, number))
        assert time.monotonic() - started < 5
    stopping.set()
    await asyncio.wait_for(running, 5)


async def test_a_database_that_restarts_delays_the_relay_and_loses_nothing(
    connection: Connection, postgres_server: PostgresAdmin, server: RecordingServer, relays: Relays
) -> None:
    relay = relays.make(poll_seconds=0.05)
    stopping = asyncio.Event()
    running = asyncio.create_task(relay.run(stopping))
    await add(connection, 1)
    await wait_until_async(lambda: server.numbers == [1])
    name = await connection.fetchval("SELECT current_database()")
    where = f"datname = '{name}' AND application_name = 'everbeat-relay'"
    postgres_server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {where}")
    await add(connection, 2)
    await wait_until_async(lambda: server.numbers == [1, 2])
    stopping.set()
    await asyncio.wait_for(running, 5)


async def test_a_database_without_an_outbox_is_a_clear_error(postgres_server: PostgresAdmin) -> None:
    name = postgres_server.create_database()
    table = OutboxTable(postgres_server.url(name))
    try:
        with pytest.raises(OutboxMissing, match="create it with: everbeat outbox install"):
            await table.status()
    finally:
        await table.close()
        postgres_server.drop_database(name)


async def test_large_rows_are_split_into_requests_below_the_limit_of_the_body(
    connection: Connection, server: RecordingServer, relays: Relays
) -> None:
    for number in range(5):
        await add(connection, number, "k", labels={"x": "y" * 3_000_000})
    await relays.make().drain()
    assert server.numbers == [0, 1, 2, 3, 4]
    assert [len(batch) for batch in server.batches] == [2, 2, 1]


def test_what_a_refusal_means_follows_from_its_status_and_errors() -> None:
    assert refusal_of(refuse(("tasks[2].queue", "bad"))) is Refusal.OF_ROWS
    assert refusal_of(refuse(("tasks", "too many"))) is Refusal.OF_REQUEST
    assert refusal_of(refuse(status=403, slug="quota-exceeded")) is Refusal.OF_REQUEST
    assert refusal_of(refuse(status=429, slug="quota-exceeded", after=1)) is Refusal.WAIT
    assert refusal_of(refuse(status=403, slug="forbidden")) is Refusal.WAIT
    found = errors_by_index(refuse(("tasks[1].a", "x"), ("tasks[1].b", "y"), ("tasks[0]", "z"), ("other", "w")))
    assert found == {1: "a: x; b: y", 0: "task: z"}
