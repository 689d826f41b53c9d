"""Fixtures that every room's tests share: a database per test, on SQLite and on PostgreSQL."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import structlog

from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.sqlite.store import SqliteStore
from tests.support.clockshim import ClockShim, CompilerMissing
from tests.support.postgres import PostgresAdmin, PostgresMissing, PostgresServer, find_binaries, run_outside_loop


async def _prepare_template(url: str) -> None:
    """Runs once per session (and xdist worker), in a thread and event loop of its own; each test's database is a copy."""
    store = PostgresStore(url, listen=False)
    await store.migrate()
    await store.close()


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command that a test runs in this process configures logging for its own captured output, which is closed then."""
    yield
    structlog.reset_defaults()


def _skip_or_fail(missing: Exception) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"{missing} (in CI nothing may be missing)")
    pytest.skip(str(missing))


@pytest.fixture(scope="session")
def postgres_binaries() -> Path:
    """For tests that build their own PostgresServer(...): skips, or in CI fails, where there is no PostgreSQL."""
    try:
        return find_binaries()
    except PostgresMissing as missing:
        _skip_or_fail(missing)


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
    """A migrated PostgreSQL database of the test's own."""
    name = postgres_server.create_database(template=postgres_template)
    try:
        yield postgres_server.url(name)
    finally:
        postgres_server.drop_database(name)


@pytest.fixture
def private_postgres(postgres_binaries: Path) -> Iterator[PostgresServer]:
    """A PostgreSQL server of the test's own, to stop, restart or break."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    """Where a SQLite database of the test's own may be created."""
    return tmp_path / "everbeat.sqlite"


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """A migrated store of the test's own, once on each dialect."""
    made: Store
    if request.param == "sqlite":
        made = SqliteStore(request.getfixturevalue("sqlite_path"))
        await made.migrate()
    else:
        made = PostgresStore(request.getfixturevalue("postgres_url"), listen=False)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
def clock_shim() -> Iterator[ClockShim]:
    """A wall clock to step in processes started with `clock_shim.env()`."""
    try:
        shim = ClockShim.create()
    except CompilerMissing as missing:
        pytest.skip(str(missing))  # also in CI: a compiler is not among the things a machine must have
    with shim:
        yield shim
