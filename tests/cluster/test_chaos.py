"""Random faults on a cluster of three nodes for minutes; every tick must be accounted for. Run by `make chaos`."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.cluster.harness import LEASE_SECONDS, Cluster, running_cluster
from tests.support.postgres import PostgresServer
from tests.support.processes import ServerProcess, wait_until
from tests.support.proxy import ProxyThread, postgres_executes

SECONDS = float(os.environ.get("CHAOS_SECONDS", "180"))
SEED = int(os.environ.get("CHAOS_SEED", str(random.SystemRandom().randrange(10_000))))


class Chaos:
    """Injects one fault after another. The seed is printed, so that a failed run can be repeated."""

    def __init__(self, cluster: Cluster, postgres: PostgresServer, proxy: ProxyThread) -> None:
        self._cluster = cluster
        self._postgres = postgres
        self._proxy = proxy
        self._random = random.Random(SEED)

    def inject_fault(self) -> str:
        fault = self._random.choice(
            [self.kill, self.kill, self.stop, self.freeze, self.restart_database, self.crash_database, self.lose, self.cut]
        )
        fault()
        return fault.__name__

    def kill(self) -> None:
        self._victim().kill9()
        self._add()

    def stop(self) -> None:
        self._victim().terminate()
        self._add()

    def freeze(self) -> None:
        process = self._victim()
        process.sigstop()
        self.wait(self._random.uniform(0.2, 2.5) * LEASE_SECONDS)
        process.sigcont()

    def restart_database(self) -> None:
        self._postgres.stop("fast")
        self.wait(self._random.uniform(0, 4))
        self._postgres.start()

    def crash_database(self) -> None:
        self._postgres.restart("immediate")

    def lose(self) -> None:
        self._proxy.proxy.losable = postgres_executes
        self._proxy.proxy.lose_reply_probability = 0.2
        self.wait(self._random.uniform(1, 4))
        self._proxy.proxy.lose_reply_probability = 0.0

    def cut(self) -> None:
        self._proxy.freeze()
        self.wait(self._random.uniform(0.5, 2) * LEASE_SECONDS)
        self._proxy.thaw()

    def _victim(self) -> ServerProcess:
        running = [node for node in self._cluster.nodes if node.process.is_running()]
        return self._random.choice(running).process

    def _add(self) -> None:
        behind_proxy = self._random.random() < 0.5
        self._cluster.add(wait=False, url=self._proxy.through(self._cluster.url) if behind_proxy else None)

    def wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        wait_until(lambda: time.monotonic() >= until, seconds + 30, "time to pass")


@pytest.mark.chaos
@pytest.mark.timeout(SECONDS + 300)
def test_every_tick_is_accounted_for_under_random_faults(private_postgres: PostgresServer, tmp_path: Path) -> None:
    url = private_postgres.url(private_postgres.create_database())
    with ProxyThread("127.0.0.1", private_postgres.port) as proxy, running_cluster(url, tmp_path) as cluster:
        for number in range(3):
            cluster.add(url=proxy.through(url) if number == 2 else None)
        cluster.register(30)
        cluster.register(30, prefix="newest", catch_up="latest", cron="*/2 * * * * *")
        cluster.register(30, prefix="fresh", catch_up="none", cron="*/3 * * * * *")
        chaos, until = Chaos(cluster, private_postgres, proxy), time.monotonic() + SECONDS
        print(f"\nseed {SEED}")
        while time.monotonic() < until:
            print(f"  {until - time.monotonic():5.0f} s left: {chaos.inject_fault()}", flush=True)
            chaos.wait(2)
        cluster.wait_for_owners(3, 60)
        cluster.wait_firing(private_postgres, 100, 60)
        audit = cluster.assert_accounted(120)
        print({key: audit[key] for key in ("expected", "fired", "skipped", "missing", "doubled")})
