"""Every statement on tenant data names the tenant. The exceptions are listed here with their reasons."""

from __future__ import annotations

import re

import pytest

from everbeat.store.queries import load_blocks

TENANT_TABLES = (
    *("schedules", "past_rules", "ticks", "tasks", "task_history", "attempts", "task_log", "dead_letters", "task_keys"),
    *("calendars", "idempotent_answers", "api_keys", "audit_log", "workers", "pauses", "bulk_operations"),
)
TENANT_DATA = re.compile(rf"\b(?:FROM|JOIN|INTO|UPDATE)\s+({'|'.join(TENANT_TABLES)})\b")
# The tenant is compared with a value, is part of a key, or is written with a new row.
NAMES_TENANT = re.compile(r"tenant_id\s*=|\btenant_ids\b|\(\w*\.?tenant_id\b|^\s*INSERT INTO \w+[^;]*?tenant_id", re.S)

FIRING = "the ticker fires for all tenants; ids come from its own scan, and new rows copy the tenant"
LOOPS = "the promoter, the reaper and overlap release work for all tenants; ids come from their own scans"
FOUND = "the same transaction has found the rows by their tenant"
RETENTION = "retention is for all tenants"
KEYS = "a key is found by its hash before its tenant is known"
OPERATORS = "only operators list all tenants"

EXCEPTIONS = {
    "worker_prune": RETENTION,
    "worker_write_seen": "a row is found by its id, which follows from the tenant and the name of the worker",
    "audit_log_list_all": OPERATORS,
    "bulk_advance": "the node has read the operation, and owns it",
    "bulk_claim": "a node executes the operations of all tenants",
    "bulk_prune": RETENTION,
    "blob_unused": RETENTION,
    "key_admins": OPERATORS,
    "key_exists": KEYS,
    "key_find": KEYS,
    "key_touch": KEYS,
    "month_prune_attempts": RETENTION,
    "month_prune_history": RETENTION,
    "month_prune_log": RETENTION,
    "month_prune_ticks": RETENTION,
    "session_prune": RETENTION,
    "schedule_due": FIRING,
    "schedule_fault": FIRING,
    "schedule_in_zones": LOOPS,
    "schedule_overdue": FIRING,
    "schedule_zones": LOOPS,
    "schedule_past_rule_insert": "copies the row of its schedule, which the same transaction has changed by its tenant",
    "task_claim": FOUND,
    "task_claim_paused": "the tenants of the pauses are compared with those of the steps",
    "task_complete": FOUND,
    "task_expired": LOOPS,
    "task_heartbeat": FOUND,
    "task_promote": LOOPS,
    "task_promote_next": LOOPS,
    "pause_end": "the tenant is compared with IS, because it is null for the pause of everything",
    "audit_log_prune": RETENTION,
    "pause_expire": RETENTION,
    "pause_prune": RETENTION,
    "task_queues": "compared with the queues of a key, before a write that names the tenant",
    "task_ready_queues": LOOPS,
    "task_release_held": LOOPS,
    "task_release_held_any": LOOPS,
    "task_release_held_candidates": LOOPS,
    "task_release_held_locked": LOOPS,
    "task_release_held_schedules": LOOPS,
    "task_release_held_replaced": LOOPS,
    "task_targets": "the ids are those of tasks that the deliverer has just claimed",
    "tick_fire": FIRING,
    "tick_fire_guard": FIRING,
}


def statement_of(text: str) -> str:
    return re.sub(r"--.*", "", text)


def blocks_without_tenant(dialect: str) -> set[str]:
    """Return the blocks on tenant data that do not name the tenant."""
    blocks = {name: statement_of(text) for name, text in load_blocks(f"everbeat.store.{dialect}").items()}
    return {name for name, text in blocks.items() if TENANT_DATA.search(text) and not NAMES_TENANT.search(text)}


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_statement_names_the_tenant_except_the_listed_ones(dialect: str) -> None:
    assert sorted(blocks_without_tenant(dialect) - EXCEPTIONS.keys()) == []


def test_every_listed_exception_is_needed() -> None:
    assert sorted(EXCEPTIONS.keys() - blocks_without_tenant("sqlite") - blocks_without_tenant("postgres")) == []


def test_the_check_finds_a_statement_without_the_tenant() -> None:
    for statement in ("SELECT tenant_id FROM tasks WHERE id = :id", "DELETE FROM schedules WHERE name = :name"):
        assert TENANT_DATA.search(statement)
        assert not NAMES_TENANT.search(statement)
    assert NAMES_TENANT.search("UPDATE tasks SET state = 'x' WHERE tenant_id = :tenant_id")
