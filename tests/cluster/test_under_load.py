"""Faults while clients submit and complete: wrong clocks, a killed backend, a pooler, a promotion, two processes on one file.

And what clients ask for under faults: triggers, backfills and replaced tasks. Run by `make chaos`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.cluster.fleet import Site
from tests.cluster.harness import Node, running_cluster
from tests.cluster.test_lease_faults import Load
from tests.support.clockshim import ClockShim
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresAdmin, PostgresServer, PostgresStandby
from tests.support.processes import wait_until
from tests.support.proxy import ProxyThread, postgres_executes

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]


def _pass(seconds: float) -> None:
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, seconds + 10)


@contextlib.contextmanager
def _loaded(url: str, nodes: list[Node], folder: Path) -> Iterator[tuple[Site, Load]]:
    """A worker on each node, and clients that submit and complete. At the end, everything acknowledged is done once."""
    site = Site(url, nodes[0].base, folder)
    with contextlib.closing(site):
        for node in nodes:
            site.worker("--concurrency", "10", url=node.base)
        with Load(site, [node.base for node in nodes]) as load:
            load.wait_more()
            yield site, load
            load.wait_more()
        _check_submitted(load, site)


def _check_submitted(load: Load, site: Site) -> None:
    """Every acknowledged task is done, once, and no task was created twice. The tasks of ticks are in another queue."""
    own = f"queue = '{site.queue}'"
    live = f"SELECT count(*) FROM tasks WHERE {own}"
    wait_until(lambda: site.reader.value(live) == 0, 60, lambda: f"{site.reader.value(live)} left{site.logs()}")
    assert not load.unexpected, load.unexpected[:3]
    assert {one.id for one in site.reader.history(own)} == load.submitted
    site.reader.assert_explained(load.submitted, outcomes=frozenset({"lost", "released"}))
    assert all("Traceback" not in worker.logs() for worker in site.workers)
    print(f"{len(load.submitted)} submitted, {len(load.completed)} completed by the test, {dict(load.statuses)}")


@contextlib.contextmanager
def _strobing(shim: ClockShim) -> Iterator[None]:
    """Step the clock ahead and back, up to an hour, five times a second."""
    stopping = threading.Event()

    def strobe() -> None:
        for offset in itertools.cycle((3600, -3600, 0, 0.7, -0.7, 40, -1800)):
            if stopping.wait(0.2):
                return
            shim.set_offset(offset)

    thread = threading.Thread(target=strobe, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        shim.set_offset(0)


def test_a_node_with_a_strobing_clock_fires_on_time(
    postgres_server: PostgresAdmin, postgres_url: str, tmp_path: Path, clock_shim: ClockShim
) -> None:
    with running_cluster(postgres_url, tmp_path) as cluster:
        cluster.add(env=clock_shim.env())
        cluster.add()
        cluster.wait_for_owners(2)
        cluster.register(20)
        with _loaded(postgres_url, cluster.nodes, tmp_path), _strobing(clock_shim):
            cluster.wait_firing(postgres_server, 200)
        print(f"worst lag {cluster.worst_lag(postgres_server):.2f} s")
        assert cluster.worst_lag(postgres_server) < 2.5
        assert cluster.assert_accounted()["skipped"] == {}


def test_a_database_clock_that_is_stepped_under_load_loses_and_doubles_nothing(
    postgres_binaries: Path, tmp_path: Path, clock_shim: ClockShim
) -> None:
    """Ahead by two minutes: leases expire, and ticks are caught up on. Back by a minute: nothing fires again."""
    with PostgresServer(env=clock_shim.env()) as server:
        url = server.url(server.create_database())
        with running_cluster(url, tmp_path) as cluster:
            for _ in range(2):
                cluster.add()
            cluster.wait_for_owners(2)
            cluster.register(10, catch_up="latest")
            with _loaded(url, cluster.nodes, tmp_path):
                clock_shim.set_offset(120)
                cluster.wait_for_owners(2, 40)
                cluster.wait_firing(server, 30, 60)
                clock_shim.set_offset(60)
                _pass(4)
                clock_shim.set_offset(120)  # the clock reaches the present again
                cluster.wait_for_owners(2, 40)
                cluster.wait_firing(server, 30, 60)
            audit = cluster.assert_accounted()
            assert audit["skipped"].get("misfire", 0) >= 10 * 100


def test_a_backend_that_the_kernel_kills_costs_nothing_acknowledged(private_postgres: PostgresServer, tmp_path: Path) -> None:
    """As the OOM killer does: PostgreSQL then ends all sessions and recovers."""
    url = private_postgres.url(private_postgres.create_database())
    with running_cluster(url, tmp_path) as cluster:
        cluster.add()
        cluster.register(20)
        with _loaded(url, cluster.nodes, tmp_path) as (_, load):
            pid = "SELECT pid FROM pg_stat_activity WHERE application_name = 'everbeat-api' LIMIT 1"
            for _ in range(2):
                os.kill(private_postgres.fetch_value(pid, cluster.database), signal.SIGKILL)
                load.wait_more()
        cluster.assert_accounted()


def test_a_node_that_the_kernel_kills_under_load_is_replaced(postgres_url: str, tmp_path: Path) -> None:
    with running_cluster(postgres_url, tmp_path) as cluster:
        serving, victim = cluster.add(), cluster.add()
        cluster.wait_for_owners(2)
        cluster.register(20)
        with _loaded(postgres_url, [serving], tmp_path):
            victim.process.kill9()
            cluster.wait_for_owners(1, 15)
        cluster.assert_accounted()


def test_a_standby_that_is_promoted_under_load_has_everything_acknowledged(
    private_postgres: PostgresServer, tmp_path: Path
) -> None:
    database = private_postgres.create_database()
    with PostgresStandby(private_postgres) as standby:
        hosts = f"127.0.0.1:{private_postgres.port},127.0.0.1:{standby.port}"
        url = f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write"
        with running_cluster(url, tmp_path) as cluster:
            for _ in range(2):
                cluster.add()
            cluster.wait_for_owners(2)
            cluster.register(20)
            with _loaded(url, cluster.nodes, tmp_path):
                private_postgres.stop("immediate")
                standby.promote()
                cluster.wait_for_owners(2, 40)
            cluster.assert_accounted()


def test_a_pooler_that_restarts_under_load_loses_nothing_acknowledged(
    postgres_server: PostgresAdmin, postgres_url: str, pgbouncer: PgBouncer, pooled_url: str, tmp_path: Path
) -> None:
    with running_cluster(postgres_url, tmp_path) as cluster:
        cluster.add(url=pooled_url, flags=("--database-pooling", "transaction"))
        cluster.register(20)
        with _loaded(postgres_url, cluster.nodes, tmp_path) as (_, load):
            for _ in range(3):
                pgbouncer.restart()
                load.wait_more()
        cluster.wait_firing(postgres_server, 40)
        cluster.assert_accounted()


def test_two_processes_on_one_sqlite_file_under_load(sqlite_path: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{sqlite_path}"
    with running_cluster(url, tmp_path) as cluster:
        for _ in range(2):
            cluster.add()
        cluster.wait_for_owners(2)
        cluster.register(20)
        with _loaded(url, cluster.nodes, tmp_path) as (_, load):
            for _ in range(3):
                load.wait_more()
            cluster.nodes[1].process.kill9()
            cluster.nodes[1].start()
        cluster.wait_for_owners(2, 30)
        cluster.assert_accounted()


# What clients ask for, while responses of the database are lost


def _until_response(client: httpx.Client, path: str, body: object) -> Any:
    """Repeat a request with one key until it has a response, as a client does that does not know whether it was executed."""
    headers = {"Idempotency-Key": str(uuid4())}

    def attempt() -> Any:
        response = client.post(path, json=body, headers=headers)
        assert response.status_code in (200, 201, 503), response.text
        return response.json() if response.is_success else None

    return wait_until(attempt, 60, path)


@contextlib.contextmanager
def _losing_replies(proxy: ProxyThread) -> Iterator[None]:
    proxy.proxy.losable = postgres_executes
    proxy.proxy.lose_reply_probability = 0.1
    try:
        yield
    finally:
        proxy.proxy.lose_reply_probability = 0.0


def test_triggers_and_backfills_are_done_once_although_replies_are_lost(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    with (
        ProxyThread("127.0.0.1", postgres_server.port, seed=11) as proxy,
        running_cluster(postgres_url, tmp_path) as cluster,
    ):
        node = cluster.add(url=proxy.through(postgres_url))
        cluster.register(3, prefix="yearly", cron="0 * * * *")
        end = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        window = {"from": (end - timedelta(hours=24)).isoformat(), "to": end.isoformat()}
        with _losing_replies(proxy):
            for number in range(30):
                _until_response(node.client, f"/v1/schedules/yearly-{number % 3}/trigger", {})
            for number in range(3):
                _until_response(node.client, f"/v1/schedules/yearly-{number}/backfill", window)
            wait_until(lambda: proxy.proxy.lost_replies >= 5, 20, lambda: f"{proxy.proxy.lost_replies} replies lost")
        count = "SELECT count(*) FROM tasks WHERE origin = '{}'"
        assert postgres_server.fetch_value(count.format("trigger"), cluster.database) == 30
        assert postgres_server.fetch_value(count.format("backfill"), cluster.database) == 3 * 24
        repeated = "SELECT 1 FROM tasks WHERE origin = 'backfill' GROUP BY schedule_id, scheduled_for HAVING count(*) > 1"
        twice = f"SELECT count(*) FROM ({repeated}) AS t"
        assert postgres_server.fetch_value(twice, cluster.database) == 0


def test_cancel_previous_leaves_one_task_of_a_schedule_although_nodes_are_killed(
    postgres_server: PostgresAdmin, postgres_url: str, tmp_path: Path
) -> None:
    with running_cluster(postgres_url, tmp_path) as cluster:
        serving, victim = cluster.add(), cluster.add()
        cluster.wait_for_owners(2)
        with contextlib.closing(Site(postgres_url, serving.base, tmp_path)) as site:
            site.worker("--concurrency", "20")
            target = {"kind": "worker", "queue": site.queue, "type": "slow"}
            cluster.register(5, overlap="cancel_previous", target=target, payload={"seconds": 30})
            cluster.wait_firing(postgres_server, 15)
            victim.process.kill9()
            cluster.wait_for_owners(1, 15)
            cluster.wait_firing(postgres_server, 15)
            paused = [serving.client.post(f"/v1/schedules/job-{number}/pause").status_code for number in range(5)]
            assert paused == [200] * 5
            unfinished = "SELECT count(*) FROM tasks WHERE NOT cancel_requested AND state <> 'held' GROUP BY schedule_id"
            wait_until(
                lambda: all(count == 1 for (count,) in site.reader.rows(unfinished)),
                30,
                lambda: f"one task of each schedule: {site.reader.rows('SELECT state, cancel_requested FROM tasks')}",
            )
            pairs = "task_history AS h JOIN tasks AS t USING (schedule_id)"
            newest = f"SELECT count(*) FROM {pairs} WHERE h.scheduled_for > t.scheduled_for AND NOT t.cancel_requested"
            assert site.reader.value(newest) == 0, "an older task was kept, and a newer one cancelled"
            assert set(site.reader.rows("SELECT DISTINCT state FROM task_history")) <= {("cancelled",)}
        cluster.assert_accounted()
