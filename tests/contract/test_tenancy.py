"""Every statement on tenant data names the tenant. The engine's exceptions are listed here with their reasons."""

from __future__ import annotations

import re

import pytest

from everbeat.store.queries import load_blocks

OWNED = (
    *("schedules", "past_rules", "ticks", "tasks", "task_history", "attempts", "task_log", "dead_letters", "task_keys"),
    *("calendars", "idempotent_answers", "api_keys", "audit_log"),
)
TOUCHES = re.compile(rf"\b(?:FROM|JOIN|INTO|UPDATE)\s+({'|'.join(OWNED)})\b")
# The tenant is compared with a value, is part of a key that is looked up, or is written with a new row.
NAMES_IT = re.compile(r"tenant_id\s*=|\btenant_ids\b|\(\w*\.?tenant_id\b|^\s*INSERT INTO \w+[^;]*?tenant_id", re.S)

FIRING = "the ticker fires for all tenants; ids come from its own scan, and rows carry the tenant over"
MOVING = "promoting, reaping and taking turns is for all tenants; ids come from the engine's own look"
CLAIMED = "by rows that the same transaction found under their tenant"
RETENTION = "retention is for all tenants"
KEYS = "a key is found by its hash before its tenant is known"
OPERATORS = "only operators ask for all tenants at once"

ENGINE = {
    "audit_log_list_all": OPERATORS,
    "blob_unused": RETENTION,
    "key_admins": OPERATORS,
    "key_exists": KEYS,
    "key_find": KEYS,
    "key_touch": KEYS,
    "month_prune_attempts": RETENTION,
    "month_prune_history": RETENTION,
    "month_prune_log": RETENTION,
    "month_prune_ticks": RETENTION,
    "schedule_due": FIRING,
    "schedule_fault": FIRING,
    "schedule_overdue": FIRING,
    "schedule_past_rule_insert": "with the row of its schedule, which was changed under its tenant in the same transaction",
    "task_claim": CLAIMED,
    "task_complete": CLAIMED,
    "task_expired": MOVING,
    "task_heartbeat": CLAIMED,
    "task_promote": MOVING,
    "task_promote_next": MOVING,
    "task_queues": "held against the queues of a key, before a write that names the tenant",
    "task_release_held": MOVING,
    "task_release_held_any": MOVING,
    "task_release_held_candidates": MOVING,
    "task_release_held_schedules": MOVING,
    "task_release_held_replaced": MOVING,
    "tick_fire": FIRING,
    "tick_fire_decide": FIRING,
    "tick_fire_guard": FIRING,
}


def statement_of(text: str) -> str:
    return re.sub(r"--.*", "", text)


def blocks_without_tenant(dialect: str) -> set[str]:
    """Blocks on tenant data that do not name the tenant."""
    blocks = {name: statement_of(text) for name, text in load_blocks(f"everbeat.store.{dialect}").items()}
    return {name for name, text in blocks.items() if TOUCHES.search(text) and not NAMES_IT.search(text)}


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_statement_names_the_tenant_except_those_of_the_engine(dialect: str) -> None:
    assert sorted(blocks_without_tenant(dialect) - ENGINE.keys()) == []


def test_every_listed_exception_is_needed() -> None:
    assert sorted(ENGINE.keys() - blocks_without_tenant("sqlite") - blocks_without_tenant("postgres")) == []


def test_the_check_finds_a_statement_without_the_tenant() -> None:
    for statement in ("SELECT tenant_id FROM tasks WHERE id = :id", "DELETE FROM schedules WHERE name = :name"):
        assert TOUCHES.search(statement)
        assert not NAMES_IT.search(statement)
    assert NAMES_IT.search("UPDATE tasks SET state = 'x' WHERE tenant_id = :tenant_id")
