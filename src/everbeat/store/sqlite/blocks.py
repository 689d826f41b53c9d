"""SQL blocks with the types of the columns that they return, declared as `-- returns: id uuid, run_at time`.

SQLite returns ids as blobs, and times and booleans as integers. The declared columns are converted, and all others are returned
as they are. `-- returns: tuples` says that the rows are read as tuples without conversion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import apsw

from everbeat.store.queries import load_blocks, load_returns
from everbeat.store.sqlite.conversions import from_microseconds, tenant_of, to_uuid

Converter: TypeAlias = Callable[[Any], Any] | None
Columns: TypeAlias = list[tuple[str, Converter]]

_TUPLES = "tuples"
_CONVERTERS: dict[str, Converter] = {
    "uuid": to_uuid,
    "cached_uuid": tenant_of,  # for columns with few distinct values
    "time": from_microseconds,
    "bool": bool,
    "bytes": None,
}


class Block:
    """A statement, and how the columns of its rows are converted."""

    def __init__(self, name: str, sql: str, returns: str = "") -> None:
        self.name = name
        self.sql = sql
        self.is_read_as_tuples = returns == _TUPLES
        self.types = {} if self.is_read_as_tuples else _parse(name, returns)
        # By the names of the columns, because those of `SELECT *` change when another process migrates the database.
        self._columns: dict[tuple[str, ...], Columns] = {}
        self.is_checked = False

    def check(self, cursor: apsw.Cursor, _sql: str, _values: Any) -> bool:
        """Check the declared columns before the block runs for the first time, even if it then returns no rows."""
        self.columns(cursor)
        self.is_checked = True
        return True

    def columns(self, cursor: apsw.Cursor) -> Columns:
        """The columns of a statement that is being run, with their converters."""
        names = tuple([column[0] for column in cursor.get_description()])
        columns = self._columns.get(names)
        if columns is None:
            if missing := sorted(self.types.keys() - set(names)):
                raise ValueError(f"SQL block {self.name} declares columns that it does not return: {', '.join(missing)}")
            columns = self._columns[names] = [(name, _CONVERTERS.get(self.types.get(name, ""))) for name in names]
        return columns


def _parse(name: str, returns: str) -> dict[str, str]:
    """The declared types by column."""
    types: dict[str, str] = {}
    for declaration in filter(None, returns.split(", ")):
        column, _, type_ = declaration.partition(" ")
        if type_ not in _CONVERTERS:
            raise ValueError(f"SQL block {name} declares `{declaration}`; a type is one of {', '.join(_CONVERTERS)}")
        if column in types:
            raise ValueError(f"SQL block {name} declares {column} twice")
        types[column] = type_
    return types


def load_typed_blocks(package: str) -> dict[str, Block]:
    """All blocks of a package with their declarations."""
    returns = load_returns(package)
    return {name: Block(name, sql, returns.get(name, "")) for name, sql in load_blocks(package).items()}
