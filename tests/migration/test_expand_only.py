"""Migrations after 0.1.0 only expand the schema, unless they say which code they require; and what `--plan` shows of them."""

from __future__ import annotations

import pytest

from everbeat.store.migrate import BASELINE, RELEASES, Migration, load_migrations, with_minimums
from everbeat.store.migration_plan import PlannedLock, created_tables, estimated_seconds, plan_of, statements_of

NEWER = [
    pytest.param(migration, id=f"{dialect}-{migration.name}")
    for dialect in ("sqlite", "postgres")
    for migration in load_migrations(f"everbeat.store.{dialect}")
    if migration.number > BASELINE
]

UNRELEASED = frozenset(
    table
    for migration in load_migrations("everbeat.store.sqlite")
    if migration.number > max(RELEASES.values())
    for table in created_tables(migration)
)


@pytest.mark.parametrize("migration", NEWER)
def test_a_migration_only_expands_the_schema_or_says_what_it_requires(migration: Migration) -> None:
    """See docs/howto/upgrade.md, "What a migration may do"."""
    problems = plan_of(migration, UNRELEASED).problems
    assert problems == [] or migration.is_contract


def test_both_dialects_require_the_same_code() -> None:
    minimums = {
        dialect: [one.minimum for one in load_migrations(f"everbeat.store.{dialect}")] for dialect in ("sqlite", "postgres")
    }
    assert minimums["sqlite"] == minimums["postgres"]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE extra (id integer PRIMARY KEY); CREATE UNIQUE INDEX extra_name ON extra (id)",
        "ALTER TABLE tasks ADD COLUMN extra text",
        "ALTER TABLE tasks ADD COLUMN extra integer NOT NULL DEFAULT 0, ADD COLUMN more text",
        "ALTER TABLE tasks DROP CONSTRAINT c, ADD CONSTRAINT c CHECK (a IN ('x', 'y'))",
        "ALTER TABLE tasks DROP CONSTRAINT c; ALTER TABLE tasks ADD CONSTRAINT c CHECK (a IN ('x', 'y')) NOT VALID",
        "CREATE INDEX extra ON tasks (run_at) -- ALTER TABLE tasks DROP COLUMN run_at",
        "CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS $$ BEGIN DROP TABLE tasks; END $$",
        "CREATE TRIGGER t AFTER INSERT ON ticks BEGIN DELETE FROM tasks; SELECT 1; END",
        "CREATE TABLE extra (id integer); INSERT INTO extra VALUES (1)",
    ],
)
def test_a_statement_that_expands_is_allowed(statement: str) -> None:
    assert plan_of(Migration(99, "0099_x", statement + ";")).problems == []


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("ALTER TABLE tasks ADD COLUMN extra text NOT NULL", "has no default"),
        ("ALTER TABLE tenants ADD COLUMN extra text", "read all columns of this table"),
        ("ALTER TABLE tasks DROP COLUMN labels", "ALTER TABLE tasks DROP COLUMN labels"),
        ("ALTER TABLE tasks RENAME COLUMN labels TO tags", "RENAME COLUMN"),
        ("ALTER TABLE tasks ALTER COLUMN labels TYPE jsonb", "ALTER COLUMN labels"),
        ("ALTER TABLE tasks ADD CONSTRAINT c CHECK (priority > 0)", "can refuse the writes"),
        ("ALTER TABLE tasks DROP CONSTRAINT c", "not replaced"),
        ("CREATE UNIQUE INDEX one ON tasks (id)", "can refuse the writes"),
        ("DROP TABLE tasks", "DROP TABLE tasks"),
        ("DROP INDEX tasks_ready", "DROP INDEX"),
        ("UPDATE tasks SET queue = 'x'", "UPDATE tasks"),
        ("DELETE FROM tasks", "DELETE FROM tasks"),
        ("CREATE TRIGGER t BEFORE INSERT ON tasks EXECUTE FUNCTION f()", "CREATE TRIGGER t BEFORE"),
        ("INSERT INTO tasks VALUES (1)", "older code reads"),
    ],
)
def test_a_statement_that_old_code_may_not_survive_is_found(statement: str, problem: str) -> None:
    (found,) = plan_of(Migration(99, "0099_x", statement + ";")).problems
    assert problem in found


def test_a_contract_raises_the_minimum_of_all_later_migrations() -> None:
    texts = {16: "", 17: "-- Contract: requires migration 16\nDROP TABLE x;", 18: ""}
    migrations = [Migration(number, f"{number:04}_x", texts.get(number, "")) for number in range(1, 19)]
    assert [one.minimum for one in with_minimums(migrations)] == [*range(1, 16), 15, 16, 16]


def test_the_locks_of_a_migration_are_those_on_existing_tables() -> None:
    plan = plan_of(
        Migration(
            99,
            "0099_x",
            "CREATE TABLE new (a text); CREATE INDEX n ON new (a); ALTER TABLE tasks ADD COLUMN b text;"
            "CREATE INDEX t ON task_history (queue);",
        )
    )
    assert plan.locks == [
        PlannedLock("tasks", "ACCESS EXCLUSIVE", "everything", False),
        PlannedLock("task_history", "SHARE", "writes", True),
    ]
    assert estimated_seconds(plan, {"tasks": 10**12, "task_history": 500_000_000}) == 5.0


def test_bodies_and_comments_are_not_statements() -> None:
    sql = "-- a; b\nCREATE FUNCTION f() AS $x$ one; two; $x$;\nDO $$ three; $$;"
    assert statements_of(sql) == ["CREATE FUNCTION f() AS $$", "DO $$"]
