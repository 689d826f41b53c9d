"""After a standby is promoted, the node connects to it, and nothing acknowledged is lost or done twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.cluster.harness import Node, running_cluster
from tests.support.postgres import PostgresServer, PostgresStandby
from tests.support.processes import wait_until


class TaskSubmitter:
    """Submits tasks one after another, ignores errors, and records the acknowledged ids."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._stopping = threading.Event()
        self.acknowledged: list[str] = []
        self.refused: list[int] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(20)

    def _run(self) -> None:
        with httpx.Client(base_url=self._node.base, trust_env=False, timeout=15.0) as client:
            while not self._stopping.is_set():
                response = client.post("/v1/tasks", json={"type": "t", "queue": "submitted"})
                if response.status_code == 201:
                    self.acknowledged.append(response.json()["id"])
                else:
                    self.refused.append(response.status_code)


def kill(primary: PostgresServer) -> None:
    primary.stop("immediate")


def make_read_only(primary: PostgresServer) -> None:
    """Make the server refuse writes. It still serves read queries."""
    primary.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    primary.execute("SELECT pg_reload_conf()")


@pytest.mark.timeout(90)
@pytest.mark.parametrize("lose", [kill, make_read_only])
def test_a_promoted_standby_takes_over_and_nothing_acknowledged_is_lost(
    private_postgres: PostgresServer, tmp_path: Path, lose: Callable[[PostgresServer], None]
) -> None:
    database = private_postgres.create_database()
    with PostgresStandby(private_postgres) as standby:
        hosts = f"127.0.0.1:{private_postgres.port},127.0.0.1:{standby.port}"
        url = f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write"
        with running_cluster(url, tmp_path) as cluster:
            node = cluster.add()
            cluster.register(20)
            submitting = TaskSubmitter(node)
            cluster.wait_firing(private_postgres, 40)
            wait_until(lambda: len(submitting.acknowledged) > 20, 10, "submits acknowledged")
            lose(private_postgres)
            before = len(submitting.acknowledged)
            standby.promote()
            wait_until(lambda: len(submitting.acknowledged) > before + 20, 30, "submits acknowledged again")
            cluster.wait_firing(standby, 60)
            submitting.stop()
            audit = cluster.assert_accounted()
            assert len(audit["schedules"]) == 20
            kept = standby.fetch_value("SELECT array_agg(id::text) FROM tasks WHERE queue = 'submitted'", database)
            assert set(submitting.acknowledged) <= set(kept), "acknowledged and lost"
            assert set(submitting.refused) <= {503}
