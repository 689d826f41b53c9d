"""The workers under test, an `everbeat worker` or `eb.running()` in one process, and the rate at which they drain a queue."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tests.support.processes import ServerProcess

from bench.client import post, send_all
from bench.databases import BenchDatabase, Scale, cpu_seconds
from bench.noop import QUEUE, producer
from bench.queues import INSERT_BATCH, payload
from bench.records import VARIABLE, Records

CONCURRENCY = 100
_LOG_TAIL = 4000
_WAIT_SECONDS = 30


class Drain(NamedTuple):
    """The rate of a drain, and the CPU time of each process."""

    rate: float
    cpu: str


def drained_tasks(scale: Scale) -> int:
    return 10_000 if scale.is_quick else 50_000


@contextlib.contextmanager
def working(database: BenchDatabase, records: Records, url: str, **env: str) -> Iterator[ServerProcess]:
    """Run an `everbeat worker` for the server, with additional environment variables."""
    args = ("worker", "bench.noop:eb", "--concurrency", str(CONCURRENCY))
    with _running(ServerProcess(*args, folder=database.folder, env={**_env(url, records), **env}, name="worker")) as process:
        yield process


@contextlib.contextmanager
def embedding(database: BenchDatabase, records: Records, loop: str = "uvloop") -> Iterator[ServerProcess]:
    """Run a process with `eb.running()` on the database."""
    command = (sys.executable, "-m", "bench.embedded", loop, str(CONCURRENCY))
    process = ServerProcess(folder=database.folder, env=_env(database.url, records), name="embedded", command=command)
    with _running(process):
        yield process


def _env(url: str, records: Records) -> dict[str, str]:
    return {"EVERBEAT_URL": url, VARIABLE: str(records.path)}


@contextlib.contextmanager
def _running(process: ServerProcess) -> Iterator[ServerProcess]:
    with process:
        try:
            yield process
        except BaseException:
            print(process.logs()[-_LOG_TAIL:])
            raise
        process.terminate()


def batches(port: int, count: int, type_: str = "noop", *, keyed: bool = False) -> list[bytes]:
    """Return requests that submit `count` tasks. `keyed`: each with an idempotency key, as the SDK sends them."""
    tasks = [{"type": type_, "queue": QUEUE, "payload": payload(number)} for number in range(count)]
    requests = []
    for start in range(0, count, INSERT_BATCH):
        headers = {"Idempotency_Key": f"sdk-batch-{start:026x}"} if keyed else {}
        requests.append(post(port, "/v1/tasks/batch", {"tasks": tasks[start : start + INSERT_BATCH]}, **headers))
    return requests


async def submit_over_http(port: int, count: int, type_: str = "noop") -> None:
    await send_all(port, batches(port, count, type_), 2)


async def submit_in_process(database: BenchDatabase, count: int) -> None:
    app, noop = producer(database.url)
    await asyncio.to_thread(noop.submit_many, [payload(number) for number in range(count)])
    await asyncio.to_thread(app.close)


async def drain(database: BenchDatabase, records: Records, count: int, pids: Mapping[str, int]) -> Drain:
    """Measure from the start of the first handler until no task is left."""
    await records.wait(1, _WAIT_SECONDS)
    before = _cpu(database, pids)
    await records.wait(count)
    deadline = time.monotonic() + _WAIT_SECONDS
    while left := await database.count_live():
        if time.monotonic() > deadline:
            raise TimeoutError(f"all handlers ran, but {left:,} tasks are left")
        await asyncio.sleep(0.01)
    ended = time.time()
    after = _cpu(database, pids)
    found = records.read()
    if len(found) != count:
        raise RuntimeError(f"{len(found):,} handlers ran for {count:,} tasks")
    seconds = ended - min(record.at for record in found)
    cpu = ", ".join(f"{name} {after[name] - before[name]:.1f} s" for name in after if after[name] > before[name])
    return Drain(count / seconds, f"{cpu} of CPU in {seconds:.1f} s")


def _cpu(database: BenchDatabase, pids: Mapping[str, int]) -> dict[str, float]:
    return {**{name: cpu_seconds(pid) for name, pid in pids.items()}, "database": database.database_cpu_seconds()}
