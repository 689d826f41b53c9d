"""Holds a row lock in another session of PostgreSQL, as a frozen node or an operator with psql does."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg


@contextlib.asynccontextmanager
async def row_locked(url: str, table: str, where: str = "true", *values: Any) -> AsyncIterator[asyncpg.Connection]:
    """Lock the rows of a table that match a condition, in a transaction of another session, until the end of the block."""
    connection = await asyncpg.connect(url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        rows = await connection.fetch(f"SELECT 1 FROM {table} WHERE {where} FOR UPDATE", *values)
        assert rows, f"there is no row of {table} to lock"
        yield connection
        await transaction.rollback()
    finally:
        await connection.close()
