"""A server under attack for the tests, once on each database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack.target import Target
from tests.support.postgres import PostgresAdmin


def _url(database: str, request: pytest.FixtureRequest, folder: Path) -> str:
    if database == "sqlite":
        return f"sqlite:///{folder / 'everbeat.sqlite'}"
    server: PostgresAdmin = request.getfixturevalue("postgres_server")
    name = server.create_database(template=request.getfixturevalue("postgres_template"))
    request.addfinalizer(lambda: server.drop_database(name))
    return server.url(name)


def _target(request: pytest.FixtureRequest, folder: Path, *, is_long: bool) -> Iterator[Target]:
    target = Target(_url(request.param, request, folder), folder, is_long=is_long)
    try:
        target.start()
        yield target
    finally:
        target.close()


@pytest.fixture(params=["sqlite", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    yield from _target(request, tmp_path, is_long=False)


@pytest.fixture(params=["sqlite", "postgres"], scope="session")
def long_target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    yield from _target(request, tmp_path_factory.mktemp("attack"), is_long=True)
