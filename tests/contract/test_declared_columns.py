"""Each SQLite block declares the types of its columns as they are in PostgreSQL, which has all of these types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import apsw
import apsw.ext
import asyncpg
import pytest

from everbeat.store.queries import load_numbered
from everbeat.store.sqlite.blocks import Block, load_typed_blocks
from everbeat.store.sqlite.store import SqliteStore
from tests.support.postgres import run_outside_loop

BLOCKS = load_typed_blocks("everbeat.store.sqlite")
# The type to declare for each type of PostgreSQL. Columns of other types are returned as they are.
DECLARED = {"uuid": "uuid", "timestamptz": "time", "bool": "bool", "bytea": "bytes"}


class Column(NamedTuple):
    """A column of a result, the type with which its table declares it, and the table and column, if it is one of a table."""

    name: str
    stored_as: str | None
    table: str | None
    origin: str | None


async def _migrate(path: Path) -> None:
    store = SqliteStore(path)
    await store.migrate()
    await store.close()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Column]]]:
    """The columns that each block returns. Blocks that return none are absent."""
    path = tmp_path_factory.mktemp("columns") / "everbeat.sqlite"
    run_outside_loop(_migrate(path))
    connection = apsw.Connection(str(path))
    connection.execute(BLOCKS["tick_fire_table"].sql)
    found = {}
    for name, block in BLOCKS.items():
        if name == "tick_fire_table":
            continue
        columns = apsw.ext.query_info(connection, block.sql).description_full or ()
        if columns:
            found[name] = [Column(name, stored_as, table, origin) for name, stored_as, _, table, origin in columns]
    yield found
    connection.close()


def unconverted(block: Block, columns: list[Column]) -> list[str]:
    """Return the blobs that the block returns and does not declare."""
    return [column.name for column in columns if column.stored_as == "BLOB" and column.name not in block.types]


def test_declared_columns_are_returned(results: Mapping[str, list[Column]]) -> None:
    for name, block in BLOCKS.items():
        returned = {column.name for column in results.get(name, [])}
        assert block.types.keys() <= returned, name
        assert returned or not block.is_read_as_tuples, name


def test_returned_blobs_are_declared(results: Mapping[str, list[Column]]) -> None:
    for name, columns in results.items():
        if not BLOCKS[name].is_read_as_tuples:
            assert unconverted(BLOCKS[name], columns) == [], name


def test_the_columns_of_a_block_that_is_read_by_name_have_different_names(results: Mapping[str, list[Column]]) -> None:
    for name, columns in results.items():
        if not BLOCKS[name].is_read_as_tuples:
            names = [column.name for column in columns]
            assert len(set(names)) == len(names), name


def test_the_check_finds_a_blob_that_is_not_declared(results: Mapping[str, list[Column]]) -> None:
    block = BLOCKS["task_find"]
    forgetful = Block(
        "task_find", block.sql, ", ".join(f"{name} {type_}" for name, type_ in block.types.items() if name != "id")
    )
    assert unconverted(forgetful, results["task_find"]) == ["id"]


@pytest.fixture
def postgres_types(postgres_url: str) -> tuple[dict[tuple[str, str], str], dict[str, dict[str, str]]]:
    """The types of the columns of each table, and of the columns that each block returns."""

    async def read() -> tuple[dict[tuple[str, str], str], dict[str, dict[str, str]]]:
        connection = await asyncpg.connect(postgres_url)
        try:
            tables = await connection.fetch("SELECT table_name, column_name, udt_name FROM information_schema.columns")
            by_block = {}
            for name, query in load_numbered("everbeat.store.postgres").items():
                if name in BLOCKS:
                    # The name of a month is not a parameter. Its columns are those of its table.
                    sql = query.sql.replace("month_table", name.removeprefix("archive_read_"))
                    statement = await connection.prepare(sql)
                    by_block[name] = {one.name: one.type.name for one in statement.get_attributes()}
            return {(table, column): type_ for table, column, type_ in tables}, by_block
        finally:
            await connection.close()

    return run_outside_loop(read())


def test_columns_are_declared_with_the_types_of_postgres(
    results: Mapping[str, list[Column]], postgres_types: tuple[dict[tuple[str, str], str], dict[str, dict[str, str]]]
) -> None:
    by_table, by_block = postgres_types
    compared = 0
    for name, columns in results.items():
        if BLOCKS[name].is_read_as_tuples:
            continue
        for column in columns:
            # The type of an expression is that of the column with the same name in the same block of PostgreSQL.
            type_ = by_table.get((column.table or "", column.origin or "")) or by_block.get(name, {}).get(column.name)
            if type_ is not None:
                declared = BLOCKS[name].types.get(column.name)
                assert DECLARED.get(type_) == ("uuid" if declared == "cached_uuid" else declared), f"{name}: {column.name}"
                compared += 1
    returned = sum(len(columns) for name, columns in results.items() if not BLOCKS[name].is_read_as_tuples)
    assert compared > 0.95 * returned, f"{compared} of {returned} columns have been compared"
