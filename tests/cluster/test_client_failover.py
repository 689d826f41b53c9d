"""Clients and workers with the URLs of two nodes: real servers on one database, killed and frozen."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from everbeat import Everbeat
from tests.support.processes import ServerProcess, free_port, wait_until

APP = '''
import asyncio
from pathlib import Path
from everbeat import Everbeat

eb = Everbeat(name="shop")
FOLDER = Path(__file__).parent

@eb.task
async def greet(name: str) -> str:
    return f"Hello, {name}"

@eb.task
async def hold(ctx) -> int:
    """Run until the file exists."""
    (FOLDER / "began").touch()
    while not (FOLDER / "go").exists():
        await asyncio.sleep(0.01)
    return ctx.attempt
'''
# A poll of 10 seconds, its margin of 5, and the next claim.
MAX_FROZEN_SECONDS = 17.0


class TwoNodes:
    """Two nodes on one SQLite file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "shop.py").write_text(APP)
        self.ports = [free_port(), free_port()]
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        self.nodes = [self._node(number) for number in (0, 1)]

    def _node(self, number: int) -> ServerProcess:
        database = f"sqlite:///{self.folder}/everbeat.db"
        arguments = ("dev", "--port", str(self.ports[number]), "--database-url", database)
        return ServerProcess(*arguments, folder=self.folder, name=f"node-{number}")

    def start(self, number: int) -> None:
        self.nodes[number].start()
        self.nodes[number].wait_ready(f"{self.urls[number]}/readyz", 30)

    def worker(self, lease_seconds: str) -> ServerProcess:
        path = os.pathsep.join([str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {"PYTHONPATH": path, "EVERBEAT_URL": ",".join(self.urls)}
        arguments = ("worker", "shop:eb", "--lease-seconds", lease_seconds)
        return ServerProcess(*arguments, folder=self.folder, env=env, name="worker")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[TwoNodes]:
    made = TwoNodes(tmp_path)
    made.start(0)
    made.start(1)
    with contextlib.ExitStack() as stack:
        for node in made.nodes:
            stack.push(node)
        yield made


@pytest.fixture
def eb(two: TwoNodes) -> Iterator[Everbeat]:
    made = Everbeat(two.urls)
    yield made
    made.close()


def test_calls_move_to_the_other_node_and_stay_there(two: TwoNodes, eb: Everbeat) -> None:
    first = eb.submit("greet", {"name": "Ann"}, key="once")
    two.nodes[0].kill9()
    started = time.monotonic()
    assert eb.submit("greet", {"name": "Ann"}, key="once") == first
    assert time.monotonic() - started < 1.0

    async def later() -> str:
        return (await (await eb.submit_async("greet", {"name": "Bob"})).get_async()).state

    assert asyncio.run(later()) == "ready"
    two.start(0)
    two.nodes[1].kill9()
    assert first.get().state == "ready"


def test_calls_leave_a_frozen_node_after_its_timeout(two: TwoNodes, eb: Everbeat) -> None:
    eb.submit("greet", {"name": "Ann"})
    two.nodes[0].sigstop()
    started = time.monotonic()
    eb.submit("greet", {"name": "Bob"})
    assert 4.0 < time.monotonic() - started < 8.0
    started = time.monotonic()
    assert len(eb.client.tasks.list()) == 2
    assert time.monotonic() - started < 1.0
    two.nodes[0].sigcont()


def test_a_worker_continues_on_the_other_node(two: TwoNodes, eb: Everbeat) -> None:
    with two.worker("5"):
        assert eb.submit("greet", {"name": "Ann"}).wait("20s") == "Hello, Ann"
        running = eb.submit("hold")
        wait_until(lambda: (two.folder / "began").exists(), 10)
        two.nodes[0].kill9()
        started = time.monotonic()
        assert eb.submit("greet", {"name": "Bob"}).wait("20s") == "Hello, Bob"
        assert time.monotonic() - started < 3.0
        # Longer than the lease: heartbeats arrive at the other node.
        time.sleep(5.5)
        (two.folder / "go").touch()
        assert running.wait("20s") == 1


@pytest.mark.chaos
def test_a_worker_leaves_a_frozen_node(two: TwoNodes, eb: Everbeat) -> None:
    other = Everbeat(two.urls[1])
    with two.worker("30"):
        assert eb.submit("greet", {"name": "Ann"}).wait("20s") == "Hello, Ann"
        two.nodes[0].sigstop()
        started = time.monotonic()
        assert other.submit("greet", {"name": "Bob"}).wait("40s") == "Hello, Bob"
        assert time.monotonic() - started < MAX_FROZEN_SECONDS
        two.nodes[0].sigcont()
    other.close()
