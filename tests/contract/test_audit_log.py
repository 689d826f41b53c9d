"""audit_log_list: the audit log, newest entry first. Entries cannot be changed or deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from everbeat.core.access import AuditLogEntry
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.base import Store
from everbeat.store.values import AuditLogFilter
from tests.factories import NOW, OTHER_TENANT, count_rows, execute_raw, make_audit_entry, seconds


async def write(store: Store, *entries: AuditLogEntry, at: float = 0) -> None:
    assert await store.tenant_write([], audit_log=entries, now=NOW + seconds(at))


async def subjects(store: Store, **wanted: Any) -> list[str]:
    return [one.subject for one in await store.audit_log_list(DEFAULT_TENANT, AuditLogFilter(**wanted), before=None, limit=10)]


async def test_audit_log_list_returns_the_entries_of_one_tenant_newest_first(store: Store) -> None:
    await write(store, make_audit_entry(subject="first"), at=0)
    await write(store, make_audit_entry(subject="second"), make_audit_entry(subject="theirs", tenant_id=OTHER_TENANT), at=1)
    assert await subjects(store) == ["second", "first"]
    all_entries = await store.audit_log_list(None, AuditLogFilter(), before=None, limit=10)
    assert {one.subject for one in all_entries} == {"first", "second", "theirs"}


async def test_audit_log_list_returns_every_field(store: Store) -> None:
    entry = make_audit_entry(detail='{"was":1}', request_id="r1", address="::1", key_id=OTHER_TENANT, actor="ci")
    await write(store, entry, at=5)
    expected = msgspec.structs.replace(entry, at=NOW + seconds(5))
    assert await store.audit_log_list(DEFAULT_TENANT, AuditLogFilter(), before=None, limit=1) == [expected]


@pytest.mark.parametrize("tenant_id", [DEFAULT_TENANT, None], ids=["own", "all"])
async def test_audit_log_list_pages_without_gaps_among_entries_of_one_instant(store: Store, tenant_id: None) -> None:
    await write(store, *(make_audit_entry(subject=str(number)) for number in range(7)))
    seen: list[AuditLogEntry] = []
    before = None
    while page := await store.audit_log_list(tenant_id, AuditLogFilter(), before=before, limit=3):
        seen += page
        assert page[-1].at is not None
        before = (page[-1].at, page[-1].id)
    assert sorted(one.subject for one in seen) == [str(number) for number in range(7)]


async def test_audit_log_list_filters_by_window_and_action(store: Store) -> None:
    for number, action in enumerate(["schedule.create", "schedule.delete", "schedule.create"]):
        await write(store, make_audit_entry(subject=str(number), action=action), at=number)
    assert await subjects(store, from_at=NOW + seconds(1)) == ["2", "1"]
    assert await subjects(store, to_at=NOW + seconds(1)) == ["0"]
    assert await subjects(store, action="schedule.create") == ["2", "0"]


ROW = "id, tenant_id, at, actor, action, subject, detail"
ON_BOTH = ["UPDATE audit_log SET actor = 'changed'", "DELETE FROM audit_log", "UPDATE audit_log SET id = id"]
ON_SQLITE = [
    *(f"INSERT OR {way} INTO audit_log SELECT * FROM audit_log" for way in ("REPLACE", "IGNORE", "ROLLBACK", "FAIL")),
    f"REPLACE INTO audit_log (rowid, {ROW}) SELECT rowid, randomblob(16), tenant_id, at, 'x', '', '', '' FROM audit_log",
    f"REPLACE INTO audit_log ({ROW}) SELECT id, tenant_id, at, 'changed', action, subject, detail FROM audit_log",
    "PRAGMA recursive_triggers = on; REPLACE INTO audit_log SELECT * FROM audit_log",
    "UPDATE OR REPLACE audit_log SET actor = 'changed'",
    "INSERT INTO audit_log SELECT * FROM audit_log WHERE true ON CONFLICT DO UPDATE SET actor = 'changed'",
    "INSERT INTO audit_log_pruning VALUES (0); DELETE FROM audit_log",
]
ON_POSTGRES = [
    "INSERT INTO audit_log SELECT * FROM audit_log ON CONFLICT (id) DO UPDATE SET actor = 'changed'",
    "DELETE FROM audit_log WHERE set_config('everbeat.audit_log_pruning', 'on', false) = 'on'",
    "UPDATE audit_log SET actor = 'x' WHERE set_config('everbeat.audit_log_pruning', 'on', false) = 'on'",
]


@pytest.mark.parametrize("at", [0, -366 * 86_400], ids=["young", "old"])
async def test_audit_log_list_entries_cannot_be_changed(store: Store, at: float) -> None:
    offset = (datetime.now(UTC) - NOW).total_seconds() + at
    await write(store, make_audit_entry(actor="original"), at=offset)
    special = ON_SQLITE if store.dialect == "sqlite" else ON_POSTGRES
    for statement in [*ON_BOTH, *special]:
        if at and "pruning" in statement and "DELETE" in statement:
            continue  # what the pruner does
        with pytest.raises(Exception, match="append-only"):
            await execute_raw(store, statement)
    (found,) = await store.audit_log_list(DEFAULT_TENANT, AuditLogFilter(), before=None, limit=10)
    assert found.actor == "original"


async def test_audit_log_prune_deletes_old_entries_in_steps(store: Store) -> None:
    now = datetime.now(UTC)
    today = (now - NOW).total_seconds()
    for age in (500, 450, 401, 399, 20, 0):
        await write(store, make_audit_entry(subject=str(age)), at=today - age * 86_400)
    before = now - timedelta(days=400)
    assert [await store.audit_log_prune(before=before, limit=2) for _ in range(3)] == [2, 1, 0]
    assert await subjects(store) == ["0", "20", "399"]
    assert await store.audit_log_prune(before=now, limit=10) == 1
    assert await subjects(store) == ["0", "20"], "the entries of the last 30 days are kept in any case"
    with pytest.raises(Exception, match="append-only"):
        await execute_raw(store, "DELETE FROM audit_log")


async def test_audit_log_list_table_cannot_be_truncated(store: Store) -> None:
    if store.dialect == "sqlite":
        pytest.skip("SQLite has no TRUNCATE; a DELETE of everything is refused by the same trigger")
    await write(store, make_audit_entry())
    with pytest.raises(Exception, match="append-only"):
        await execute_raw(store, "TRUNCATE audit_log")
    assert await count_rows(store, "audit_log") == 1
