"""Crashes of servers and databases under load, and workers killed at random: acknowledged tasks exist exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import pytest

from everbeat.core.errors import StoreUnavailable
from everbeat.store.postgres.store import PostgresStore
from tests.cluster.fleet import DatabaseReader, RawWorker, Site
from tests.cluster.harness import Cluster, Node, running_cluster
from tests.support.postgres import PostgresAdmin, PostgresServer
from tests.support.processes import wait_until, wait_until_async
from tests.support.proxy import ProxyThread, postgres_executes

SEED = int(os.environ.get("CHAOS_SEED", str(random.SystemRandom().randrange(10_000))))
CHAOS_TASKS = int(os.environ.get("CHAOS_TASKS", "10000"))
CHAOS_WORKERS = int(os.environ.get("CHAOS_WORKERS", "8"))

DATABASES = pytest.mark.parametrize("database", ["sqlite", "postgres"])


def _url(database: str, request: pytest.FixtureRequest, folder: Path) -> str:
    if database == "sqlite":
        return f"sqlite:///{folder / 'everbeat.sqlite'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@contextlib.contextmanager
def _site(url: str, node: Node, folder: Path) -> Iterator[Site]:
    site = Site(url, node.base, folder)
    try:
        yield site
    finally:
        site.close()


def _count_live(reader: DatabaseReader) -> int:
    return int(reader.value("SELECT count(*) FROM tasks"))


# Workers killed at random


def _kill_at_random(cluster: Cluster, site: Site, *, tasks: int, workers: int, kills: int, deadline_seconds: float) -> None:
    """Kill up to `kills` workers before the deadline. The last tasks are not disturbed, so that the test ends."""
    print(f"\nseed {SEED}")
    rng = random.Random(SEED)
    ids: list[UUID] = []
    while len(ids) < tasks:
        ids += site.submit_many("short", min(1000, tasks - len(ids)), payload={"seconds": 0.25}, max_attempts=100)
    bases = [node.base for node in cluster.nodes]
    processes = [site.worker("--concurrency", "10", url=bases[number % len(bases)]) for number in range(workers)]
    wait_until(lambda: _count_live(site.reader) < tasks, 30, lambda: f"tasks are being completed{site.logs()}")
    killed = 0
    while killed < kills and _count_live(site.reader) > tasks // 5:
        at = rng.randrange(workers)
        processes[at].kill9()
        processes[at] = site.worker("--concurrency", "10", url=rng.choice(bases))
        killed += 1
        pause = time.monotonic() + rng.uniform(0.2, 0.8)
        wait_until(lambda pause=pause: time.monotonic() > pause, 10)  # type: ignore[misc]
    wait_until(
        lambda: _count_live(site.reader) == 0, deadline_seconds, lambda: f"{_count_live(site.reader)} tasks left{site.logs()}"
    )
    counts = site.reader.assert_explained(ids, outcomes=frozenset({"lost", "released"}))
    print(f"{tasks} tasks, {killed} workers killed: {dict(counts)}")
    assert killed > 0
    assert counts["lost"] > 0
    assert len(site.reader.history()) == tasks


@DATABASES
def test_every_task_is_done_once_although_workers_are_killed_at_random(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = _url(database, request, tmp_path)
    with running_cluster(url, tmp_path) as cluster:
        for _ in range(1 if database == "sqlite" else 2):
            cluster.add()
        with _site(url, cluster.nodes[0], tmp_path) as site:
            _kill_at_random(cluster, site, tasks=1500, workers=4, kills=6, deadline_seconds=60)


@pytest.mark.chaos
@pytest.mark.timeout(1200)
@DATABASES
def test_ten_thousand_tasks_and_eight_workers_killed_at_random(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = _url(database, request, tmp_path)
    with running_cluster(url, tmp_path) as cluster:
        for _ in range(1 if database == "sqlite" else 2):
            cluster.add()
        with _site(url, cluster.nodes[0], tmp_path) as site:
            _kill_at_random(cluster, site, tasks=CHAOS_TASKS, workers=CHAOS_WORKERS, kills=1000, deadline_seconds=300)


# Crashes under load


class Load:
    """Clients that submit singly and in batches, and one that completes. Each repeats a request until it has a response."""

    def __init__(self, site: Site, bases: list[str]) -> None:
        self._site = site
        self._bases = bases
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.submitted: set[UUID] = set()
        self.completed: set[UUID] = set()
        self.statuses: Counter[int] = Counter()
        self.unexpected: list[str] = []
        kinds = [self._single, self._single, self._single, self._batch, self._complete]
        self._threads = [threading.Thread(target=self._run, args=(kind,)) for kind in kinds]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads)

    def wait_more(self, count: int = 100) -> None:
        """Wait until more requests of every kind are acknowledged."""
        before = (len(self.submitted), len(self.completed))
        wait_until(
            lambda: len(self.submitted) > before[0] + count and len(self.completed) > before[1],
            20,
            lambda: f"more than {before}: {len(self.submitted)}, {len(self.completed)} {self.statuses}",
        )

    def _run(self, work: Callable[[httpx.Client], None]) -> None:
        with httpx.Client(base_url=random.choice(self._bases), trust_env=False, timeout=10) as client:
            while not self._stopping.is_set():
                work(client)
                self._stopping.wait(0.01)

    def _post(self, client: httpx.Client, path: str, body: object, key: str = "") -> httpx.Response | None:
        """Return the response, or None if there was none or the database was unavailable. Record unexpected responses."""
        try:
            response = client.post(path, json=body, headers={"idempotency-key": key} if key else {})
        except httpx.TransportError:
            return None
        with self._lock:
            self.statuses[response.status_code] += 1
            if response.status_code not in (200, 201, 503) or (
                response.status_code == 503 and "retry-after" not in response.headers
            ):
                self.unexpected.append(f"{path}: {response.status_code} {response.headers} {response.text}")
        return response if response.is_success else None

    def _repeat_until_response(self, client: httpx.Client, path: str, body: object, key: str = "") -> httpx.Response:
        give_up_at = time.monotonic() + 40
        while time.monotonic() < give_up_at:
            if (response := self._post(client, path, body, key)) is not None:
                return response
            threading.Event().wait(0.1)
        raise AssertionError(f"{path} got no response for 40 s")

    def _single(self, client: httpx.Client) -> None:
        response = self._repeat_until_response(
            client, "/v1/tasks", {"type": "short", "queue": self._site.queue}, f"one-{uuid4()}"
        )
        with self._lock:
            self.submitted.add(UUID(response.json()["id"]))

    def _batch(self, client: httpx.Client) -> None:
        tasks = [{"type": "short", "queue": self._site.queue, "idempotency_key": f"many-{uuid4()}"} for _ in range(20)]
        response = self._repeat_until_response(client, "/v1/tasks/batch", {"tasks": tasks})
        with self._lock:
            self.submitted.update(UUID(id_) for id_ in response.json()["ids"])
        self._stopping.wait(0.1)

    def _complete(self, client: httpx.Client) -> None:
        claim = {"worker": "completer", "queues": [self._site.queue], "max": 5, "wait_seconds": 0.5, "lease_seconds": 5}
        response = self._post(client, "/v1/worker/claim", claim)
        if response is None or not (claimed := response.json()["tasks"]):
            return
        results = [{"id": task["id"], "fence": task["fence"], "result": "c"} for task in claimed]
        response = self._repeat_until_response(client, "/v1/worker/complete", {"worker": "completer", "results": results})
        with self._lock:
            self.completed.update(UUID(one["id"]) for one in response.json()["results"] if one["status"] == "ok")


def _check(load: Load, site: Site) -> None:
    """After the load, workers reconnect and finish the remaining tasks. Then verify the database."""
    wait_until(lambda: _count_live(site.reader) == 0, 60, lambda: f"{_count_live(site.reader)} left{site.logs()}")
    assert not load.unexpected, load.unexpected[:3]
    done = site.reader.history()
    assert {one.id for one in done} == load.submitted  # every acknowledged task, and none created twice
    site.reader.assert_explained(load.submitted, outcomes=frozenset({"lost", "released"}))
    by_completer = {one.id for one in done if one.worker == "completer"}
    assert load.completed <= by_completer
    assert all("Traceback" not in worker.logs() for worker in site.workers)
    print(f"{len(load.submitted)} submitted, {len(load.completed)} completed by the test, {dict(load.statuses)}")


@DATABASES
def test_a_server_killed_under_load_loses_nothing_acknowledged(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = _url(database, request, tmp_path)
    with running_cluster(url, tmp_path) as cluster:
        node = cluster.add()
        with _site(url, node, tmp_path) as site:
            site.worker("--concurrency", "20")
            with Load(site, [node.base]) as load:
                for _ in range(2):
                    load.wait_more()
                    node.process.kill9()
                    node.start()
                load.wait_more()
            _check(load, site)
            assert load.completed
            assert "server_available" in site.workers[0].logs()


def test_a_database_restarted_under_load_loses_nothing_acknowledged(private_postgres: PostgresServer, tmp_path: Path) -> None:
    url = private_postgres.url(private_postgres.create_database())
    with running_cluster(url, tmp_path) as cluster:
        nodes = [cluster.add() for _ in range(2)]
        with _site(url, nodes[0], tmp_path) as site:
            for node in nodes:
                site.worker("--concurrency", "20", url=node.base)
            with Load(site, [node.base for node in nodes]) as load:
                load.wait_more()
                private_postgres.restart("fast")
                load.wait_more()
                private_postgres.restart("immediate")
                load.wait_more()
            _check(load, site)
            assert all("Traceback" not in node.process.logs() for node in nodes)


def test_database_responses_lost_under_load_lose_and_double_nothing(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    """It is unknown whether the transaction was committed, so each request gets a 503 and can be repeated."""
    with (
        ProxyThread("127.0.0.1", postgres_server.port, seed=5) as proxy,
        running_cluster(postgres_url, tmp_path) as cluster,
    ):
        node = cluster.add(url=proxy.through(postgres_url))
        with _site(postgres_url, node, tmp_path) as site:
            site.worker("--concurrency", "20")
            with Load(site, [node.base]) as load:
                load.wait_more()
                proxy.proxy.losable = postgres_executes
                proxy.proxy.lose_reply_probability = 0.03
                wait_until(lambda: proxy.proxy.lost_replies >= 10, 25, lambda: f"{proxy.proxy.lost_replies} lost")
                proxy.proxy.lose_reply_probability = 0.0
                load.wait_more()
            _check(load, site)


def test_a_node_without_its_listener_still_finds_tasks_of_another_node(
    postgres_server: PostgresAdmin, postgres_url: str, tmp_path: Path
) -> None:
    kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'everbeat-listen'"
    with running_cluster(postgres_url, tmp_path) as cluster:
        here, there = cluster.add(), cluster.add()
        slowest = 0.0
        for number in range(3):
            with httpx.Client(base_url=there.base, trust_env=False, timeout=30) as client:
                received_at: list[float] = []

                def poll(client: httpx.Client = client, received_at: list[float] = received_at) -> None:
                    claimed = RawWorker(client, "far").claim(wait_seconds=20)
                    received_at.append(time.monotonic())
                    assert RawWorker(client, "far").complete(*claimed) == ["ok"]

                thread = threading.Thread(target=poll)
                thread.start()
                wait_until(lambda: "task_flows" in there.client.get("/metrics").text, 5)
                assert postgres_server.fetch_value(kill, cluster.database) >= (2 if number == 0 else 0)
                sent = time.monotonic()
                assert here.client.post("/v1/tasks", json={"type": "t", "queue": "far"}).status_code == 201
                thread.join(25)
                slowest = max(slowest, received_at[0] - sent)
        print(f"slowest {slowest:.2f} s")
        assert slowest < 2.5


async def test_a_database_restart_is_always_reported_as_unavailable(
    private_postgres: PostgresServer,
) -> None:
    """A half-closed driver connection must never cause a 500 response."""
    store = PostgresStore(private_postgres.url(private_postgres.create_database()), listen=False, timeout_seconds=5)
    await store.migrate()
    await store.open()
    response_count, errors, is_stopping = 0, [], False

    async def query() -> None:
        nonlocal response_count
        while not is_stopping:
            try:
                await store.clock()
                response_count += 1
            except StoreUnavailable:
                pass
            except Exception as error:
                errors.append(error)
            await asyncio.sleep(0)

    querying = [asyncio.create_task(query()) for _ in range(16)]
    for _ in range(4):
        wanted = response_count + 300
        await wait_until_async(lambda wanted=wanted: response_count > wanted, 20, "responses")  # type: ignore[misc]
        await asyncio.to_thread(private_postgres.restart, "fast")
    wanted = response_count + 300
    await wait_until_async(lambda: response_count > wanted, 20, "responses")
    is_stopping = True
    await asyncio.gather(*querying)
    await store.close()
    assert errors == []
