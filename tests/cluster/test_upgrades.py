"""Upgrades with real processes on both stores: refusals at start, `--migrate`, and a newer schema under a running node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from everbeat.store.migrate import load_migrations
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.sqlite.store import SqliteStore
from tests.cluster.fleet import DatabaseReader
from tests.cluster.harness import running_cluster
from tests.factories import apply_unknown_migration
from tests.support.postgres import PostgresAdmin, run_outside_loop
from tests.support.processes import ServerProcess, free_port, wait_until

OLD_VERSION = 2


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'everbeat.sqlite'}"
        return
    server: PostgresAdmin = request.getfixturevalue("postgres_server")
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


def store_at(url: str) -> SqliteStore | PostgresStore:
    if url.startswith("sqlite:///"):
        return SqliteStore(url.removeprefix("sqlite:///"))
    return PostgresStore(url, listen=False)


def migrate_to(url: str, version: int) -> None:
    async def run() -> None:
        store = store_at(url)
        del store._migrations[version:]
        await store.migrate()
        await store.close()

    run_outside_loop(run())


def newest(url: str) -> int:
    return len(load_migrations("everbeat.store." + ("sqlite" if url.startswith("sqlite") else "postgres")))


def migrate_as_newer_version(url: str) -> None:

    async def run() -> None:
        store = store_at(url)
        await apply_unknown_migration(store)
        await store.close()

    run_outside_loop(run())


def serve(url: str, folder: Path, *flags: str, name: str) -> ServerProcess:
    return ServerProcess("serve", "--database-url", url, "--port", str(free_port()), *flags, folder=folder, name=name)


def test_serve_refuses_an_older_schema_and_names_the_command(empty_url: str, tmp_path: Path) -> None:
    migrate_to(empty_url, OLD_VERSION)
    with serve(empty_url, tmp_path, name="older") as process:
        assert process.wait_exit(20) == 1
    needed = newest(empty_url)
    assert f"the database is at migration {OLD_VERSION}, but this version of Everbeat needs {needed}" in process.logs()
    assert "run: everbeat migrate" in process.logs()
    assert "Traceback" not in process.logs()
    assert DatabaseReader(empty_url).value("SELECT max(number) FROM everbeat_migrations") == OLD_VERSION


def test_serve_refuses_a_newer_schema_and_changes_nothing(empty_url: str, tmp_path: Path) -> None:
    migrate_to(empty_url, newest(empty_url))
    migrate_as_newer_version(empty_url)
    with serve(empty_url, tmp_path, "--migrate", name="newer") as process:
        assert process.wait_exit(20) == 1
    assert "the database is at migration 9000, but this version of Everbeat supports only" in process.logs()
    assert "run a newer version: pip install --upgrade everbeat" in process.logs()
    assert "Traceback" not in process.logs()
    assert DatabaseReader(empty_url).value("SELECT count(*) FROM nodes") == 0


def test_two_nodes_that_migrate_at_once_apply_each_migration_once(empty_url: str, tmp_path: Path) -> None:
    migrate_to(empty_url, OLD_VERSION)
    with running_cluster(empty_url, tmp_path) as cluster:
        nodes = [cluster.add(wait=False, flags=("--migrate",)) for _ in range(2)]
        for node in nodes:
            node.process.wait_ready(f"{node.base}/readyz", 40)
        logs = "".join(node.process.logs() for node in nodes)
        for migration in load_migrations("everbeat.store.postgres")[OLD_VERSION:]:
            assert logs.count(f'"migration": "{migration.name}"') == 1, logs
        numbers = DatabaseReader(empty_url).rows("SELECT number FROM everbeat_migrations ORDER BY number")
        assert [number for (number,) in numbers] == list(range(1, newest(empty_url) + 1))
        cluster.wait_for_owners(2)


def test_a_node_that_meets_a_newer_schema_stops_firing_and_says_so(empty_url: str, tmp_path: Path) -> None:
    reader = DatabaseReader(empty_url)
    with running_cluster(empty_url, tmp_path) as cluster:
        node = cluster.add()
        cluster.register(5)
        wait_until(lambda: reader.value("SELECT count(*) FROM ticks WHERE outcome = 'fired'") >= 5, 30, "ticks")
        migrate_as_newer_version(empty_url)
        wait_until(lambda: node.client.get("/readyz").json().get("database") == "newer", 20, lambda: node.process.logs())
        ready = node.client.get("/readyz")
        assert (ready.status_code, ready.json()["status"], ready.json()["migration"]) == (503, "unready", 9000)
        wait_until(lambda: reader.value("SELECT count(*) FROM nodes") == 0, 20, "the node has left")
        assert reader.value("SELECT count(*) FROM partitions WHERE owner IS NOT NULL") == 0
        fired = reader.value("SELECT max(scheduled_for) FROM ticks WHERE outcome = 'fired'")

        refused = node.client.post("/v1/tasks", json={"type": "t"})
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:everbeat:problem:database-newer")
        assert int(refused.headers["Retry-After"]) >= 1
        assert node.client.put("/v1/calendars/c", json={"dates": []}).status_code == 503
        claim = {"worker": "w", "queues": ["default"], "max": 1, "wait_seconds": 10}
        assert node.client.post("/v1/worker/claim", json=claim).status_code == 503
        assert node.get("/v1/schedules")["items"]
        assert node.client.get("/healthz").status_code == 200
        assert "everbeat_schema_newer 1.0" in node.client.get("/metrics").text
        assert node.process.logs().count('"event": "schema_is_newer"') == 1

        time.sleep(2)  # two ticks of each schedule
        assert reader.value("SELECT max(scheduled_for) FROM ticks WHERE outcome = 'fired'") == fired
        assert node.process.terminate() == 0
        assert "Traceback" not in node.process.logs()


def test_dev_migrates_an_older_schema_and_refuses_a_newer_one(empty_url: str, tmp_path: Path) -> None:
    migrate_to(empty_url, OLD_VERSION)
    port = free_port()
    arguments = ("dev", "--database-url", empty_url, "--port", str(port))
    with ServerProcess(*arguments, folder=tmp_path, name="dev") as process:
        process.wait_ready(f"http://127.0.0.1:{port}/readyz", 40)
        assert DatabaseReader(empty_url).value("SELECT max(number) FROM everbeat_migrations") == newest(empty_url)
    migrate_as_newer_version(empty_url)
    with ServerProcess(*arguments, folder=tmp_path, name="dev-newer") as process:
        assert process.wait_exit(20) == 1
    assert "run a newer version: pip install --upgrade everbeat" in process.logs()
