"""What a migration will do: its statements, whether they only expand the schema, and the locks that they take.

Read from the text of the migration. An unknown statement counts as one that does not only expand the schema.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from everbeat.store.migrate import Migration

# What building an index or checking a constraint reads in a second, on an ordinary disk.
_BYTES_PER_SECOND = 100_000_000
_SHORT = "for a moment"
# Nodes of 0.1.0 read all columns of these tables, and fail if there is one that they do not know.
TABLES_READ_AS_A_WHOLE = ("tenants", "api_keys")

_DOLLARS = re.compile(r"\$(\w*)\$.*?\$\1\$", re.S)
_COMMENT = re.compile(r"--[^\n]*")
_CREATED = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)", re.I)


class PlannedLock(NamedTuple):
    """A lock on an existing table. `blocks`: what waits for it. `scans`: whether it is held while the table is read."""

    table: str
    mode: str
    blocks: str
    scans: bool


class MigrationPlan(NamedTuple):
    """`problems`: why the migration does not only expand the schema."""

    migration: Migration
    locks: list[PlannedLock]
    problems: list[str]


def plan_of(migration: Migration, unreleased: Collection[str] = ()) -> MigrationPlan:
    """`unreleased`: tables that no released version knows, so that any change of them is harmless."""
    statements = statements_of(migration.sql)
    new = created_tables(migration)
    locks = [lock for statement in statements if (lock := _lock_of(statement)) is not None and lock.table not in new]
    unknown = new.union(unreleased)
    problems = [problem for statement in statements if (problem := _problem_of(statement, unknown, statements)) is not None]
    return MigrationPlan(migration, locks, problems)


def created_tables(migration: Migration) -> set[str]:
    return {match[1].lower() for statement in statements_of(migration.sql) for match in _CREATED.finditer(statement)}


def estimated_seconds(plan: MigrationPlan, table_bytes: Mapping[str, int]) -> float:
    """How long the migration holds its locks, from the sizes of the tables that it reads as a whole."""
    return sum(table_bytes.get(lock.table, 0) / _BYTES_PER_SECOND for lock in plan.locks if lock.scans)


def statements_of(sql: str) -> list[str]:
    """The statements of a script, without comments. Bodies of functions and triggers are replaced by `$$`."""
    text = _DOLLARS.sub("$$", _COMMENT.sub("", sql))
    text = re.sub(r"\bBEGIN\b.*?;\s*END\s*;", "BEGIN END;", text, flags=re.S | re.I)
    return [re.sub(r"\s+", " ", part).strip() for part in text.split(";") if part.strip()]


# Each kind of statement: a pattern whose first group is the table, the lock on it, what waits for it, and whether it scans.
_LOCKS = (
    (r"ALTER TABLE (?:ONLY )?(\w+) .*ADD CONSTRAINT (?!.*NOT VALID)", "ACCESS EXCLUSIVE", "everything", True),
    (r"ALTER TABLE (?:ONLY )?(\w+) ", "ACCESS EXCLUSIVE", "everything", False),
    (r"CREATE (?:UNIQUE )?INDEX \w+ ON (\w+)", "SHARE", "writes", True),
    (r"CREATE TRIGGER \w+ .* ON (\w+)", "SHARE ROW EXCLUSIVE", "writes", False),
    (r"UPDATE (?!sqlite_schema)(\w+) SET", "ROW EXCLUSIVE", "writes of the same rows", True),
    (r"DELETE FROM (\w+)", "ROW EXCLUSIVE", "writes of the same rows", True),
)


def _lock_of(statement: str) -> PlannedLock | None:
    for pattern, mode, blocks, scans in _LOCKS:
        if match := re.match(pattern, statement, re.I):
            return PlannedLock(match[1].lower(), mode, blocks, scans)
    if match := re.match(r"DROP INDEX (?:IF EXISTS )?(\w+)", statement, re.I):
        return PlannedLock(match[1].lower(), "ACCESS EXCLUSIVE", "everything", False)
    return None


_HARMLESS = (
    r"CREATE TABLE ",
    r"CREATE INDEX ",
    r"CREATE (OR REPLACE )?FUNCTION ",
    r"CREATE TRIGGER \w+ AFTER ",
    r"ALTER FUNCTION ",
    r"(GRANT|REVOKE) ",
    r"DO \$\$",
    r"COMMENT ON ",
    r"SELECT ",
    r"PRAGMA writable_schema",
    # A CHECK constraint that permits more than before, in the text of the schema of SQLite.
    r"UPDATE sqlite_schema SET sql = replace",
)


def _problem_of(statement: str, new: set[str], statements: Sequence[str]) -> str | None:
    """Why the statement does not only expand the schema. None if code of the version before can still be used after it."""
    if match := re.match(r"ALTER TABLE (\w+) (.*)", statement, re.I):
        return None if match[1].lower() in new else _problem_of_alter(match[1].lower(), match[2], statements)
    if match := re.match(r"CREATE UNIQUE INDEX \w+ ON (\w+)", statement, re.I):
        return None if match[1].lower() in new else f"a unique index on {match[1]} can refuse the writes of older code"
    if match := re.match(r"INSERT INTO (\w+)", statement, re.I):
        return None if match[1].lower() in new else f"rows are inserted into {match[1]}, which older code reads"
    if any(re.match(pattern, statement, re.I) for pattern in _HARMLESS):
        return None
    return f"not known to be harmless: {statement[:80]}"


def _problem_of_alter(table: str, actions: str, statements: Sequence[str]) -> str | None:
    for action in re.split(r",\s*(?=ADD |DROP |ALTER |RENAME )", actions, flags=re.I):
        if match := re.match(r"DROP CONSTRAINT (\w+)", action, re.I):
            if not any(re.search(rf"ADD CONSTRAINT {match[1]}\b", one, re.I) for one in statements):
                return f"the constraint {match[1]} of {table} is dropped and not replaced by one that permits more"
        elif re.match(r"ADD CONSTRAINT (\w+)", action, re.I):
            name = action.split()[2]
            if not any(re.search(rf"DROP CONSTRAINT {name}\b", one, re.I) for one in statements):
                return f"the new constraint {name} can refuse the writes of older code"
        elif re.match(r"ADD COLUMN ", action, re.I):
            if re.search(r"NOT NULL", action, re.I) and not re.search(r"DEFAULT", action, re.I):
                return f"a column of {table} is NOT NULL and has no default, so older code cannot insert rows"
            if table in TABLES_READ_AS_A_WHOLE:
                return f"{table} gets a column, and nodes of 0.1.0 read all columns of this table"
        elif not re.match(r"SET \(", action, re.I):
            return f"not known to be harmless: ALTER TABLE {table} {action[:60]}"
    return None
