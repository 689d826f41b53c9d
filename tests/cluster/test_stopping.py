"""Workers and servers that are told to stop: what runs may end, the rest goes back at once, and nothing waits for a lease."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.cluster.fleet import Site
from tests.cluster.harness import running_cluster
from tests.support.processes import wait_until


def _states(site: Site) -> dict[str, int]:
    """Live tasks of the queue by state; `counted` are those that have an attempt on their account."""
    rows = site.books.rows(f"SELECT state, attempt FROM tasks WHERE queue = '{site.queue}'")
    found = {state: sum(1 for row in rows if row[0] == state) for state in ("ready", "running")}
    return {**found, "counted": sum(row[1] for row in rows if row[0] == "ready")}


def test_a_worker_told_to_stop_ends_what_runs_and_gives_back_what_waits(site: Site) -> None:
    gate = site.folder / "gate"
    worker = site.worker("--concurrency", "2", "--grace-seconds", "20")
    # Short tasks first: a worker that gets through them fast claims ahead, and so has some that wait behind the long ones.
    site.submit_many("short", 500)
    long = site.submit_many("stubborn", 20, payload={"gate": str(gate)})
    wait_until(lambda: len(site.journal.events(event="start")) == 2, 20, "two long tasks")
    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: _states(site) == {"ready": 18, "running": 2, "counted": 0}, 4, lambda: f"{_states(site)}")
    taken = site.raw().claim(18)
    assert [one["attempt"] for one in taken] == [1] * 18
    assert worker.is_running()
    gate.touch()
    assert worker.wait_exit(10) == 0
    assert set(site.raw().complete(*taken)) == {"ok"}
    site.books.assert_explained(long, outcomes=frozenset({"released"}))
    assert len(site.journal.events(event="effect")) == 2


def test_what_does_not_end_within_the_grace_time_is_given_back_uncounted(site: Site) -> None:
    worker = site.worker("--grace-seconds", "0.5")
    tasks = [site.submit("slow", payload={"seconds": 60}), site.submit("stubborn", payload={"gate": "/nowhere"})]
    for task in tasks:
        site.journal.wait(task, "start")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait_exit(10) == 0
    taken = site.raw().claim(2)
    assert [(one["attempt"], one["fence"]) for one in taken] == [(1, 2), (1, 2)]
    assert len(site.journal.events(tasks[0], "cancelled")) == 1
    assert set(site.raw().complete(*taken)) == {"ok"}
    site.books.assert_explained(tasks, outcomes=frozenset({"released"}))


def test_a_second_signal_ends_a_worker_now(site: Site) -> None:
    worker = site.worker("--grace-seconds", "300")
    tasks = [site.submit("slow", payload={"seconds": 60}), site.submit("stubborn", payload={"gate": "/nowhere"})]
    for task in tasks:
        site.journal.wait(task, "start")
    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: "worker_stopping" in worker.logs(), 10, worker.logs)
    began = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait_exit(10) == 130
    assert time.monotonic() - began < 4
    taken = site.raw().claim(2)
    assert [(one["attempt"], one["fence"]) for one in taken] == [(1, 2), (1, 2)]


def test_workers_that_come_and_go_under_load_leave_nothing_behind(sqlite_site: Site) -> None:
    """A claim is always under way then; what it brings to a worker that is stopping must not wait for its lease."""
    site = sqlite_site
    tasks = site.submit_many("short", 2000)
    for _ in range(2):
        worker = site.worker("--concurrency", "20")
        left = _states(site)["ready"]
        wait_until(lambda left=left: _states(site)["ready"] < left - 100, 20, "work under way")  # type: ignore[misc]
        assert worker.terminate(15) == 0
        states = _states(site)
        assert (states["running"], states["counted"]) == (0, 0), f"{states}{site.logs()}"
    site.worker("--concurrency", "50")
    wait_until(lambda: _states(site)["ready"] + _states(site)["running"] == 0, 20, lambda: f"{_states(site)}")
    site.books.assert_explained(tasks, outcomes=frozenset({"released"}))


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_server_told_to_stop_sends_workers_home_and_ends(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """While they are idle, and under load; they come back by themselves, and no attempt was lost on the way."""
    url = f"sqlite:///{tmp_path / 'x.sqlite'}" if database == "sqlite" else request.getfixturevalue("postgres_url")
    with running_cluster(url, tmp_path) as cluster:
        node = cluster.add()
        site = Site(url, node.base, tmp_path)
        try:
            # Longer than the server is away: a lease that ends meanwhile would be lost by right.
            site.worker("--concurrency", "20", "--lease-seconds", "120")
            first = site.submit("effect")
            site.wait_state(first)
            began = time.monotonic()
            assert node.process.terminate(15) == 0
            assert time.monotonic() - began < 5
            node.start()
            tasks = site.submit_many("short", 1500)
            wait_until(lambda: _states(site)["ready"] < 1400, 20, "work under way")
            assert node.process.terminate(15) == 0
            node.start()
            wait_until(lambda: not any(_states(site).values()), 25, lambda: f"{_states(site)}{site.logs()}")
            site.books.assert_explained([first, *tasks], outcomes=frozenset({"released"}))
            assert "Traceback" not in node.process.logs()
        finally:
            site.close()
