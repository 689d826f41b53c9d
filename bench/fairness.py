"""Fair shares with a fleet worker over HTTP: a tenant and another one with a backlog, weights, and many tenants."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple
from uuid import UUID

from bench.databases import BenchDatabase, Scale, serving
from bench.noop import QUEUE, producer
from bench.queues import payload
from bench.records import Records
from bench.report import ResultRow, at_least, at_most, median, percentile, print_progress, rounds
from bench.working import Drain, drain, drained_tasks, working
from everbeat.config import load_settings
from everbeat.core.partitioning import partition_of
from everbeat.core.tasks import NewTask, Origin
from everbeat.core.tenants import Tenant
from everbeat.server import make_store
from everbeat.services.ids import new_ids
from everbeat.services.keys import KeyService
from everbeat.store.base import Store
from everbeat.store.values import TenantWrite

_INTERVAL_SECONDS = 0.1
_WARM_UP = 20
_BATCH_SIZE = 1000
_COUNTED = 10_000
_TENANTS = 1000


async def run(database: BenchDatabase, scale: Scale) -> list[ResultRow]:
    return [*await _with_backlog(database, scale), await _weights(database), await _many(database, scale)]


# A tenant, and another one with a backlog


async def _with_backlog(database: BenchDatabase, scale: Scale) -> list[ResultRow]:
    backlog, count = (100_000, 30) if scale.is_quick else (200_000, 80)
    await database.recreate()
    records = Records(database.folder)
    async with _store(database) as store:
        big, small = await _tenants(store, [1.0, 1.0])
        fleet, own = await _fleet_key(store), await _key(store, small, "submit")
        with serving(database, "--auth", "off") as (_, port):
            url = f"http://127.0.0.1:{port}"
            with working(database, records, url, EVERBEAT_API_KEY=fleet):
                await _send(records, url, own, _WARM_UP)
                idle = await _send(records, url, own, count)
            await _fill(store, {big: backlog}, type_="nap")
            await database.checkpoint()
            with working(database, records, url, EVERBEAT_API_KEY=fleet):
                await records.wait(records.count() + 500, 30)  # all slots of the worker are in use
                busy = await _send(records, url, own, count)
                left = await database.count_live()
    print_progress(f"{database.name}: with a backlog: {_figures(busy)}; idle: {_figures(idle)}; left {left:,}")
    if not left:
        raise RuntimeError("the backlog was used up during the measurement")
    what = f"pick-up of one tenant with {backlog:,} ready tasks of another"
    detail = f"with backlog: {_figures(busy)}; idle: {_figures(idle)}; {left:,} of the backlog were left"
    return [
        at_most(
            database.name,
            f"{what}: p50 compared with idle",
            percentile(busy, 0.5) / percentile(idle, 0.5),
            "x",
            3,
            detail=detail,
        ),
        at_most(database.name, f"{what}: p99 compared with idle", percentile(busy, 0.99) / percentile(idle, 0.99), "x", 3),
    ]


def _figures(waits: Sequence[float]) -> str:
    return f"p50 {percentile(waits, 0.5):.1f} ms, p99 {percentile(waits, 0.99):.1f} ms"


async def _send(records: Records, url: str, key: str, count: int) -> list[float]:
    """Submit `count` tasks and return how many milliseconds each waited. Their tags distinguish them from the backlog."""
    since = time.time()
    await asyncio.to_thread(_submit, url, key, count)
    deadline = time.monotonic() + 30
    while len(waits := [1000 * (record.at - record.tag) for record in records.read() if record.tag >= since]) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(waits)} of {count} tasks were started")
        await asyncio.sleep(0.2)
    return waits


def _submit(url: str, key: str, count: int) -> None:
    app, noop = producer(url, api_key=key)
    started = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, started + number * _INTERVAL_SECONDS - time.monotonic()))
        noop.submit(**payload(number, time.time()))
    app.close()


# Weights


async def _weights(database: BenchDatabase) -> ResultRow:
    await database.recreate()
    records = Records(database.folder)
    async with _store(database) as store:
        three, one = await _tenants(store, [3.0, 1.0])
        fleet = await _fleet_key(store)
        await _fill(store, {three: 2 * _COUNTED, one: 2 * _COUNTED}, tagged=True)
        await database.checkpoint()
        with (
            serving(database, "--auth", "off") as (_, port),
            working(database, records, f"http://127.0.0.1:{port}", EVERBEAT_API_KEY=fleet),
        ):
            await records.wait(_COUNTED)
    counts = Counter(record.tag for record in records.read()[:_COUNTED])
    ratio = counts[0.0] / counts[1.0]
    what = f"weights 3:1 over {_COUNTED:,} tasks"
    return ResultRow(
        database.name, what, "2.7 to 3.3", ratio, "", None, 2.7 <= ratio <= 3.3, f"{counts[0.0]:,} to {counts[1.0]:,}"
    )


# Many tenants


async def _many(database: BenchDatabase, scale: Scale) -> ResultRow:
    count = drained_tasks(scale)
    one: list[Drain] = []
    many: list[Drain] = []
    for _ in range(scale.rounds):
        one.append(await _drain(database, count, 1))
        many.append(await _drain(database, count, _TENANTS))
        print_progress(f"{database.name}: {_TENANTS:,} tenants {many[-1].rate:,.0f}/s, one {one[-1].rate:,.0f}/s")
    rates, alone = [drained.rate for drained in many], [drained.rate for drained in one]
    detail = f"{rounds(rates)}; one tenant {rounds(alone)}; last: {many[-1].cpu}; one tenant: {one[-1].cpu}"
    what = f"drain of {count:,} no-ops of {_TENANTS:,} tenants compared with one"
    return at_least(database.name, what, median(rates) / median(alone), "x", 0.85, detail=detail)


async def _drain(database: BenchDatabase, count: int, tenants: int) -> Drain:
    await database.recreate()
    records = Records(database.folder)
    async with _store(database) as store:
        ids = await _tenants(store, [1.0] * tenants)
        fleet = await _fleet_key(store)
        await _fill(store, dict.fromkeys(ids, count // tenants))
        await database.checkpoint()
        with (
            serving(database, "--auth", "off") as (server, port),
            working(database, records, f"http://127.0.0.1:{port}", EVERBEAT_API_KEY=fleet) as worker,
        ):
            return await drain(database, records, count, {"server": server.pid, "worker": worker.pid})


# Inserting


class _TaskSpec(NamedTuple):
    tenant_id: UUID
    tag: float


@contextlib.asynccontextmanager
async def _store(database: BenchDatabase) -> AsyncIterator[Store]:
    store = make_store(load_settings({"database_url": database.url}, environment={}))
    try:
        await store.open()
        yield store
    finally:
        await store.close()


async def _tenants(store: Store, weights: Sequence[float]) -> list[UUID]:
    now, ids = await store.clock(), new_ids(len(weights))
    tenants = [
        Tenant(id=id_, name=f"tenant-{number}", weight=weight, created_at=now, updated_at=now)
        for number, (id_, weight) in enumerate(zip(ids, weights, strict=True))
    ]
    if not await store.tenant_write([TenantWrite(tenant) for tenant in tenants]):
        raise RuntimeError("the tenants already exist")
    return ids


async def _fleet_key(store: Store) -> str:
    return (await KeyService(store).create(UUID(int=0), "fleet", ["work"], is_fleet=True)).text


async def _key(store: Store, tenant_id: UUID, scope: str) -> str:
    return (await KeyService(store).create(tenant_id, scope, [scope])).text


async def _fill(store: Store, counts: dict[UUID, int], *, tagged: bool = False, type_: str = "noop") -> None:
    """Insert ready tasks of several tenants, one tenant after another in rotation. `tagged`: the tag is the tenant's index."""
    largest = max(counts.values())
    specs = [
        _TaskSpec(tenant_id, float(index) if tagged else 0.0)
        for number in range(largest)
        for index, (tenant_id, count) in enumerate(counts.items())
        if number < count
    ]
    for start in range(0, len(specs), _BATCH_SIZE):
        batch = specs[start : start + _BATCH_SIZE]
        ids = new_ids(len(batch))
        tasks = [_task(id_, spec, start + number, type_) for number, (id_, spec) in enumerate(zip(ids, batch, strict=True))]
        await store.task_submit(tasks)


def _task(id_: UUID, spec: _TaskSpec, number: int, type_: str) -> NewTask:
    return NewTask(
        id=id_,
        tenant_id=spec.tenant_id,
        partition=partition_of(id_),
        queue=QUEUE,
        type=type_,
        target="{}",
        payload=json.dumps(payload(number, spec.tag)).encode(),
        origin=Origin.SUBMIT,
        priority=100,
        max_attempts=3,
        retry="{}",
        timeout_seconds=3600.0,
        labels="{}",
    )
