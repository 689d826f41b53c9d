"""Loads the numbered migrations and finds those that a database lacks. Each dialect applies them itself."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import NamedTuple

from everbeat.core.errors import StoreUnusable

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
    """The migrations that a database at `version` lacks. Raises StoreUnusable if the database is newer than this code."""
    newest = migrations[-1].number
    if version > newest:
        raise StoreUnusable(
            f"the database is at migration {version}, but this version of Everbeat supports only {newest}; run a newer version"
        )
    return [migration for migration in migrations if migration.number > version]
