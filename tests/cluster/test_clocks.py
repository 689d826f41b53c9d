"""Wrong clocks: a node's clock does not affect firing, and a jump of the database clock neither doubles nor loses a tick."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import Cluster, running_cluster
from tests.support.clockshim import ClockShim
from tests.support.postgres import PostgresAdmin, PostgresServer
from tests.support.processes import wait_until


@pytest.fixture
def shifting_postgres(postgres_binaries: Path, clock_shim: ClockShim) -> Iterator[PostgresServer]:
    """A PostgreSQL server whose clock the test can set."""
    with PostgresServer(env=clock_shim.env()) as server:
        yield server


def _entries(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = cluster.alive.get(f"/v1/schedules/{name}/ticks", limit=1000)["items"]
    return [entry for entry in entries if entry["outcome"] in ("fired", "skipped")]


@pytest.mark.parametrize("hours", [1, -1])
def test_a_node_whose_clock_is_an_hour_wrong_fires_on_time(
    postgres_server: PostgresAdmin, postgres_url: str, tmp_path: Path, clock_shim: ClockShim, hours: int
) -> None:
    clock_shim.set_offset(hours * 3600)
    with running_cluster(postgres_url, tmp_path) as cluster:
        cluster.add(env=clock_shim.env())
        cluster.add()
        cluster.wait_for_owners(2)
        cluster.register(20)
        cluster.wait_firing(postgres_server, 80)
        assert cluster.worst_lag(postgres_server) < 1.5
        earliest = "SELECT count(*) FROM ticks WHERE fired_at < scheduled_for"
        assert postgres_server.fetch_value(earliest, cluster.database) == 0
        assert cluster.assert_accounted()["skipped"] == {}


@pytest.mark.timeout(180)
def test_five_minutes_without_a_node_are_caught_up_by_policy(
    shifting_postgres: PostgresServer, tmp_path: Path, clock_shim: ClockShim
) -> None:
    """The clock moves forward by five minutes while no node runs."""
    url = shifting_postgres.url(shifting_postgres.create_database())
    with running_cluster(url, tmp_path) as cluster:
        cluster.add()
        for policy in ("latest", "all", "none"):
            cluster.register(5, prefix=policy, cron="*/10 * * * * *", catch_up=policy)
        cluster.register(5, prefix="graceless", cron="*/10 * * * * *", catch_up="all", misfire_grace_seconds=60)
        cluster.wait_firing(shifting_postgres, 20)
        cluster.nodes[0].process.kill9()
        clock_shim.set_offset(300)
        cluster.add()
        cluster.wait_firing(shifting_postgres, 40, 60)
        _check_policies(cluster)
        cluster.assert_accounted()


def _check_policies(cluster: Cluster) -> None:
    skipped = {policy: _skipped(cluster, f"{policy}-0") for policy in ("latest", "all", "none", "graceless")}
    # 300 s are 30 ticks, plus or minus one at each end.
    assert 28 <= sum(entry.get("count", 1) for entry in skipped["latest"]) <= 30
    assert 29 <= sum(entry.get("count", 1) for entry in skipped["none"]) <= 31
    assert 22 <= sum(entry.get("count", 1) for entry in skipped["graceless"]) <= 25
    assert skipped["all"] == []
    assert all(len(skipped[policy]) == 1 for policy in ("latest", "none", "graceless")), skipped
    # Catching up is limited to twice the normal rate, so not all ticks have fired yet.
    fired = [entry for entry in _entries(cluster, "all-0") if entry["outcome"] == "fired" and entry["lag_ms"] > 5000]
    assert 1 <= len(fired) < 29
    assert [entry["scheduled_for"] for entry in fired] == sorted(entry["scheduled_for"] for entry in fired)


def _skipped(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    def fires_again() -> list[dict[str, Any]]:
        entries = _entries(cluster, name)
        return entries if entries and entries[-1]["outcome"] == "fired" and len(entries) > 3 else []

    entries = wait_until(fires_again, 40, lambda: f"{name} firing again: {_entries(cluster, name)}")
    assert all(entry["reason"] == "misfire" for entry in entries if entry["outcome"] == "skipped")
    return [entry for entry in entries if entry["outcome"] == "skipped"]


@pytest.mark.timeout(180)
def test_a_database_clock_that_jumps_an_hour_ahead_and_back_doubles_no_tick(
    shifting_postgres: PostgresServer, tmp_path: Path, clock_shim: ClockShim
) -> None:
    url = shifting_postgres.url(shifting_postgres.create_database())
    with running_cluster(url, tmp_path) as cluster:
        for _ in range(2):
            cluster.add()
        cluster.wait_for_owners(2)
        cluster.register(20, cron="* * * * * *", catch_up="latest")
        cluster.wait_firing(shifting_postgres, 40)
        clock_shim.set_offset(3600)
        cluster.wait_for_owners(2, 40)
        cluster.wait_firing(shifting_postgres, 60, 60)
        audit = cluster.assert_accounted()
        assert audit["skipped"]["misfire"] > 20 * 3500
        assert audit["fired"] < 20 * 120
        clock_shim.set_offset(0)
        wait_until(lambda: any("database_clock_set_back" in node.process.logs() for node in cluster.nodes), 20, "an alert")
        cluster.wait_for_owners(2, 40)
        audit = cluster.alive.get("/v1/audit")
        assert (audit["missing"], audit["doubled"]) == (0, 0)
        # A new schedule follows the current clock. The old schedules wait until the clock reaches their next tick again.
        cluster.register(3, prefix="after")
        assert wait_until(lambda: _entries(cluster, "after-0"), 20, "a tick after the step back")
