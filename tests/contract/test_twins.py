"""The two dialects have the same files, blocks and migrations, except for the differences listed here."""

from __future__ import annotations

import inspect
import re
from importlib.resources import files
from pathlib import Path

import pytest

from everbeat.store.base import Store
from everbeat.store.migrate import load_migrations
from everbeat.store.queries import load_blocks

PACKAGES = {"sqlite": "everbeat.store.sqlite", "postgres": "everbeat.store.postgres"}

# SQLite uses the process clock, stores months as rows, and needs several statements to move rows between tables.
ONLY_SQLITE = {
    "audit_log_prune_begin",
    "audit_log_prune_end",
    "archive_count_attempts",
    "archive_count_task_history",
    "archive_count_task_log",
    "archive_count_ticks",
    "archive_remove_attempts",
    "archive_remove_task_history",
    "archive_remove_task_log",
    "archive_remove_ticks",
    "calendar_exists",
    "month_prune_attempts",
    "month_prune_history",
    "month_prune_log",
    "month_prune_ticks",
    "tenant_prune_attempts",
    "tenant_prune_attempts_page",
    "tenant_prune_task_history",
    "tenant_prune_task_history_page",
    "tenant_prune_task_log",
    "tenant_prune_task_log_page",
    "tenant_prune_ticks",
    "tenant_prune_ticks_page",
    "partition_renew_heartbeat",
    "partition_renew_live",
    "partition_renew_newest",
    "sample_ready_queues",
    "task_cancel_insert",
    "task_claim_oldest",
    "task_claim_paused",
    "task_claim_pick",
    "task_claim_picks",
    "task_complete_insert",
    "task_end_attempt",
    "task_finish_dead_letter",
    "task_finish_insert",
    "task_heartbeat_find",
    "task_promote_next",
    "task_submit_different",
    "task_submit_equal",
    "task_submit_paused",
    "tick_fire_clear",
    "tick_fire_decide",
    "tick_fire_guard",
    "tick_fire_input",
    "tick_fire_ledger",
    "tick_fire_result",
    "tick_fire_table",
    "tick_fire_tasks",
}
# PostgreSQL has its own clock, month tables, notices between processes, and concurrent writers.
ONLY_POSTGRES = {
    "clock",
    "event_stream_send",
    "key_lock",
    "ledger_day_lock",
    "migration_lock",
    "archive_blocks",
    "archive_count",
    "month_detach",
    "month_detach_as_owner",
    "month_detach_finish",
    "month_drop",
    "month_drop_as_owner",
    "month_ensure",
    "month_list",
    "month_rename",
    "month_row_count",
    "notice_send",
    "sample_tables",
    "sample_wal",
    "task_claim_unlocked_tenants",
    "task_complete_unlocked",
    "tenant_prune",
    "tenant_prune_count",
    "task_release_held_locked",
    "tenant_lock",
}

# PostgreSQL permits the deletion of old audit log entries to a function, SQLite to a transaction with a row in this table.
ONLY_SQLITE_TABLES = {"audit_log_pruning"}

TABLES = [
    "schedules",
    "past_rules",
    "ticks",
    "tasks",
    "task_history",
    "attempts",
    "task_log",
    "dead_letters",
    "task_keys",
    "partitions",
    "nodes",
    "calendars",
    "endpoints",
    "server_secrets",
    "checks",
    "check_pings",
    "check_ticks",
    "check_transitions",
    "idempotent_answers",
    "tenants",
    "api_keys",
    "audit_log",
    "workers",
    "pauses",
    "bulk_operations",
    "service_levels",
    "alerts",
    "alert_tenants",
    "alert_signals",
    "incidents",
    "time_zones",
    "audit_findings",
    "loop_leases",
    "ledger_days",
    "tenant_ledger_days",
    "tenant_retention",
    "archived_months",
]

# Not verbs on rows. They are tested in tests/migration or tests/services, or by every test.
NOT_ROW_VERBS = {"open", "close", "pool", "migrate", "schema_version", "subscribe", "publish", "pool_use"}


def sql_texts(dialect: str) -> dict[str, str]:
    folder = files(PACKAGES[dialect]).joinpath("sql")
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir() if path.name.endswith(".sql")}


def blocks_of(text: str) -> set[str]:
    return set(re.findall(r"(?m)^-- (?:name|fragment): (\w+)$", text))


def test_both_dialects_have_the_same_sql_files() -> None:
    assert sorted(sql_texts("sqlite")) == sorted(sql_texts("postgres"))


@pytest.mark.parametrize("dialect", list(PACKAGES))
def test_every_sql_file_has_a_python_file_of_its_name(dialect: str) -> None:
    modules = {path.name.removesuffix(".py") for path in files(PACKAGES[dialect]).iterdir() if path.name.endswith(".py")}
    assert {name.removesuffix(".sql") for name in sql_texts(dialect)} <= modules


def test_both_dialects_have_the_same_blocks_except_the_listed_ones() -> None:
    sqlite, postgres = (set(load_blocks(PACKAGES[dialect])) for dialect in ("sqlite", "postgres"))
    assert sqlite - postgres == ONLY_SQLITE
    assert postgres - sqlite == ONLY_POSTGRES


def test_a_block_is_in_the_same_file_in_both_dialects() -> None:
    files_by_block = {
        dialect: {block: name for name, text in sql_texts(dialect).items() for block in blocks_of(text)} for dialect in PACKAGES
    }
    shared = files_by_block["sqlite"].keys() & files_by_block["postgres"].keys()
    assert {block: files_by_block["sqlite"][block] for block in shared} == {
        block: files_by_block["postgres"][block] for block in shared
    }


def test_both_dialects_have_the_same_migrations() -> None:
    names = {dialect: [migration.name for migration in load_migrations(package)] for dialect, package in PACKAGES.items()}
    assert names["sqlite"] == names["postgres"]


@pytest.mark.parametrize("dialect", list(PACKAGES))
def test_every_block_has_a_comment(dialect: str) -> None:
    for name, text in load_blocks(PACKAGES[dialect]).items():
        first = text.splitlines()[0]
        assert re.fullmatch(r"-- [A-Z].+[^ ]", first), f"{dialect} {name} begins with {first!r}"


@pytest.mark.parametrize("dialect", list(PACKAGES))
def test_every_block_belongs_to_a_verb_and_is_used(dialect: str) -> None:
    modules = [path for path in files(PACKAGES[dialect]).iterdir() if path.name.endswith(".py")]
    verbs = ("shared.py", "endpoint_verbs.py", "alert_verbs.py", "check_verbs.py")
    shared = [files("everbeat.store") / name for name in verbs]
    source = "\n".join(path.read_text(encoding="utf-8") for path in [*modules, *shared])
    unused = [name for name in load_blocks(PACKAGES[dialect]) if f'"{name}"' not in source]
    assert unused == []


@pytest.mark.parametrize("table", TABLES)
def test_tables_have_the_same_columns(table: str) -> None:
    found = {}
    for dialect, package in PACKAGES.items():
        text = "\n".join(migration.sql for migration in load_migrations(package))
        match = re.search(rf"(?ms)^CREATE TABLE {table} \((.*?)^\)", text)
        assert match is not None, f"{dialect} has no table {table}"
        added = "".join(re.findall(rf"(?ms)^ALTER TABLE {table}\s(.*?);", text))
        found[dialect] = re.findall(r"(?m)^  ([a-z_]+) ", match[1]) + re.findall(r"ADD COLUMN ([a-z_]+) ", added)
    assert found["sqlite"] == found["postgres"]


def test_every_table_is_compared() -> None:
    for package in PACKAGES.values():
        text = "\n".join(migration.sql for migration in load_migrations(package))
        assert set(re.findall(r"(?m)^CREATE TABLE (\w+)", text)) - ONLY_SQLITE_TABLES == set(TABLES)


def test_every_verb_has_a_contract_test_with_its_name() -> None:
    verbs = {name for name, _ in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_")} - NOT_ROW_VERBS
    tests = "\n".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    tested = set(re.findall(r"def (test_\w+)", tests))
    assert sorted(verb for verb in verbs if not any(name.startswith(f"test_{verb}_") for name in tested)) == []
