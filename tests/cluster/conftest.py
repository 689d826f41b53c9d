"""A server on SQLite and one on PostgreSQL, each shared by the tests of a module: every test has a queue of its own."""

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


@pytest.fixture(scope="module")
def sqlite_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Node]]:
    folder = tmp_path_factory.mktemp("sqlite-node")
    yield from _node(f"sqlite:///{folder / 'everbeat.sqlite'}", folder)


@pytest.fixture(scope="module")
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
    """Once on each database."""
    yield from _site(request.getfixturevalue(f"{request.param}_node"), tmp_path)


@pytest.fixture
def sqlite_site(sqlite_node: tuple[str, Node], tmp_path: Path) -> Iterator[Site]:
    """For what does not depend on the database."""
    yield from _site(sqlite_node, tmp_path)
