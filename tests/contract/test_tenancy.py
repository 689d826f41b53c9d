"""Every statement on tenant data names the tenant. The exceptions are listed here with their reasons."""

from __future__ import annotations

import re

import pytest

from everbeat.store.queries import load_blocks

TENANT_TABLES = (
    *("schedules", "past_rules", "ticks", "tasks", "task_history", "attempts", "task_log", "dead_letters", "task_keys"),
    *(
        "calendars",
        "idempotent_answers",
        "api_keys",
        "audit_log",
        "workers",
        "pauses",
        "bulk_operations",
        "audit_findings",
        "ledger_days",
        "tenant_ledger_days",
    ),
    *("alerts", "alert_tenants", "alert_signals", "incidents"),
    *("calendars", "idempotent_answers", "api_keys", "audit_log", "workers", "pauses", "bulk_operations"),
    *("checks", "check_pings", "check_ticks", "check_transitions"),
)
TENANT_DATA = re.compile(rf"\b(?:FROM|JOIN|INTO|UPDATE)\s+({'|'.join(TENANT_TABLES)})\b")
# The tenant is compared with a value, is part of a key, or is written with a new row.
NAMES_TENANT = re.compile(r"tenant_id\s*=|\btenant_ids\b|\(\w*\.?tenant_id\b|^\s*INSERT INTO \w+[^;]*?tenant_id", re.S)

FIRING = "the ticker fires for all tenants; ids come from its own scan, and new rows copy the tenant"
LOOPS = "the promoter, the reaper and overlap release work for all tenants; ids come from their own scans"
FOUND = "the same transaction has found the rows by their tenant"
RETENTION = "retention is for all tenants"
KEYS = "a key is found by its hash before its tenant is known"
AUDITOR = "the auditor works for all tenants; ids come from its own scan"
FOUND_CHECKS = "the caller has read the check by its token, or for all tenants, and names its version"
OPERATORS = "only operators list all tenants"

EXCEPTIONS = {
    "worker_prune": RETENTION,
    "worker_write_seen": "a row is found by its id, which follows from the tenant and the name of the worker",
    "alert_signal_prune": RETENTION,
    "audit_log_list_all": OPERATORS,
    "bulk_advance": "the node has read the operation, and owns it",
    "bulk_claim": "a node executes the operations of all tenants",
    "bulk_prune": RETENTION,
    "blob_unused": RETENTION,
    "finding_count": AUDITOR,
    "finding_list_all": OPERATORS,
    "finding_open": AUDITOR,
    "finding_prune": RETENTION,
    "finding_resolve": AUDITOR,
    "incident_prune": RETENTION,
    "check_advance": FOUND_CHECKS,
    "check_due": "the evaluator works for all tenants",
    "check_find_tokens": "a check is found by its token before its tenant is known",
    "check_prune_pings": RETENTION,
    "check_prune_ticks": RETENTION,
    "check_prune_transitions": RETENTION,
    "check_state_counts": OPERATORS,
    "key_admins": OPERATORS,
    "key_exists": KEYS,
    "key_find": KEYS,
    "key_touch": KEYS,
    "month_prune_attempts": RETENTION,
    "month_prune_history": RETENTION,
    "month_prune_log": RETENTION,
    "month_prune_ticks": RETENTION,
    "session_prune": RETENTION,
    "month_sizes": RETENTION,
    "past_rule_prune": RETENTION,
    "dead_prune": RETENTION,
    "prune_count": RETENTION,
    "rollback_obstacles": OPERATORS,
    "fence_raise": "a restored database is made safe for all tenants",
    "archive_read_ticks": RETENTION,
    "archive_read_task_history": RETENTION,
    "archive_read_attempts": RETENTION,
    "archive_read_task_log": RETENTION,
    "archive_count_ticks": RETENTION,
    "archive_count_task_history": RETENTION,
    "archive_count_attempts": RETENTION,
    "archive_count_task_log": RETENTION,
    "archive_remove_ticks": RETENTION,
    "archive_remove_task_history": RETENTION,
    "archive_remove_attempts": RETENTION,
    "archive_remove_task_log": RETENTION,
    "tenant_prune_ticks_page": RETENTION,
    "tenant_prune_task_history_page": RETENTION,
    "tenant_prune_attempts_page": RETENTION,
    "tenant_prune_task_log_page": RETENTION,
    **dict.fromkeys(("sample_ready", "sample_ready_queues", "sample_running", "sample_waiting", "sample_workers"), OPERATORS),
    "schedule_audit": AUDITOR,
    "schedule_due": FIRING,
    "schedule_fault": FIRING,
    "schedule_in_zones": LOOPS,
    "schedule_overdue": FIRING,
    "schedule_page_end": LOOPS,
    "schedule_zones": LOOPS,
    "schedule_past_rule_insert": "copies the row of its schedule, which the same transaction has changed by its tenant",
    "task_claim": FOUND,
    "task_claim_paused": "the tenants of the pauses are compared with those of the steps",
    "task_complete": FOUND,
    "task_expired": LOOPS,
    "task_leases_ahead": LOOPS,
    "task_shorten_leases": LOOPS,
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
    "tick_audit": AUDITOR,
    "tick_fire": FIRING,
    "tick_fire_guard": FIRING,
    "tick_suspect": AUDITOR,
    "tick_day_doubled": AUDITOR,
    "tick_day_ranges": AUDITOR,
    "tick_day_totals": AUDITOR,
    "schedule_audit_find": AUDITOR,
    "ledger_day_prune": RETENTION,
    "ledger_day_incomplete": AUDITOR,
    "ledger_day_find": AUDITOR,
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
