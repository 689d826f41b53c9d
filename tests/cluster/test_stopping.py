"""Stopping workers and servers: running tasks may finish, the rest is released immediately, and no task waits for a lease."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.cluster.fleet import Site
from tests.cluster.harness import running_cluster
from tests.support.processes import wait_until


def _states(site: Site) -> dict[str, int]:
    """Return the live tasks of the queue by state. `counted` is the number of tasks with a counted attempt."""
    rows = site.reader.rows(f"SELECT state, attempt FROM tasks WHERE queue = '{site.queue}'")
    found = {state: sum(1 for row in rows if row[0] == state) for state in ("ready", "running")}
    return {**found, "counted": sum(row[1] for row in rows if row[0] == "ready")}


def test_a_stopping_worker_finishes_running_tasks_and_releases_waiting_tasks(site: Site) -> None:
    end_file = site.folder / "end_file"
    worker = site.worker("--concurrency", "2", "--grace-seconds", "20")
    # Short tasks first: a worker that finishes them quickly prefetches tasks, which then wait behind the long ones.
    site.submit_many("short", 500)
    long = site.submit_many("ignore_cancel", 20, payload={"end_file": str(end_file)})
    wait_until(lambda: len(site.journal.events(event="start")) == 2, 20, "two long tasks")
    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: _states(site) == {"ready": 18, "running": 2, "counted": 0}, 4, lambda: f"{_states(site)}")
    taken = site.raw().claim(18)
    assert [one["attempt"] for one in taken] == [1] * 18
    assert worker.is_running()
    end_file.touch()
    assert worker.wait_exit(10) == 0
    assert set(site.raw().complete(*taken)) == {"ok"}
    site.reader.assert_explained(long, outcomes=frozenset({"released"}))
    assert len(site.journal.events(event="effect")) == 2


def test_a_task_that_exceeds_the_grace_time_is_released_and_not_counted(site: Site) -> None:
    worker = site.worker("--grace-seconds", "0.5")
    tasks = [site.submit("slow", payload={"seconds": 60}), site.submit("ignore_cancel", payload={"end_file": "/nowhere"})]
    for task in tasks:
        site.journal.wait(task, "start")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait_exit(10) == 0
    taken = site.raw().claim(2)
    assert [(one["attempt"], one["fence"]) for one in taken] == [(1, 2), (1, 2)]
    assert len(site.journal.events(tasks[0], "cancelled")) == 1
    assert set(site.raw().complete(*taken)) == {"ok"}
    site.reader.assert_explained(tasks, outcomes=frozenset({"released"}))


def test_a_second_signal_ends_a_worker_immediately(site: Site) -> None:
    worker = site.worker("--grace-seconds", "300")
    tasks = [site.submit("slow", payload={"seconds": 60}), site.submit("ignore_cancel", payload={"end_file": "/nowhere"})]
    for task in tasks:
        site.journal.wait(task, "start")
    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: "worker_stopping" in worker.logs(), 10, worker.logs)
    started_at = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait_exit(10) == 130
    assert time.monotonic() - started_at < 4
    taken = site.raw().claim(2)
    assert [(one["attempt"], one["fence"]) for one in taken] == [(1, 2), (1, 2)]


def test_workers_started_and_stopped_under_load_leave_no_leases(sqlite_site: Site) -> None:
    """A claim is always in progress. Tasks that it returns to a stopping worker must not wait for their leases."""
    site = sqlite_site
    tasks = site.submit_many("short", 2000)
    for _ in range(2):
        worker = site.worker("--concurrency", "20")
        left = _states(site)["ready"]
        wait_until(lambda left=left: _states(site)["ready"] < left - 100, 20, "tasks are running")  # type: ignore[misc]
        assert worker.terminate(15) == 0
        states = _states(site)
        assert (states["running"], states["counted"]) == (0, 0), f"{states}{site.logs()}"
    site.worker("--concurrency", "50")
    wait_until(lambda: _states(site)["ready"] + _states(site)["running"] == 0, 20, lambda: f"{_states(site)}")
    site.reader.assert_explained(tasks, outcomes=frozenset({"released"}))


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_stopping_server_ends_long_polls_and_exits(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Idle and under load: workers reconnect, and no attempt is lost."""
    url = f"sqlite:///{tmp_path / 'x.sqlite'}" if database == "sqlite" else request.getfixturevalue("postgres_url")
    with running_cluster(url, tmp_path) as cluster:
        node = cluster.add()
        site = Site(url, node.base, tmp_path)
        try:
            # Longer than the server is down, because a lease that expires meanwhile is correctly lost.
            site.worker("--concurrency", "20", "--lease-seconds", "120")
            first = site.submit("effect")
            site.wait_state(first)
            started_at = time.monotonic()
            assert node.process.terminate(15) == 0
            assert time.monotonic() - started_at < 5
            node.start()
            tasks = site.submit_many("short", 1500)
            wait_until(lambda: _states(site)["ready"] < 1400, 20, "tasks are running")
            assert node.process.terminate(15) == 0
            node.start()
            wait_until(lambda: not any(_states(site).values()), 25, lambda: f"{_states(site)}{site.logs()}")
            site.reader.assert_explained([first, *tasks], outcomes=frozenset({"released"}))
            assert "Traceback" not in node.process.logs()
        finally:
            site.close()
