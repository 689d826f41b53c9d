"""Bad links between a node and its database: what a node logs, and that a node that cannot keep up gives its work away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, Node, running_cluster
from tests.support.postgres import PostgresServer
from tests.support.processes import wait_until
from tests.support.proxy import ProxyThread, postgres_executes


def _pass(seconds: float) -> None:
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until, seconds + 10)


def _flap(proxy: ProxyThread, seconds: float) -> None:
    """The link is cut and restored each second."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        proxy.cut()
        _pass(0.5)
        proxy.heal()
        _pass(0.5)


def _freeze(proxy: ProxyThread, seconds: float) -> None:
    """The link is half-open, for longer than every timeout, and then for short times."""
    proxy.freeze()
    _pass(seconds / 2)
    proxy.thaw()
    for _ in range(int(seconds / 2)):
        _pass(0.4)
        proxy.freeze()
        _pass(0.6)
        proxy.thaw()


def _lose_replies(proxy: ProxyThread, seconds: float) -> None:
    proxy.proxy.losable = postgres_executes
    proxy.proxy.lose_reply_probability = 0.3
    _pass(seconds)
    proxy.proxy.lose_reply_probability = 0.0


def unstructured_lines(node: Node) -> list[str]:
    """The lines of the log, of stdout and stderr, that are not JSON objects."""
    return [line for line in node.process.logs().splitlines() if not _is_object(line)]


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "disturb",
    [_freeze, pytest.param(_flap, marks=pytest.mark.chaos), pytest.param(_lose_replies, marks=pytest.mark.chaos)],
)
def test_a_node_with_a_bad_link_logs_only_structured_lines(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path, disturb: Callable[[ProxyThread, float], None]
) -> None:
    with ProxyThread("127.0.0.1", postgres_server.port) as proxy, running_cluster(postgres_url, tmp_path) as cluster:
        node = cluster.add(url=proxy.through(postgres_url))
        cluster.register(20)
        cluster.wait_firing(postgres_server, 20)
        disturb(proxy, 6)
        cluster.wait_for_owners(1, 30)
        cluster.wait_firing(postgres_server, 40)
        assert node.process.terminate() == 0
        assert unstructured_lines(node) == []
        assert [line for line in node.process.logs().splitlines() if "Traceback" in line or "library_log" in line] == []


def _partitions(cluster: Cluster, node: Node) -> int:
    own = node.process.name.rpartition("-")[0]
    return next((one["partitions"] for one in cluster.view()["nodes"] if one["name"] == own and one["is_alive"]), 0)


@pytest.mark.timeout(120)
def test_a_node_whose_link_flaps_gives_its_partitions_to_the_other(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    with ProxyThread("127.0.0.1", postgres_server.port) as proxy, running_cluster(postgres_url, tmp_path) as cluster:
        cluster.add("healthy")
        flapping = cluster.add("flapping", url=proxy.through(postgres_url), flags=("--behind-after-seconds", "0.25"))
        cluster.wait_for_owners(2)
        cluster.register(50)
        cluster.wait_firing(postgres_server, 100)
        until = time.monotonic() + 30
        while "capacity_lowered" not in flapping.process.logs() and time.monotonic() < until:
            proxy.freeze()
            _pass(0.75)
            proxy.thaw()
            _pass(0.15)  # not in step with the ticks
        print(f"capacity lowered after {30 - (until - time.monotonic()):.1f} s")
        wait_until(lambda: "capacity_lowered" in flapping.process.logs(), 5, lambda: flapping.process.logs()[-3000:])
        wait_until(lambda: 0 < _partitions(cluster, flapping) < 90, 10, lambda: f"{cluster.view()['nodes']}")
        assert "everbeat_node_capacity 0.25" in flapping.client.get("/metrics").text
        cluster.wait_for_owners(2, 15)
        cluster.assert_accounted()


@pytest.mark.chaos
@pytest.mark.timeout(180)
def test_a_slow_link_moves_nothing_if_the_node_keeps_up(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    """200 ms each way is slow, but a node can fire in batches."""
    with ProxyThread("127.0.0.1", postgres_server.port) as proxy, running_cluster(postgres_url, tmp_path) as cluster:
        cluster.add("near")
        far = cluster.add("far", url=proxy.through(postgres_url))
        cluster.wait_for_owners(2)
        cluster.register(200)
        cluster.wait_firing(postgres_server, 400)
        proxy.proxy.delay_seconds = 0.2
        _pass(30)
        worst = cluster.worst_lag(postgres_server, "scheduled_for > now() - interval '15 seconds'")
        print(f"worst lag after 15 s at 200 ms each way: {worst:.2f} s; log: {'capacity_lowered' in far.process.logs()}")
        assert worst < 2 or "capacity_lowered" in far.process.logs()
        proxy.proxy.delay_seconds = 0.0
        cluster.assert_accounted()
