"""Loads the numbered migrations, finds those that a database lacks, and decides whether a schema can be used as it is.

A migration expands the schema, so that code of the version before it can still be used, or it contracts it. A file that
contracts says so in a line `-- Contract: requires migration N`: code that knows fewer migrations than N cannot use the schema
after it. The database records this number with the migration, because older code does not have the file.

Each dialect applies the migrations itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

from everbeat.core.errors import SchemaTooNew, SchemaTooOld

# The newest migration of 0.1.0, which refuses every newer schema. Up to here, each migration required the code to know it.
BASELINE = 15
# The newest migration of each release, for `everbeat migrate --compatible-with`.
RELEASES = {"0.1.0": 15}

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_CONTRACT = re.compile(r"(?m)^-- Contract: requires migration (\d+)$")


class Migration(NamedTuple):
    """`minimum`: the migration that code has to know to use the schema after this one."""

    number: int
    name: str
    sql: str
    minimum: int = 0

    @property
    def is_contract(self) -> bool:
        return _CONTRACT.search(self.sql) is not None


class SchemaVersion(NamedTuple):
    """The newest migration of the database, that of this code, and the one that code has to know to use the database."""

    version: int
    needed: int
    minimum: int = 0

    @property
    def is_older(self) -> bool:
        return self.version < self.needed

    @property
    def is_newer(self) -> bool:
        """Newer than this code, and not compatible with it."""
        return self.version > self.needed and self.needed < self.minimum

    @property
    def is_usable(self) -> bool:
        return not self.is_older and not self.is_newer


def load_migrations(package: str) -> list[Migration]:
    """All migrations of a dialect in order. Raises ValueError if a number is missing."""
    found = sorted(
        Migration(int(match[1]), f"{match[1]}_{match[2]}", path.read_text(encoding="utf-8"))
        for path in files(package).joinpath("migrations").iterdir()
        if (match := _NAME.fullmatch(path.name))
    )
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations of {package} are not numbered 1, 2, 3, …")
    return with_minimums(found)


def with_minimums(migrations: Sequence[Migration]) -> list[Migration]:
    """The migrations with their minimums. A migration that expands the schema keeps the minimum of the one before it."""
    minimum = 0
    found = []
    for migration in migrations:
        if migration.number <= BASELINE:
            minimum = migration.number
        elif match := _CONTRACT.search(migration.sql):
            minimum = max(minimum, int(match[1]))
        found.append(migration._replace(minimum=minimum))
    return found


def missing_migrations(migrations: Sequence[Migration], schema: SchemaVersion) -> list[Migration]:
    """The migrations that a database lacks. Raises SchemaTooNew if this code cannot use the database."""
    check_not_newer(schema)
    return [migration for migration in migrations if migration.number > schema.version]


def is_shown(migration: Migration, visible: int | None, version: int, shown: int) -> bool:
    """Whether nodes of 0.1.0 see the migration. Without `visible`, they see it unless earlier migrations are hidden."""
    if visible is not None:
        return migration.number <= visible
    return shown >= version


def is_shown_as(visible: int | None, row: Mapping[str, int]) -> bool:
    """Whether nodes of 0.1.0 already see the migrations up to `visible`, or all of them (None)."""
    return row["visible"] == (row["version"] if visible is None else visible)


def record_of(migration: Migration) -> dict[str, str | int]:
    return {"number": migration.number, "name": migration.name, "minimum": migration.minimum}


def check_schema(schema: SchemaVersion) -> None:
    """Check that this code can use a database."""
    check_not_newer(schema)
    if schema.is_older:
        raise SchemaTooOld(
            f"the database is at migration {schema.version}, but this version of Everbeat needs {schema.needed}; "
            "run: everbeat migrate (or start one node with --migrate)"
        )


def check_not_newer(schema: SchemaVersion) -> None:
    if schema.is_newer:
        raise SchemaTooNew(
            f"the database is at migration {schema.version}, but this version of Everbeat supports only {schema.needed}; "
            "run a newer version: pip install --upgrade everbeat"
        )
