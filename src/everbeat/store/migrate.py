"""Loads the numbered migrations, finds those that a database lacks, and decides whether a schema can be used as it is.

Each dialect applies the migrations itself.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import NamedTuple

from everbeat.core.errors import SchemaTooNew, SchemaTooOld

_NAME = re.compile(r"(\d{4})_(\w+)\.sql")


class Migration(NamedTuple):
    number: int
    name: str
    sql: str


def load_migrations(package: str) -> list[Migration]:
    """All migrations of a dialect in order. Raises ValueError if a number is missing."""
    found = sorted(
        Migration(int(match[1]), f"{match[1]}_{match[2]}", path.read_text(encoding="utf-8"))
        for path in files(package).joinpath("migrations").iterdir()
        if (match := _NAME.fullmatch(path.name))
    )
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations of {package} are not numbered 1, 2, 3, …")
    return found


def missing_migrations(migrations: list[Migration], version: int) -> list[Migration]:
    """The migrations that a database at `version` lacks. Raises SchemaTooNew if the database is newer than this code."""
    check_not_newer(version, migrations[-1].number)
    return [migration for migration in migrations if migration.number > version]


def check_schema(version: int, needed: int) -> None:
    """Check that code that needs the migration `needed` can use a database at `version`."""
    check_not_newer(version, needed)
    if version < needed:
        raise SchemaTooOld(
            f"the database is at migration {version}, but this version of Everbeat needs {needed}; "
            "run: everbeat migrate (or start one node with --migrate)"
        )


def check_not_newer(version: int, supported: int) -> None:
    if version > supported:
        raise SchemaTooNew(
            f"the database is at migration {version}, but this version of Everbeat supports only {supported}; "
            "run a newer version: pip install --upgrade everbeat"
        )
