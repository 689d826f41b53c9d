"""Slow handlers under overlap policies while a node is killed: limits and order are respected, and every task finishes."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fleet import Site
from tests.cluster.harness import running_cluster
from tests.support.processes import wait_until

TICKS = 5


def _register(site: Site, name: str, seconds: float, **policy: Any) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    body = {
        "name": name,
        "every_seconds": 1,
        "anchor": (now + timedelta(seconds=1)).isoformat(),
        "starts_at": (now + timedelta(seconds=2)).isoformat(),
        "ends_at": (now + timedelta(seconds=1 + TICKS)).isoformat(),
        "target": {"kind": "worker", "queue": site.queue, "type": "slow"},
        "payload": {"seconds": seconds},
        "catch_up": "all",
        "max_attempts": 5,
        **policy,
    }
    response = site.client.put(f"/v1/schedules/{name}", json=body)
    assert response.status_code == 201, response.text


def _spans(site: Site) -> dict[str, list[tuple[float, float, float, int]]]:
    """Return, for each schedule, the start and end of each handler run, its tick and its attempt."""
    started: dict[tuple[str, int], dict[str, Any]] = {}
    spans: dict[str, list[tuple[float, float, float, int]]] = defaultdict(list)
    for one in site.journal.events():
        key = (one["task"], one["fence"])
        if one["event"] == "start":
            started[key] = one
        else:
            spans[one["schedule"]].append((started.pop(key)["at"], one["at"], one["tick"], one["attempt"]))
    assert not started, f"handlers that never ended: {started}"
    return {schedule: sorted(found) for schedule, found in spans.items()}


def _max_concurrency(spans: list[tuple[float, float, float, int]]) -> int:
    # If one run ends when another starts, the end is counted first.
    changes = sorted([(end, -1) for _, end, _, _ in spans] + [(start, 1) for start, _, _, _ in spans])
    maximum = running = 0
    for _, step in changes:
        running += step
        maximum = max(maximum, running)
    return maximum


@pytest.mark.parametrize("database", ["postgres", pytest.param("sqlite", marks=pytest.mark.chaos)])
def test_slow_ticks_follow_their_policy_although_a_node_is_killed(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'x.sqlite'}" if database == "sqlite" else request.getfixturevalue("postgres_url")
    with running_cluster(url, tmp_path) as cluster:
        nodes = [cluster.add() for _ in range(2)]
        site = Site(url, nodes[0].base, tmp_path)
        try:
            for node in nodes:
                site.worker("--concurrency", "10", url=node.base, name=f"at-{node.process.name}")
            wait_until(lambda: all("worker_started" in worker.logs() for worker in site.workers), 20, site.logs)
            _register(site, "single", 1.2, overlap="queue", max_concurrent=1)
            _register(site, "double", 1.8, overlap="queue", max_concurrent=2)
            _register(site, "newest", 2.5, overlap="cancel_previous")
            wait_until(lambda: len(site.journal.events(event="start")) >= 6, 20, site.logs)
            nodes[1].process.kill9()
            left = "SELECT schedule_name, state, attempt FROM tasks"
            wait_until(lambda: _has_finished(site), 60, lambda: f"{site.reader.rows(left)}{site.logs()}")
            _check(site)
            cluster.assert_accounted()
        finally:
            site.close()


def _has_finished(site: Site) -> bool:
    schedules = [site.client.get(f"/v1/schedules/{name}").json()["status"] for name in ("single", "double", "newest")]
    return schedules == ["finished"] * 3 and site.reader.value("SELECT count(*) FROM tasks") == 0


def _check(site: Site) -> None:
    spans = _spans(site)
    maximum = {name: _max_concurrency(found) for name, found in spans.items()}
    assert (maximum["single"], maximum["double"] <= 2, maximum["newest"]) == (1, True, 1), maximum
    ends = {one.id: one for one in site.reader.history()}
    fired = site.reader.rows(
        "SELECT s.name, t.task_id FROM ticks AS t JOIN schedules AS s ON s.id = t.schedule_id "
        "WHERE t.outcome = 'fired' ORDER BY t.scheduled_for"
    )
    by_name = {name: [task for found, task in fired if found == name] for name in spans}
    assert {name: len(tasks) for name, tasks in by_name.items()} == dict.fromkeys(by_name, TICKS)
    for name in ("single", "double"):
        site.reader.assert_explained(by_name[name], outcomes=frozenset({"lost", "released"}))
    states = [ends[task].state for task in by_name["newest"]]
    assert states[-1] == "completed"
    assert set(states) <= {"cancelled", "completed"}
    # With a limit of one, no tick starts before the earlier one has finished.
    ticks = [tick for _, _, tick, _ in spans["single"]]
    assert ticks == sorted(ticks), ticks
    ran = [tick for _, _, tick, _ in spans["newest"]]
    assert ran == sorted(ran), ran
