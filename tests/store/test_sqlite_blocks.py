"""The columns of an SQLite block are converted as declared, and wrong declarations are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import apsw
import pytest

from everbeat.store.sqlite.blocks import Block
from everbeat.store.sqlite.connections import SqliteSession
from everbeat.store.sqlite.conversions import to_microseconds
from tests.factories import NOW

ID = UUID(int=7)
SELECT = "SELECT id, tenant_id, message_id, ran_at, is_new, hash FROM things WHERE n <= :n"
TYPES = "id uuid, tenant_id cached_uuid, ran_at time, is_new bool, hash bytes"


@pytest.fixture
def session() -> Iterator[SqliteSession]:
    connection = apsw.Connection(":memory:")
    connection.execute(
        "CREATE TABLE things (id BLOB, tenant_id BLOB, message_id TEXT, ran_at INTEGER, is_new INTEGER, hash BLOB, n INTEGER)"
    )
    values = (ID.bytes, ID.bytes, "<a@b>", to_microseconds(NOW), 1, b"hash", 1)
    connection.execute("INSERT INTO things VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    connection.execute("INSERT INTO things (n) VALUES (2)")
    yield SqliteSession(connection)
    connection.close()


def rows(session: SqliteSession, returns: str, n: int = 1, sql: str = SELECT) -> list[dict[str, Any]]:
    return session.rows(Block("thing", sql, returns), {"n": n})


def test_declared_columns_are_converted_and_all_others_are_not(session: SqliteSession) -> None:
    converted = {"id": ID, "tenant_id": ID, "message_id": "<a@b>", "ran_at": NOW, "is_new": True, "hash": b"hash"}
    assert rows(session, TYPES, 2) == [converted, dict.fromkeys(converted)]
    assert rows(session, "")[0] == {
        **converted,
        "id": ID.bytes,
        "tenant_id": ID.bytes,
        "ran_at": to_microseconds(NOW),
        "is_new": 1,
    }


def test_rows_of_a_statement_that_is_executed_repeatedly_are_converted(session: SqliteSession) -> None:
    found = session.rows_many(Block("thing", SELECT, TYPES), [{"n": 0}, {"n": 1}, {"n": 1}])
    assert [row["id"] for row in found] == [ID, ID]


@pytest.mark.parametrize("n", [0, 1])
def test_a_declared_column_that_is_not_returned_is_an_error_even_without_rows(session: SqliteSession, n: int) -> None:
    with pytest.raises(ValueError, match="thing declares columns that it does not return: hash, ran_at"):
        rows(session, "ran_at time, hash bytes", n, "SELECT id FROM things WHERE n <= :n")


def test_the_columns_of_a_select_star_may_change(session: SqliteSession) -> None:
    block = Block("thing", "SELECT * FROM things WHERE n = 1", TYPES)
    session.rows(block)
    session.connection.execute("ALTER TABLE things ADD COLUMN more TEXT DEFAULT 'x'")
    assert [(row["id"], row["more"]) for row in session.rows(block)] == [(ID, "x")]
    session.connection.execute("ALTER TABLE things DROP COLUMN hash")
    with pytest.raises(ValueError, match="hash"):
        session.rows(block)


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        ("id UUID", "declares `id UUID`; a type is one of uuid, cached_uuid, time, bool, bytes"),
        ("id", "declares `id`"),
        ("id uuid,ran_at time", "declares `id uuid,ran_at time`"),
        ("id uuid, id bytes", "declares id twice"),
    ],
)
def test_a_declaration_that_cannot_be_read_is_refused(returns: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Block("thing", SELECT, returns)


def test_a_block_is_read_as_it_is_declared(session: SqliteSession) -> None:
    raw, typed = Block("raw", SELECT, "tuples"), Block("typed", SELECT, TYPES)
    assert session.tuples(raw, {"n": 1})[0][:3] == (ID.bytes, ID.bytes, "<a@b>")
    with pytest.raises(ValueError, match="raw is declared to be read as tuples"):
        session.rows(raw)
    with pytest.raises(ValueError, match="raw is declared to be read as tuples"):
        session.rows_many(raw, [])
    with pytest.raises(ValueError, match="typed is not declared to be read as tuples"):
        session.tuples(typed)
    with pytest.raises(ValueError, match="typed is not declared to be read as tuples"):
        session.tuples_many(typed, [])
