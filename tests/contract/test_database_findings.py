"""database_findings."""

from __future__ import annotations

from everbeat.store.base import Store
from everbeat.store.values import DatabaseFinding
from tests.factories import execute_raw


async def test_database_findings_is_empty_for_a_new_database(store: Store) -> None:
    assert await store.database_findings() == []


async def test_database_findings_names_an_invalid_index(store: Store) -> None:
    if "sqlite" in type(store).__name__.lower():
        return  # SQLite has no invalid indexes
    await execute_raw(store, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'tasks_of_tenant'::regclass")
    assert await store.database_findings() == [DatabaseFinding("invalid_index", "tasks_of_tenant", 1.0)]
