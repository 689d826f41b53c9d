"""A database with an outbox, and relays on it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from everbeat.client.base import ApiResponse
from everbeat.client.requests import _encode
from everbeat.outbox.relay import Relay
from everbeat.outbox.table import OutboxTable
from everbeat.outbox.telemetry import RelayTelemetry
from tests.support.postgres import PostgresAdmin, run_outside_loop
from tests.support.processes import ServerProcess, free_port

Fault = Callable[[list[dict[str, Any]]], Exception | None]


class RecordingServer:
    """Receives batches as the API does: all or none, and each idempotency key once. `fault` can refuse a batch."""

    def __init__(self) -> None:
        self.tasks: list[dict[str, Any]] = []
        self.batches: list[list[dict[str, Any]]] = []
        self.fault: Fault = lambda _tasks: None

    async def request(self, method: str, path: str, *, body: Any = None) -> ApiResponse:
        assert (method, path) == ("POST", "/v1/tasks/batch")
        tasks = json.loads(_encode(body))["tasks"]
        self.batches.append(tasks)
        if (error := self.fault(tasks)) is not None:
            raise error
        known = {task["idempotency_key"] for task in self.tasks}
        self.tasks += [task for task in tasks if task["idempotency_key"] not in known]
        return ApiResponse(201, {"ids": []}, {})

    @property
    def numbers(self) -> list[int]:
        return [task["payload"]["n"] for task in self.tasks]


async def _install(url: str) -> None:
    table = OutboxTable(url)
    await table.install()
    await table.install()  # it can be repeated
    await table.close()


@pytest.fixture(scope="session")
def outbox_template(postgres_server: PostgresAdmin) -> Iterator[str]:
    """A database with an outbox that tests copy."""
    name = postgres_server.create_database()
    try:
        run_outside_loop(_install(postgres_server.url(name)))
        yield name
    finally:
        postgres_server.drop_database(name)


@pytest.fixture
def outbox_url(postgres_server: PostgresAdmin, outbox_template: str) -> Iterator[str]:
    """A database of an application, with an outbox and a table `orders`."""
    name = postgres_server.create_database(template=outbox_template)
    postgres_server.execute("CREATE TABLE orders (id integer PRIMARY KEY)", name)
    try:
        yield postgres_server.url(name)
    finally:
        postgres_server.drop_database(name)


@pytest.fixture
async def connection(outbox_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(outbox_url)
    yield connection
    await connection.close()


@pytest.fixture
def server() -> RecordingServer:
    return RecordingServer()


class Relays:
    def __init__(self, url: str, server: RecordingServer) -> None:
        self._url = url
        self._server = server
        self.tables: list[OutboxTable] = []

    def make(self, **options: Any) -> Relay:
        table = OutboxTable(self._url)
        self.tables.append(table)
        return Relay(table, self._server, RelayTelemetry(), **options)


@pytest.fixture
async def relays(outbox_url: str, server: RecordingServer) -> AsyncIterator[Relays]:
    made = Relays(outbox_url, server)
    yield made
    for table in made.tables:
        await table.close()


@pytest.fixture
def real_server(tmp_path: Path) -> Iterator[str]:
    """The URL of a real server, on SQLite."""
    port = free_port()
    arguments = ("serve", "--port", str(port), "--database-url", f"sqlite:///{tmp_path}/server.db")
    with ServerProcess(*arguments, folder=tmp_path, name="server") as process:
        process.wait_ready(f"http://127.0.0.1:{port}/readyz", 30)
        yield f"http://127.0.0.1:{port}"


async def add(connection: asyncpg.Connection, number: int, order_key: str | None = None, **task: Any) -> UUID:
    """Insert a row with the plain statement of the documentation."""
    body = json.dumps({"type": "t", "payload": {"n": number}, **task})
    sql = "INSERT INTO everbeat_outbox (order_key, task) VALUES ($1, $2) RETURNING id"
    id_: UUID = await connection.fetchval(sql, order_key, body)
    return id_
