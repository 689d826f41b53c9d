"""A database that stops, loses replies or freezes: nothing acknowledged is lost, and nothing fires twice."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from tests.cluster.harness import running_cluster
from tests.support.postgres import PostgresAdmin, PostgresServer
from tests.support.processes import wait_until
from tests.support.proxy import ProxyThread, postgres_executes


def _wait(seconds: float) -> None:
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, seconds + 10, "time to pass")


@pytest.mark.timeout(180)
def test_a_database_outage_of_twenty_seconds_loses_no_tick(private_postgres: PostgresServer, tmp_path: Path) -> None:
    url = private_postgres.url(private_postgres.create_database())
    with running_cluster(url, tmp_path) as cluster:
        for _ in range(2):
            cluster.add()
        cluster.wait_for_owners(2)
        cluster.register(20)
        cluster.register(5, prefix="newest", catch_up="latest")
        cluster.wait_firing(private_postgres, 40)
        private_postgres.stop("fast")
        stopped_at = time.monotonic()
        response = cluster.alive.client.get("/v1/schedules")
        assert response.status_code == 503
        assert int(response.headers["Retry-After"]) >= 1
        assert cluster.alive.client.get("/healthz").status_code == 200
        assert cluster.alive.client.get("/readyz").status_code == 503
        wait_until(lambda: time.monotonic() > stopped_at + 20, 40, "twenty seconds without a database")
        private_postgres.start()
        cluster.wait_for_owners(2, 30)
        cluster.wait_firing(private_postgres, 60)
        audit = cluster.assert_accounted(90)
        assert set(audit["skipped"]) <= {"misfire"}  # from the schedules that catch up only on the newest tick
        assert audit["skipped"].get("misfire", 0) > 0


def test_a_database_crash_loses_nothing_acknowledged(private_postgres: PostgresServer, tmp_path: Path) -> None:
    url = private_postgres.url(private_postgres.create_database())
    with running_cluster(url, tmp_path) as cluster:
        cluster.add()
        cluster.register(20)
        cluster.wait_firing(private_postgres, 40)
        private_postgres.stop("immediate")
        private_postgres.start()
        cluster.wait_firing(private_postgres, 60, 40)
        audit = cluster.assert_accounted()
        assert len(audit["schedules"]) == 20


def test_responses_lost_after_the_commit_double_nothing(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    with (
        ProxyThread("127.0.0.1", postgres_server.port, seed=7) as thread,
        running_cluster(postgres_url, tmp_path) as cluster,
    ):
        for _ in range(2):
            cluster.add(url=thread.through(postgres_url))
        cluster.wait_for_owners(2)
        cluster.register(20)
        cluster.wait_firing(postgres_server, 20)
        thread.proxy.losable = postgres_executes
        thread.proxy.lose_reply_probability = 0.1
        _wait(12)
        thread.proxy.lose_reply_probability = 0.0
        assert thread.proxy.lost_replies > 5
        cluster.wait_for_owners(2, 30)
        cluster.wait_firing(postgres_server, 60, 40)
        cluster.assert_accounted()


def test_a_registration_whose_response_was_lost_can_be_repeated(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    with (
        ProxyThread("127.0.0.1", postgres_server.port) as thread,
        running_cluster(postgres_url, tmp_path) as cluster,
    ):
        node = cluster.add(url=thread.through(postgres_url), flags=("--scan-seconds", "5"))
        body = {"name": "once", "cron": "0 0 1 1 *", "target": {"kind": "worker", "type": "t"}}
        headers = {"Idempotency-Key": "first-try"}
        thread.drop_replies_after(lambda request: b"COMMIT" in request)
        first = node.client.post("/v1/schedules", json=body, headers=headers)
        assert first.status_code == 503
        again = node.client.post("/v1/schedules", json=body, headers=headers)
        assert again.status_code == 201, again.text
        assert [one["id"] for one in node.get("/v1/schedules")["items"]] == [again.json()["id"]]


def test_a_node_cut_off_from_the_database_is_replaced_and_rejoins(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    with (
        ProxyThread("127.0.0.1", postgres_server.port) as thread,
        running_cluster(postgres_url, tmp_path) as cluster,
    ):
        cluster.add()
        cluster.add(url=thread.through(postgres_url))
        cluster.wait_for_owners(2)
        cluster.register(20)
        cluster.wait_firing(postgres_server, 40)
        thread.freeze()  # half-open: connections stay open, but no data passes
        cluster.wait_for_owners(1, 15)
        cluster.wait_firing(postgres_server, 60)
        thread.thaw()
        cluster.wait_for_owners(2, 30)
        cluster.wait_firing(postgres_server, 60)
        cluster.assert_accounted()


def test_nodes_started_before_their_database_wait_for_it(private_postgres: PostgresServer, tmp_path: Path) -> None:
    url = private_postgres.url(private_postgres.create_database())
    private_postgres.stop()
    with running_cluster(url, tmp_path) as cluster:
        for _ in range(3):
            cluster.add(wait=False)
        wait_until(lambda: all("waiting_for_database" in node.process.logs() for node in cluster.nodes), 20, "the nodes wait")
        responses = {path: cluster.alive.client.get(path) for path in ("/healthz", "/readyz", "/v1/schedules")}
        assert [response.status_code for response in responses.values()] == [200, 503, 503]
        assert responses["/v1/schedules"].json()["type"] == "urn:everbeat:problem:database-unavailable"
        assert [int(responses[path].headers["Retry-After"]) for path in ("/readyz", "/v1/schedules")] == [1, 1]
        private_postgres.start()
        for node in cluster.nodes:
            node.process.wait_ready(f"{node.base}/readyz", 30)
        cluster.wait_for_owners(3)
        cluster.register(10)
        cluster.wait_firing(private_postgres, 20)
        cluster.assert_accounted()


@pytest.mark.timeout(120)
def test_a_faulty_schedule_is_paused_and_affects_no_other(
    postgres_server: PostgresAdmin, postgres_url: str, tmp_path: Path
) -> None:
    with running_cluster(postgres_url, tmp_path) as cluster:
        node = cluster.add()
        for prefix in ("job", "more", "most"):
            cluster.register(1000, prefix=prefix, cron="*/3 * * * * *")
        postgres_server.execute("UPDATE schedules SET timezone = 'Mars/Olympus' WHERE name = 'job-13'", cluster.database)
        wait_until(lambda: node.get("/v1/schedules/job-13")["status"] == "paused", 20, "the faulty schedule is paused")
        faulty = node.get("/v1/schedules/job-13")
        assert "Mars/Olympus" in faulty["fault"]
        cluster.wait_firing(postgres_server, 6000, 60)
        audit = cluster.assert_accounted()
        assert [one["name"] for one in audit["faulty"]] == ["job-13"]
        assert "schedule_faulted" in node.process.logs()
        fixed = node.client.patch("/v1/schedules/job-13", json={"timezone": "Europe/Berlin"})
        assert (fixed.status_code, fixed.json()["status"], fixed.json()["fault"]) == (200, "active", None), fixed.text
        wait_until(lambda: node.get("/v1/schedules/job-13")["last_tick_at"], 15, "the repaired schedule fires")
        assert isinstance(httpx.get(f"{node.base}/metrics", trust_env=False).text, str)
