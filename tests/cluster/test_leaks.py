"""A cluster under steady load for LEAK_SECONDS: memory, descriptors, threads, sessions, WAL and dead tuples stay bounded."""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.cluster.fleet import DatabaseReader, Site
from tests.cluster.harness import Cluster, Node, running_cluster
from tests.support.processes import wait_until

SECONDS = float(os.environ.get("LEAK_SECONDS", "60"))
_SAMPLES = 60
_SCHEDULES = 50
# What the nodes may grow by from the second to the last quarter of the run. Each of the three connections to an SQLite file has
# a page cache of 32 MB, which fills up as the file grows.
_MAX_GROWTH_MEGABYTES = {"sqlite": 96.0, "postgres": 24.0}
_MAX_NEW_FILES = 8
_MAX_WAL_MEGABYTES = {"sqlite": 32.0, "postgres": 1200.0}
_MAX_DEAD_TUPLES = 50_000


class Sample(NamedTuple):
    """The sum over all nodes, and the database."""

    megabytes: float
    files: int
    threads: int
    sessions: int
    wal_megabytes: float
    dead_tuples: int

    def __str__(self) -> str:
        return (
            f"{self.megabytes:.1f} MB, {self.files} files, {self.threads} threads, {self.sessions} sessions, "
            f"WAL {self.wal_megabytes:.1f} MB, {self.dead_tuples} dead tuples"
        )


def _process(node: Node) -> tuple[float, int, int]:
    folder = Path(f"/proc/{node.process.pid}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) / 1024, len(os.listdir(folder / "fd")), int(status["Threads"])


def _database(reader: DatabaseReader, url: str) -> tuple[int, float, int]:
    if url.startswith("sqlite:///"):
        wal = Path(url.removeprefix("sqlite:///") + "-wal")
        return 0, wal.stat().st_size / 2**20 if wal.exists() else 0.0, 0
    sessions = reader.value("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'everbeat%'")
    wal = reader.value("SELECT (sum(size) / 1048576)::float FROM pg_ls_waldir()")
    return sessions, wal, reader.value("SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables")


def _sample(cluster: Cluster, reader: DatabaseReader) -> Sample:
    nodes = [_process(node) for node in cluster.nodes]
    megabytes, files, threads = (sum(part) for part in zip(*nodes, strict=True))
    return Sample(megabytes, files, threads, *_database(reader, cluster.url))


@contextlib.contextmanager
def _load(site: Site, base: str) -> Iterator[None]:
    """Requests of many kinds, one after another, with a pause: keys, batches, cancels, pages, event streams, schedule edits."""
    stopping = threading.Event()

    def run() -> None:
        with httpx.Client(base_url=base, trust_env=False, timeout=15) as client:
            for number in itertools.count():
                if stopping.wait(0.05):
                    return
                key = {"Idempotency-Key": f"leak-{number % 50}-{number // 1000}"}
                task = client.post(
                    "/v1/tasks", json={"type": "effect", "queue": site.queue, "payload": {"n": number % 50}}, headers=key
                )
                client.post("/v1/tasks/batch", json={"tasks": [{"type": "effect", "queue": site.queue}] * 3})
                delayed = client.post("/v1/tasks", json={"type": "effect", "queue": site.queue, "delay_seconds": 60}).json()
                client.post(f"/v1/tasks/{delayed['id']}/cancel")
                client.get("/v1/tasks", params={"limit": 50})
                client.get(f"/v1/tasks/{task.json()['id']}/attempts")
                client.get("/v1/no-such-route")
                if number % 10 == 0:
                    client.patch(f"/v1/schedules/job-{number % _SCHEDULES}", json={"priority": number % 1000})
                    with contextlib.suppress(httpx.HTTPError), client.stream("GET", "/v1/events", timeout=1):
                        pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(30)


@pytest.mark.chaos
@pytest.mark.timeout(SECONDS + 180)
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_nothing_grows_without_bound_under_steady_load(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'everbeat.sqlite'}" if database == "sqlite" else request.getfixturevalue("postgres_url")
    with running_cluster(url, tmp_path) as cluster:
        for _ in range(1 if database == "sqlite" else 2):
            cluster.add()
        site = Site(url, cluster.nodes[0].base, tmp_path)
        cluster.register(_SCHEDULES, target={"kind": "worker", "queue": site.queue, "type": "effect"})
        site.worker("--concurrency", "20")
        samples: list[Sample] = []
        with contextlib.closing(site), _load(site, cluster.nodes[-1].base):
            begins = time.monotonic()
            for number in range(1, _SAMPLES + 1):
                until = begins + SECONDS * number / _SAMPLES
                wait_until(lambda until=until: time.monotonic() >= until, SECONDS + 10)  # type: ignore[misc]
                samples.append(_sample(cluster, site.reader))
                if number % 6 == 0:
                    print(f"  {time.monotonic() - begins:5.0f} s: {samples[-1]}", flush=True)
        audit = cluster.assert_accounted()
        print({key: audit[key] for key in ("expected", "fired", "skipped", "missing", "doubled")})
        _check(samples, database)


def _check(samples: list[Sample], database: str) -> None:
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    grown = {field: _median(late, field) - _median(early, field) for field in Sample._fields}
    print(f"growth from the second to the last quarter: {grown}")
    assert grown["megabytes"] <= _MAX_GROWTH_MEGABYTES[database]
    assert grown["files"] <= _MAX_NEW_FILES
    assert grown["threads"] <= 2
    assert max(sample.sessions for sample in samples) <= 2 * 15
    assert max(sample.wal_megabytes for sample in samples) <= _MAX_WAL_MEGABYTES[database]
    assert max(sample.dead_tuples for sample in samples) <= _MAX_DEAD_TUPLES


def _median(samples: list[Sample], field: str) -> float:
    return float(statistics.median(getattr(sample, field) for sample in samples))
