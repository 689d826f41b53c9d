"""The statements of the application, in the parameter styles of the drivers, and their execution on its own connection.

The driver is recognized by the type of the connection, so that none has to be installed or imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from everbeat.core.errors import EverbeatError
from everbeat.store.queries import Query, load_blocks, numbered

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_DRIVERS = ("psycopg", "asyncpg", "sqlalchemy", "django")
_SUPPORTED = (
    "a connection or cursor of psycopg 3, a connection of asyncpg, a Session or Connection of SQLAlchemy, "
    "or django.db.connection"
)


class UnknownConnection(EverbeatError, TypeError):
    """The connection is of a driver that is not supported, or is async where a sync one is needed, or vice versa."""


@cache
def blocks() -> Mapping[str, str]:
    return load_blocks("everbeat.outbox")


@cache
def numbered_query(name: str) -> Query:
    return numbered(name, blocks()[name])


@cache
def _formatted(name: str) -> str:
    """Return a statement with %(name)s parameters."""
    return _PARAMETER.sub(r"%(\1)s", blocks()[name].replace("%", "%%"))


def driver_of(connection: Any) -> str:
    """Return the package that the connection belongs to. A subclass belongs to that of its base class."""
    for base in type(connection).__mro__:
        package = base.__module__.partition(".")[0]
        if package in _DRIVERS:
            return package
    raise UnknownConnection(f"a {type(connection).__name__} is not supported; pass {_SUPPORTED}")


def execute(connection: Any, name: str, values: Mapping[str, Any]) -> Any:
    """Execute a statement on a sync connection and return the first column of its first row, if it returns rows."""
    match driver_of(connection):
        case "psycopg":
            cursor = connection.execute(_formatted(name), dict(values))
            if hasattr(cursor, "__await__"):
                cursor.close()
                raise _wrong_kind(connection, "await … _async")
            return _first(cursor)
        case "sqlalchemy":
            from sqlalchemy import text

            result = connection.execute(text(blocks()[name]), dict(values))
            if hasattr(result, "__await__"):
                result.close()
                raise _wrong_kind(connection, "await … _async")
            return result.scalar() if result.returns_rows else None
        case "django":
            with connection.cursor() as cursor:
                cursor.execute(_formatted(name), dict(values))
                return _first(cursor)
        case _:
            raise _wrong_kind(connection, "await … _async")


async def execute_async(connection: Any, name: str, values: Mapping[str, Any]) -> Any:
    """Like `execute`, on an async connection."""
    match driver_of(connection):
        case "asyncpg":
            query = numbered_query(name)
            return await connection.fetchval(query.sql, *query.arguments(values))
        case "psycopg" if _is_async(connection):
            cursor = await connection.execute(_formatted(name), dict(values))
            return None if cursor.description is None else (await cursor.fetchone())[0]
        case "sqlalchemy" if _is_async(connection):
            from sqlalchemy import text

            result = await connection.execute(text(blocks()[name]), dict(values))
            return result.scalar() if result.returns_rows else None
        case _:
            raise _wrong_kind(connection, "the method without _async")


def _first(cursor: Any) -> Any:
    return None if cursor.description is None else cursor.fetchone()[0]


def _is_async(connection: Any) -> bool:
    return any(
        base.__name__.startswith("Async") or base.__name__ == "async_scoped_session" for base in type(connection).__mro__
    )


def _wrong_kind(connection: Any, advice: str) -> UnknownConnection:
    return UnknownConnection(f"a {type(connection).__name__} cannot be used here; use {advice}")
