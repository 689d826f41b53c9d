"""A server on SQLite and one on PostgreSQL, shared by all tests that do not disturb them. Each test uses a separate queue.

Tests that do not depend on the database run on one of the two servers, and on both in the chaos runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.fleet import Site
from tests.cluster.harness import Node
from tests.support.postgres import PostgresAdmin


def _node(url: str, folder: Path) -> Iterator[tuple[str, Node]]:
    node = Node("served", url, folder)
    try:
        node.start()
        yield url, node
    finally:
        node.close()


@pytest.fixture(scope="session")
def sqlite_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Node]]:
    folder = tmp_path_factory.mktemp("sqlite-node")
    yield from _node(f"sqlite:///{folder / 'everbeat.sqlite'}", folder)


@pytest.fixture(scope="session")
def postgres_node(
    postgres_server: PostgresAdmin, postgres_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Node]]:
    name = postgres_server.create_database(template=postgres_template)
    try:
        yield from _node(postgres_server.url(name), tmp_path_factory.mktemp("postgres-node"))
    finally:
        postgres_server.drop_database(name)


def _site(served: tuple[str, Node], folder: Path) -> Iterator[Site]:
    url, node = served
    site = Site(url, node.base, folder)
    try:
        yield site
    finally:
        site.close()


@pytest.fixture(params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """A site for the test, once on each database."""
    yield from _site(request.getfixturevalue(f"{request.param}_node"), tmp_path)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.chaos)])
def sqlite_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    yield from _site(request.getfixturevalue(f"{request.param}_node"), tmp_path)


@pytest.fixture(params=["postgres", pytest.param("sqlite", marks=pytest.mark.chaos)])
def postgres_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    yield from _site(request.getfixturevalue(f"{request.param}_node"), tmp_path)
