"""A cluster of real server processes on one database, and the final checks of each cluster test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.support.postgres import PostgresAdmin
from tests.support.processes import ServerProcess, free_port, wait_until

LEASE_SECONDS = 3.0


class Node:
    """An `everbeat serve` process and a client for its API."""

    def __init__(
        self, name: str, url: str, folder: Path, env: Mapping[str, str] | None = None, flags: tuple[str, ...] = ()
    ) -> None:
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.process = ServerProcess(
            "serve",
            *("--roles", "api,scheduler", "--database-url", url, "--port", str(self.port), "--node-name", name),
            *("--lease-seconds", str(LEASE_SECONDS), "--database-timeout-seconds", "2", *flags),
            folder=folder,
            env=env,
            name=f"{name}-{self.port}",
        )
        self.client = httpx.Client(base_url=self.base, trust_env=False, timeout=15.0)

    def start(self, *, wait: bool = True) -> None:
        self.process.start()
        if wait:
            self.process.wait_ready(f"{self.base}/readyz", 40)

    def get(self, path: str, **params: Any) -> Any:
        response = self.client.get(path, params=params)
        assert response.status_code == 200, f"{path}: {response.status_code} {response.text}"
        return response.json()

    def close(self) -> None:
        self.client.close()
        self.process.kill9()


class Cluster:
    """Adds nodes, and verifies the ledger at the end."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder
        self.nodes: list[Node] = []

    def add(self, name: str = "", *, wait: bool = True, url: str | None = None, **options: Any) -> Node:
        node = Node(name or f"node{len(self.nodes)}", url or self.url, self._folder, **options)
        self.nodes.append(node)
        node.start(wait=wait)
        return node

    @property
    def alive(self) -> Node:
        return next(node for node in self.nodes if node.process.is_running())

    def register(self, count: int = 40, prefix: str = "job", **fields: Any) -> None:
        """Register schedules that tick every second, allow overlaps, and catch up on all ticks."""
        rule = {"cron": "* * * * * *", "overlap": "allow", "catch_up": "all", **fields}
        items = [{"name": f"{prefix}-{i}", "target": {"kind": "worker", "type": "t"}, **rule} for i in range(count)]
        response = self.alive.client.post("/v1/schedules/batch", json={"schedules": items})
        assert response.status_code == 200, response.text

    def view(self) -> Any:
        return self.alive.get("/v1/cluster")

    def wait_for_owners(self, live: int, deadline_seconds: float = 20.0) -> None:
        """Wait until this number of nodes own all partitions."""

        def has_owners() -> bool:
            view = self.view()
            owners = [node for node in view["nodes"] if node["is_alive"] and node["partitions"] > 0]
            return view["unowned"] == 0 and len(owners) == live

        wait_until(has_owners, deadline_seconds, lambda: f"{live} owners: {self.view()['nodes']}")

    def fired(self, database: PostgresAdmin, where: str = "true") -> int:
        return int(database.fetch_value(f"SELECT count(*) FROM ticks WHERE outcome = 'fired' AND {where}", self.database))

    def worst_lag(self, database: PostgresAdmin, where: str = "true") -> float:
        lag = "extract(epoch FROM max(fired_at - scheduled_for))"
        worst = database.fetch_value(f"SELECT {lag} FROM ticks WHERE outcome = 'fired' AND {where}", self.database)
        return float(worst or 0)

    @property
    def database(self) -> str:
        return self.url.rpartition("/")[2].partition("?")[0]

    def wait_firing(self, database: PostgresAdmin, more: int = 1, deadline_seconds: float = 30.0) -> None:
        before = self.fired(database)
        wait_until(lambda: self.fired(database) >= before + more, deadline_seconds, "more ticks fired")

    def assert_accounted(self, deadline_seconds: float = 60.0) -> Any:
        """Verify that every tick is recorded once: none is missing, none is doubled."""

        def is_caught_up() -> bool:
            return bool(self.alive.get("/v1/audit")["missing"] == 0)

        wait_until(is_caught_up, deadline_seconds, lambda: f"nothing missing: {self._why()}")
        audit = self.alive.get("/v1/audit")
        assert audit["missing"] == 0, audit
        assert audit["doubled"] == 0, audit
        assert audit["expected"] == audit["fired"] + sum(audit["skipped"].values()), audit
        assert audit["expected"] > 0
        return audit

    def _why(self) -> str:
        audit = self.alive.get("/v1/audit", limit=3)
        return f"{audit}\n" + "\n".join(node.process.logs()[-2000:] for node in self.nodes)


@contextlib.contextmanager
def running_cluster(url: str, folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(url, folder)
    try:
        yield cluster
    finally:
        for node in cluster.nodes:
            node.close()
