"""Bad links between a node and its database: what a node logs, and that a node that cannot keep up gives its work away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.harness import Node, running_cluster
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
