"""Nodes that crash, freeze, restart or stop: every tick still fires once."""

from __future__ import annotations

import time
from pathlib import Path

from tests.cluster.harness import LEASE_SECONDS, running_cluster
from tests.support.postgres import PostgresAdmin
from tests.support.processes import wait_until


def test_a_killed_owner_is_replaced_within_its_lease_and_a_second(
    postgres_server: PostgresAdmin, postgres_url: str, tmp_path: Path
) -> None:
    with running_cluster(postgres_url, tmp_path) as cluster:
        for _ in range(3):
            cluster.add()
        cluster.wait_for_owners(3)
        cluster.register()
        cluster.wait_firing(postgres_server, 80)
        cluster.nodes[1].process.kill9()
        cluster.wait_for_owners(2, LEASE_SECONDS + 5)
        cluster.wait_firing(postgres_server, 200)
        assert cluster.worst_lag(postgres_server) < LEASE_SECONDS + 1
        audit = cluster.assert_accounted()
        assert audit["skipped"] == {}


def test_a_frozen_owner_is_fenced_when_it_resumes(postgres_server: PostgresAdmin, postgres_url: str, tmp_path: Path) -> None:
    with running_cluster(postgres_url, tmp_path) as cluster:
        for _ in range(3):
            cluster.add()
        cluster.wait_for_owners(3)
        cluster.register()
        cluster.wait_firing(postgres_server, 80)
        frozen = cluster.nodes[2]
        identity = next(node["id"] for node in cluster.view()["nodes"] if node["name"] == "node2")
        frozen.process.sigstop()
        frozen_at = time.monotonic()
        cluster.wait_for_owners(2, LEASE_SECONDS + 5)
        wait_until(lambda: time.monotonic() > frozen_at + 2 * LEASE_SECONDS, 20, "twice the lease")
        frozen.process.sigcont()
        cluster.wait_for_owners(3)
        cluster.wait_firing(postgres_server, 120)
        # The frozen node fired only under epochs that it owned, so no epoch has two owners.
        owned = "SELECT s.partition FROM ticks t JOIN schedules s ON s.id = t.schedule_id GROUP BY s.partition, t.epoch"
        doubled_epochs = f"SELECT count(*) FROM ({owned} HAVING count(DISTINCT t.node) > 1) AS shared"
        assert postgres_server.fetch_value(doubled_epochs, cluster.database) == 0
        assert cluster.fired(postgres_server, f"node = '{identity}'") > 0
        audit = cluster.assert_accounted()
        assert audit["skipped"] == {}


def test_a_short_freeze_keeps_ownership(postgres_server: PostgresAdmin, postgres_url: str, tmp_path: Path) -> None:
    with running_cluster(postgres_url, tmp_path) as cluster:
        for _ in range(2):
            cluster.add(flags=("--lease-seconds", "8"))
        cluster.wait_for_owners(2)
        cluster.register(20)
        epochs = [one["epoch"] for one in cluster.view()["partitions"]]
        cluster.nodes[1].process.sigstop()
        frozen_at = time.monotonic()
        wait_until(lambda: time.monotonic() > frozen_at + 4, 20, "half the lease")
        cluster.nodes[1].process.sigcont()
        cluster.wait_firing(postgres_server, 60)
        assert [one["epoch"] for one in cluster.view()["partitions"]] == epochs
        cluster.assert_accounted()


def test_after_a_clean_stop_other_nodes_take_over_within_a_second(
    postgres_server: PostgresAdmin, postgres_url: str, tmp_path: Path
) -> None:
    with running_cluster(postgres_url, tmp_path) as cluster:
        for _ in range(3):
            cluster.add()
        cluster.wait_for_owners(3)
        cluster.register()
        cluster.wait_firing(postgres_server, 80)
        moment = postgres_server.fetch_value("SELECT now()", cluster.database)
        assert cluster.nodes[0].process.terminate() == 0
        cluster.wait_for_owners(2, 5)
        cluster.wait_firing(postgres_server, 120)
        assert cluster.worst_lag(postgres_server, f"scheduled_for > '{moment}'") < 1.0
        assert cluster.assert_accounted()["skipped"] == {}


def test_a_rolling_deploy_misses_no_tick(postgres_server: PostgresAdmin, postgres_url: str, tmp_path: Path) -> None:
    with running_cluster(postgres_url, tmp_path) as cluster:
        for _ in range(2):
            cluster.add()
        cluster.wait_for_owners(2)
        cluster.register()
        for old in list(cluster.nodes):
            cluster.add()
            assert old.process.terminate() == 0
            cluster.wait_firing(postgres_server, 80)
        cluster.wait_for_owners(2)
        assert cluster.worst_lag(postgres_server) < 1.5
        assert cluster.assert_accounted()["skipped"] == {}


def test_nodes_killed_one_after_another_lose_no_tick(postgres_server: PostgresAdmin, postgres_url: str, tmp_path: Path) -> None:
    with running_cluster(postgres_url, tmp_path) as cluster:
        for _ in range(2):
            cluster.add()
        cluster.register()
        for victim in list(cluster.nodes):
            cluster.wait_firing(postgres_server, 40)
            victim.process.kill9()
            cluster.add()
        cluster.wait_firing(postgres_server, 160, 40)
        cluster.assert_accounted()


def test_two_nodes_with_the_same_name_are_two_nodes(postgres_server: PostgresAdmin, postgres_url: str, tmp_path: Path) -> None:
    with running_cluster(postgres_url, tmp_path) as cluster:
        cluster.add("same")
        cluster.add("same")
        cluster.wait_for_owners(2)
        assert len({node["id"] for node in cluster.view()["nodes"]}) == 2
        cluster.register(20)
        cluster.wait_firing(postgres_server, 60)
        assert cluster.assert_accounted()["skipped"] == {}


def test_a_second_signal_ends_a_node_immediately(postgres_url: str, tmp_path: Path) -> None:
    import signal

    with running_cluster(postgres_url, tmp_path) as cluster:
        node = cluster.add()
        node.process.sigstop()
        node.process.send_signal(signal.SIGTERM)
        node.process.send_signal(signal.SIGINT)
        node.process.sigcont()
        assert node.process.wait_exit(10) in (0, 130)
