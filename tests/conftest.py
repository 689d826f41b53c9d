"""Fixtures shared by all tests: a database per test, on SQLite and on PostgreSQL."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar
from urllib.parse import urlsplit

import pytest
import structlog

from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.sqlite.store import SqliteStore
from tests.support.clockshim import ClockShim, CompilerMissing
from tests.support.local_server import LocalServer, ServiceMissing
from tests.support.pgbouncer import PgBouncer, PgBouncerMissing
from tests.support.postgres import PostgresAdmin, PostgresMissing, PostgresServer, find_binaries, run_outside_loop

if TYPE_CHECKING:
    from tests.support.kafka_cluster import KafkaCluster
    from tests.support.moto_server import MotoServer
    from tests.support.nats_server import NatsServer
    from tests.support.rabbitmq import RabbitMq
    from tests.support.redis_server import RedisServer
    from tests.support.seaweedfs import S3Server

Server = TypeVar("Server", bound=LocalServer)


async def _prepare_template(url: str) -> None:
    """Migrate the template database. Runs once per session and xdist worker, in a separate thread and event loop."""
    store = PostgresStore(url, listen=False)
    await store.migrate()
    await store.close()


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    """Reset the logging that a command run in this process has configured: it writes to captured output that is then closed."""
    yield
    structlog.reset_defaults()


def skip_or_fail(missing: Exception) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"{missing} (required in CI)")
    pytest.skip(str(missing))


@pytest.fixture(scope="session")
def postgres_binaries() -> Path:
    """For tests that build their own PostgresServer(...). Skips, or fails in CI, if there is no PostgreSQL."""
    try:
        return find_binaries()
    except PostgresMissing as missing:
        skip_or_fail(missing)


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[PostgresAdmin]:
    """The session's PostgreSQL: a private one, or the one named by EVERBEAT_TEST_DATABASE_URL."""
    if url := os.environ.get("EVERBEAT_TEST_DATABASE_URL"):
        yield PostgresAdmin(url)
        return
    request.getfixturevalue("postgres_binaries")
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresAdmin) -> Iterator[str]:
    """A migrated database that tests copy."""
    name = postgres_server.create_database(f"everbeat_template_{secrets.token_hex(6)}")
    try:
        run_outside_loop(_prepare_template(postgres_server.url(name)))
        # A connection to the template would make every copy fail.
        postgres_server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        yield name
    finally:
        postgres_server.drop_database(name)


@pytest.fixture
def postgres_url(postgres_server: PostgresAdmin, postgres_template: str) -> Iterator[str]:
    """A migrated PostgreSQL database for one test."""
    name = postgres_server.create_database(template=postgres_template)
    try:
        yield postgres_server.url(name)
    finally:
        postgres_server.drop_database(name)


@pytest.fixture
def private_postgres(postgres_binaries: Path) -> Iterator[PostgresServer]:
    """A PostgreSQL server for one test, to stop, restart or break."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresAdmin) -> Iterator[PgBouncer]:
    """A PgBouncer in transaction mode in front of the session's PostgreSQL, with a pool of four connections."""
    try:
        bouncer = PgBouncer(postgres_server.url())
    except PgBouncerMissing as missing:
        skip_or_fail(missing)
    with bouncer:
        yield bouncer


@pytest.fixture
def pooled_url(postgres_url: str, pgbouncer: PgBouncer) -> str:
    """The test's PostgreSQL database, through the pooler."""
    return pgbouncer.url(urlsplit(postgres_url).path.lstrip("/"))


@pytest.fixture
async def pooled_store(postgres_url: str, pooled_url: str) -> AsyncIterator[Store]:
    """A store on the test's PostgreSQL database, through the pooler. Notices bypass the pooler."""
    made = _pooled_store(pooled_url, postgres_url)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


def _pooled_store(pooled_url: str, postgres_url: str) -> PostgresStore:
    return PostgresStore(pooled_url, listen=False, listen_url=postgres_url, pooling="transaction")


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    """The path where a test may create a SQLite database."""
    return tmp_path / "everbeat.sqlite"


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """A migrated store for one test, once on each dialect.

    With EVERBEAT_TEST_POOLING=transaction, everything on PostgreSQL goes through PgBouncer.
    """
    made: Store
    if request.param == "sqlite":
        made = SqliteStore(request.getfixturevalue("sqlite_path"))
        await made.migrate()
    elif os.environ.get("EVERBEAT_TEST_POOLING") == "transaction":
        made = _pooled_store(request.getfixturevalue("pooled_url"), request.getfixturevalue("postgres_url"))
    else:
        made = PostgresStore(request.getfixturevalue("postgres_url"), listen=False)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


def run_service(server_type: type[Server]) -> Iterator[Server]:
    """Start a server of another system. Skips, or fails in CI, if it is not installed."""
    try:
        server = server_type()
    except ServiceMissing as missing:
        skip_or_fail(missing)
    with server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The session's Redis, started for the first test that needs it, as all servers below."""
    from tests.support.redis_server import RedisServer

    yield from run_service(RedisServer)


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMq]:
    from tests.support.rabbitmq import RabbitMq

    yield from run_service(RabbitMq)


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    from tests.support.nats_server import NatsServer

    yield from run_service(NatsServer)


@pytest.fixture(scope="session")
def moto_server() -> Iterator[MotoServer]:
    """An emulator of SQS."""
    from tests.support.moto_server import MotoServer

    yield from run_service(MotoServer)


@pytest.fixture(scope="session")
def kafka_cluster() -> Iterator[KafkaCluster]:
    """A mock cluster of three brokers."""
    from tests.support.kafka_cluster import KafkaCluster

    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    from tests.support.seaweedfs import S3Server

    yield from run_service(S3Server)


@pytest.fixture
def s3_url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL in a new bucket, with the credentials in the environment."""
    from tests.support.seaweedfs import CREDENTIALS

    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return s3_server.make_bucket()


@pytest.fixture
def clock_shim() -> Iterator[ClockShim]:
    """A shim to step the wall clock of processes started with `clock_shim.env()`."""
    try:
        shim = ClockShim.create()
    except CompilerMissing as missing:
        pytest.skip(str(missing))  # also in CI: a compiler is not a requirement
    with shim:
        yield shim
