"""A bulk operation whose node is killed in the middle: every task is retried once, and the numbers are right."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import Cluster, running_cluster
from tests.support.postgres import PostgresAdmin
from tests.support.processes import wait_until

BATCH = 10_000


def operation(cluster: Cluster, id_: str) -> Any:
    return cluster.alive.get(f"/v1/operations/{id_}")


def start(cluster: Cluster, action: str, **filter_: str) -> str:
    response = cluster.alive.client.post("/v1/tasks/bulk", json={"action": action, "filter": filter_})
    assert response.status_code == 202, response.text
    return str(response.json()["id"])


def retry_with_kills(cluster: Cluster, database: PostgresAdmin, count: int) -> None:
    cluster.add()
    for first in range(0, count, BATCH):
        tasks = [{"type": "work"} for _ in range(min(BATCH, count - first))]
        assert cluster.alive.client.post("/v1/tasks/batch", json={"tasks": tasks}).status_code == 200
    cancelling = start(cluster, "cancel", type="work")
    wait_until(lambda: operation(cluster, cancelling)["state"] == "done", 300, lambda: str(operation(cluster, cancelling)))
    retrying = start(cluster, "retry", state="cancelled")
    for kill in range(2):
        reached = count * (kill + 1) // 4
        wait_until(lambda reached=reached: operation(cluster, retrying)["done"] >= reached, 300)  # type: ignore[misc]
        cluster.nodes[-1].process.kill9()
        cluster.add()
    wait_until(lambda: operation(cluster, retrying)["state"] != "running", 300, lambda: str(operation(cluster, retrying)))
    ended = operation(cluster, retrying)
    assert (ended["state"], ended["matched"], ended["done"], ended["failed"]) == ("done", count, count, 0), ended
    rows = "SELECT count(*) FROM tasks WHERE origin = 'replay'"
    assert database.fetch_value(rows, cluster.database) == count
    # One key for each retried task, and one task for each key.
    keys = "SELECT count(DISTINCT key) * 1000000 + count(DISTINCT task_id) FROM task_keys WHERE key LIKE 'bulk %'"
    assert database.fetch_value(keys, cluster.database) == count * 1_000_000 + count


def test_a_bulk_retry_is_continued_after_its_node_was_killed(
    postgres_server: PostgresAdmin, postgres_url: str, tmp_path: Path
) -> None:
    with running_cluster(postgres_url, tmp_path) as cluster:
        retry_with_kills(cluster, postgres_server, 4000)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_a_bulk_retry_of_100_000_tasks_survives_two_kills(
    postgres_server: PostgresAdmin, postgres_url: str, tmp_path: Path
) -> None:
    with running_cluster(postgres_url, tmp_path) as cluster:
        retry_with_kills(cluster, postgres_server, int(os.environ.get("BULK_TASKS", "100000")))
