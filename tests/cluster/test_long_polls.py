"""Thousands of idle workers, and workers that disconnect while they wait: tasks reach connected workers at a low cost."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.fleet import Site
from tests.cluster.harness import Node, running_cluster
from tests.support.processes import ServerProcess, free_port, wait_until

MANY = 5_000


@pytest.fixture
def many() -> Iterator[int]:
    """The number of connections that the limit on open files allows here and in the server, which inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY + 1_000 if hard == resource.RLIM_INFINITY else min(MANY + 1_000, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield min(MANY, wanted - 1_000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class LongPolls:
    """Long polls without a response yet, each on a separate socket."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.sockets: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> LongPolls:
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()
        self._selector.close()

    def open(self, count: int, queue: str, *, wait_seconds: float = 30, lease_seconds: float = 30) -> None:
        claim = {"queues": [queue], "max": 1, "wait_seconds": wait_seconds, "lease_seconds": lease_seconds}
        for number in range(count):
            body = json.dumps({"worker": f"idle-{number}", **claim}).encode()
            head = f"POST /v1/worker/claim HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
            poll = socket.create_connection(("127.0.0.1", self._port), timeout=10)
            with contextlib.suppress(ConnectionError):  # refused: `responses` returns an empty text
                poll.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
            self.sockets.append(poll)
            self._selector.register(poll, selectors.EVENT_READ)

    def responses(self, seconds: float) -> list[str]:
        """Return the responses that arrive within this time, and an empty text for each connection that was closed."""
        found = []
        for key, _ in self._selector.select(seconds):
            assert isinstance(key.fileobj, socket.socket)
            try:
                found.append(key.fileobj.recv(65_536).decode())
            except ConnectionError:
                found.append("")
            self._selector.unregister(key.fileobj)
        return found

    def disconnect(self, *, reset: bool = False) -> None:
        for poll in self.sockets:
            if poll in self._selector.get_map():
                self._selector.unregister(poll)
            if reset:
                poll.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            poll.close()
        self.sockets = []


def _memory_megabytes(node: Node) -> float:
    lines = Path(f"/proc/{node.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def _cpu_seconds(node: Node) -> float:
    fields = Path(f"/proc/{node.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("database", ["postgres", pytest.param("sqlite", marks=pytest.mark.chaos)])
def test_thousands_of_idle_polls_cost_little_and_one_of_them_gets_the_task(
    database: str, request: pytest.FixtureRequest, tmp_path: Path, many: int
) -> None:
    url = f"sqlite:///{tmp_path / 'x.sqlite'}" if database == "sqlite" else request.getfixturevalue("postgres_url")
    with running_cluster(url, tmp_path) as cluster:
        # Longer than the timeout of the other tests: a slow machine needs time for thousands of new connections.
        node = cluster.add(flags=("--database-timeout-seconds", "20"))
        before = _memory_megabytes(node)
        with LongPolls(node.port) as polls:
            polls.open(many, "idle")
            assert node.get("/readyz")  # on an additional connection
            used, since = _cpu_seconds(node), time.monotonic()
            assert polls.responses(2) == []
            busy = (_cpu_seconds(node) - used) / (time.monotonic() - since)
            sent = time.monotonic()
            response = node.client.post("/v1/tasks", json={"type": "t", "queue": "idle"})
            assert response.status_code == 201
            received = polls.responses(10)
            took = time.monotonic() - sent
            assert [response.json()["id"] in one for one in received] == [True]
            assert polls.responses(0.5) == []
            grown = _memory_megabytes(node) - before
            print(f"{many} polls: {took * 1000:.0f} ms to the task, {busy:.0%} of a core, {grown:.0f} MB")
            assert took < 1
            assert busy < 0.5
            assert grown * 1024 / many < 60, f"{grown:.0f} MB for {many} polls"
            started_at = time.monotonic()
            assert node.process.terminate(20) == 0
            assert time.monotonic() - started_at < 10


def test_connections_beyond_the_file_limit_are_refused_and_the_others_are_served(tmp_path: Path) -> None:
    """The database keeps the files it needs: ticks fire for the polls that were accepted, and health checks are answered."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    limited = ("/bin/sh", "-c", 'ulimit -n 360 && exec "$0" "$@"', sys.executable, "-m", "everbeat")
    options = ("--database-url", f"sqlite:///{tmp_path / 'x.sqlite'}", "--port", str(port))
    target = {"kind": "worker", "type": "t", "queue": "burst"}
    every_second = {"name": "every-second", "every_seconds": 1, "overlap": "allow", "target": target}
    answers: list[str] = []

    def served() -> list[str]:
        answers.extend(polls.responses(0.5))
        return [one for one in answers if '"schedule":"every-second"' in one]

    with (
        ServerProcess("serve", *options, "--max-connections-per-address", "1000", folder=tmp_path, command=limited) as server,
        LongPolls(port) as polls,
    ):
        server.wait_ready(f"{base}/readyz", 40)
        polls.open(400, "burst")
        with httpx.Client(base_url=base, trust_env=False, timeout=10) as client:
            assert client.get("/readyz").is_success
        polls.disconnect()
        wait_until(lambda: _is_created(base, "/v1/schedules", every_second), 10, "a new connection is accepted")
        polls.open(400, "burst")
        wait_until(lambda: len(served()) >= 3, 20, "ticks fire for the polls")
        refused = sum(not one or " 503 " in one for one in answers)
        assert 100 < refused < 350
        assert "Traceback" not in server.logs()


def _is_created(base: str, path: str, body: dict[str, Any]) -> bool:
    with httpx.Client(base_url=base, trust_env=False, timeout=10) as client:
        return client.post(path, json=body).status_code == 201


@pytest.mark.parametrize("reset", [False, True])
def test_clients_that_disconnect_while_they_wait_lose_no_task(site: Site, reset: bool) -> None:
    with LongPolls(int(site.base.rpartition(":")[2])) as polls:
        polls.open(50, site.queue)
        assert polls.responses(0.3) == []
        polls.disconnect(reset=reset)
        assert site.client.get("/readyz").is_success
        tasks = site.submit_many("t", 60)
        taken: list[dict[str, Any]] = []

        def has_all() -> bool:
            taken.extend(site.raw().claim(100))
            return len(taken) == 60

        # Tasks that were given to a disconnected worker are released immediately, and the attempt does not count.
        wait_until(has_all, 2, lambda: f"{len(taken)} of 60")
        assert {one["attempt"] for one in taken} == {1}
        assert sorted(one["id"] for one in taken) == sorted(map(str, tasks))
        assert set(site.raw().complete(*taken)) == {"ok"}
        site.reader.assert_explained(tasks, outcomes=frozenset({"released"}))
