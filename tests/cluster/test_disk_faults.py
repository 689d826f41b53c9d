"""A disk that is full or cannot sync: requests get 503, nothing acknowledged is lost, and firing continues afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.fleet import DatabaseReader
from tests.cluster.harness import Cluster, running_cluster
from tests.cluster.test_failover import TaskSubmitter
from tests.support.clockshim import CompilerMissing
from tests.support.diskshim import DiskFault, DiskShim
from tests.support.postgres import PostgresServer
from tests.support.processes import wait_until

_SECONDS = 2.0


@pytest.fixture
def make_disk() -> Iterator[Callable[[str], DiskShim]]:
    disks: list[DiskShim] = []

    def make(path_part: str) -> DiskShim:
        try:
            disks.append(DiskShim.create(path_part))
        except CompilerMissing as missing:
            pytest.skip(str(missing))  # also in CI: a compiler is not a requirement
        return disks[-1]

    yield make
    for disk in disks:
        disk.__exit__()


def _fail_under_load(
    cluster: Cluster, disk: DiskShim, fault: DiskFault, fired: Callable[[], int], repair: Callable[[], None] = lambda: None
) -> None:
    """Let the disk fail while ticks fire and tasks are submitted. Then both continue, and nothing acknowledged is lost."""
    (node,) = cluster.nodes
    cluster.register(20)
    submitting = TaskSubmitter(node)
    try:
        wait_until(lambda: fired() >= 40 and len(submitting.acknowledged) > 20, 20, "ticks and submits")
        with disk.failing(fault):
            wait_until(lambda: submitting.refused, 20, lambda: f"a submit is refused: {node.process.logs()[-2000:]}")
            until = time.monotonic() + _SECONDS
            wait_until(lambda: time.monotonic() >= until, _SECONDS + 5)
            before = len(submitting.acknowledged)
            assert node.client.get("/healthz").status_code == 200
        repair()
        more = fired() + 40
        wait_until(
            lambda: len(submitting.acknowledged) > before + 20 and fired() >= more,
            40,
            lambda: f"submits and ticks again: {node.process.logs()[-3000:]}",
        )
    finally:
        submitting.stop()
    rows = DatabaseReader(cluster.url).rows("SELECT id FROM tasks WHERE queue = 'submitted'")
    assert set(submitting.acknowledged) <= {str(id_) for (id_,) in rows}, "acknowledged and lost"
    assert set(submitting.refused) <= {503}
    cluster.assert_accounted()
    assert "Traceback" not in node.process.logs()
    assert "loop_failed" in node.process.logs()


@pytest.mark.parametrize("fault", [DiskFault.FULL, pytest.param(DiskFault.FSYNC, marks=pytest.mark.chaos)])
def test_a_disk_that_fails_under_an_sqlite_file_loses_nothing_acknowledged(
    fault: DiskFault, tmp_path: Path, make_disk: Callable[[str], DiskShim]
) -> None:
    path = tmp_path / "failing.sqlite"
    disk = make_disk(path.name)
    url = f"sqlite:///{path}"
    reader = DatabaseReader(url)
    with running_cluster(url, tmp_path) as cluster:
        cluster.add(env=disk.env())
        _fail_under_load(cluster, disk, fault, lambda: int(reader.value("SELECT count(*) FROM ticks WHERE outcome = 'fired'")))


@pytest.mark.chaos
@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", [DiskFault.FULL, DiskFault.FSYNC])
def test_a_disk_that_fails_under_postgresql_loses_nothing_acknowledged(
    fault: DiskFault, postgres_binaries: Path, tmp_path: Path, make_disk: Callable[[str], DiskShim]
) -> None:
    """PostgreSQL crashes when it cannot sync its log, and again when it recovers. It is restarted, as an init system does."""
    disk = make_disk("/pg_wal/" if fault is DiskFault.FSYNC else "/data/base/")
    with PostgresServer(env=disk.env(), settings={"fsync": "on", "synchronous_commit": "on"}) as server:
        url = server.url(server.create_database())
        with running_cluster(url, tmp_path) as cluster:
            cluster.add()

            def repair() -> None:
                if fault is DiskFault.FSYNC:
                    server.restart("immediate")

            _fail_under_load(cluster, disk, fault, lambda: cluster.fired(server), repair)
