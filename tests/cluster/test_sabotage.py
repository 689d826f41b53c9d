"""Sabotage of a running cluster is reported within a minute: as a finding, a metric, an event, and a failed heartbeat.

The long form runs with the default settings. The short form has short intervals and one act of sabotage.
"""

from __future__ import annotations

import contextlib
import http.server
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.cluster.harness import Cluster, Node, running_cluster
from tests.support.clockshim import ClockShim
from tests.support.postgres import PostgresAdmin, PostgresServer
from tests.support.processes import wait_until

SHORT = (
    "--audit-interval-seconds",
    "1",
    "--heartbeat-interval-seconds",
    "2",
    "--late-after-seconds",
    "1",
    "--scan-seconds",
    "0.5",
)


class Heartbeats(NamedTuple):
    """What the service outside has received: the paths, and the texts of failures."""

    url: str
    paths: list[str]
    texts: list[str]

    @property
    def failures(self) -> int:
        return sum(path.endswith("/fail") for path in self.paths)


@contextlib.contextmanager
def heartbeat_service() -> Iterator[Heartbeats]:
    paths: list[str] = []
    texts: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            length = int(self.headers.get("content-length") or 0)
            texts.append(self.rfile.read(length).decode())
            self.send_response(200)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Write nothing to stderr."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Heartbeats(f"http://127.0.0.1:{server.server_port}/ping/cluster", paths, texts)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class EventLog:
    """Collects the findings that the event stream of a node reports."""

    def __init__(self, node: Node) -> None:
        self.kinds: list[str] = []
        self._client = httpx.Client(base_url=node.base, trust_env=False, timeout=30)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with (
            contextlib.suppress(httpx.HTTPError, RuntimeError),
            self._client.stream("GET", "/v1/events?types=cluster") as stream,
        ):
            for line in stream.iter_lines():
                if line.startswith("data:") and '"finding"' in line and '"open"' in line:
                    self.kinds.append(line.split('"kind":"')[1].split('"')[0])


def _metric(node: Node, name: str) -> float:
    text = node.client.get("/metrics").text
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))


def _findings(node: Node, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.get("/v1/audit/findings", kind=kind, limit=1000)["items"]
    return found


class Act(NamedTuple):
    """An act of sabotage, the kind of its finding, and the metric that must not be zero."""

    do: Callable[[Cluster, PostgresAdmin, Node], object]
    kind: str
    metric: str


def _delete_rows(cluster: Cluster, database: PostgresAdmin, _victim: Node) -> None:
    database.execute("DELETE FROM ticks WHERE scheduled_for > now() - interval '20 seconds'", cluster.database)


def _hide_a_partition(cluster: Cluster, database: PostgresAdmin, _victim: Node) -> None:
    far = "next_tick_at = now() + interval '9 years', due_at = now() + interval '9 years'"
    one = "(SELECT partition FROM schedules LIMIT 1)"
    database.execute(f"UPDATE schedules SET {far} WHERE partition = {one}", cluster.database)


def _wedge_ownership(cluster: Cluster, database: PostgresAdmin, _victim: Node) -> None:
    lease = "lease_until = now() + interval '9 years', lease_seconds = 1000000000"
    database.execute(f"UPDATE partitions SET owner = gen_random_uuid(), epoch = epoch + 1, {lease}", cluster.database)


def _freeze(_cluster: Cluster, _database: PostgresAdmin, victim: Node) -> None:
    victim.process.sigstop()


ACTS = {
    "rows deleted": Act(_delete_rows, "missing", "everbeat_missing_ticks"),
    "partition hidden": Act(_hide_a_partition, "overdue", "everbeat_overdue_schedules"),
    "ownership wedged": Act(_wedge_ownership, "overdue", "everbeat_overdue_schedules"),
    "node frozen": Act(_freeze, "overdue", "everbeat_overdue_schedules"),
}


def _assert_reported(cluster: Cluster, database: PostgresAdmin, act: Act, flags: tuple[str, ...], within: float) -> None:
    with heartbeat_service() as heartbeats:
        flags = (*flags, "--heartbeat-url", heartbeats.url)
        victim = cluster.add("victim", flags=flags)
        watcher = cluster.add("watcher", flags=(*flags, "--roles", "api"))
        cluster.register(20)
        cluster.wait_firing(database, 60)
        wait_until(lambda: heartbeats.paths, 90, "the first heartbeat")
        assert heartbeats.failures == 0, heartbeats.texts
        events = EventLog(watcher)
        time.sleep(1)  # the stream has begun
        act.do(cluster, database, victim)
        began = time.monotonic()
        reported = {
            "finding": lambda: _findings(watcher, act.kind),
            "metric": lambda: _metric(watcher, act.metric) > 0,
            "event": lambda: act.kind in events.kinds,
            "heartbeat": lambda: heartbeats.failures > 0,
        }
        for what, condition in reported.items():
            # The heartbeat has an interval of its own, and follows the finding.
            limit = within if what != "heartbeat" else within + 65
            left = max(1.0, began + limit - time.monotonic())
            wait_until(condition, left, lambda what=what: f"{what}: {watcher.get('/v1/audit/findings')['items'][:3]}")  # type: ignore[misc]
        victim.process.sigcont()


@pytest.mark.timeout(240)
def test_a_hidden_partition_is_reported(postgres_server: PostgresAdmin, postgres_url: str, tmp_path: Path) -> None:
    with running_cluster(postgres_url, tmp_path) as cluster:
        _assert_reported(cluster, postgres_server, ACTS["partition hidden"], SHORT, 60)


@pytest.mark.chaos
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ACTS)
def test_sabotage_is_reported_within_a_minute(
    postgres_server: PostgresAdmin, postgres_url: str, tmp_path: Path, name: str
) -> None:
    with running_cluster(postgres_url, tmp_path) as cluster:
        _assert_reported(cluster, postgres_server, ACTS[name], (), 60)


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_a_database_clock_that_is_set_back_is_reported_within_a_minute(
    postgres_binaries: Path, clock_shim: ClockShim, tmp_path: Path
) -> None:
    with PostgresServer(env=clock_shim.env()) as server:
        clock_shim.set_offset(3600)
        url = server.url(server.create_database())

        def set_back(*_: object) -> None:
            clock_shim.set_offset(0)

        with running_cluster(url, tmp_path) as cluster:
            act = Act(set_back, "clock_set_back", "everbeat_clock_set_back_total")
            _assert_reported(cluster, server, act, (), 60)
