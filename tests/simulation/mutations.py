"""Mutations: the real code without one of its guards. The simulation must find each of them.

Only the process of the simulation is changed. A mutation replaces text of a loaded SQL block, and fails if it is not there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import apsw

from tests.simulation.database import blocks_of

_STORE = "everbeat.store.sqlite"


class Mutation(NamedTuple):
    """`invariants`: which of them fail. `replaced`: by block, a text and what replaces it. `schema`: a change of the tables."""

    removed: str
    invariants: tuple[str, ...]
    replaced: Mapping[str, tuple[str, str]]
    schema: Callable[[apsw.Connection], None] = lambda _connection: None


def _drop_ledger_key(connection: apsw.Connection) -> None:
    """Create the table of the ledger again without its primary key."""
    ((sql,),) = connection.execute("SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = 'ticks'")
    indexes = [
        row[0] for row in connection.execute("SELECT sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'ticks'")
    ]
    connection.execute("DROP TABLE ticks")
    connection.execute(_replace(_replace(sql, "PRIMARY KEY (schedule_id, scheduled_for),", ""), ", WITHOUT ROWID", ""))
    for index in filter(None, indexes):
        connection.execute(index)
    connection.execute("CREATE INDEX ticks_key ON ticks (schedule_id, scheduled_for)")


MUTATIONS: dict[str, Mutation] = {
    "owner": Mutation(
        "the check of owner, epoch and lease in the firing statement",
        ("I6",),
        {"tick_fire_guard": ("AND p.owner = :node AND p.epoch = firing.epoch AND p.lease_until > :now", "")},
    ),
    "position": Mutation(
        "the compare-and-set on next_tick_at in the firing statement",
        ("position", "ledger"),
        {"tick_fire_guard": ("AND s.next_tick_at = firing.expected", "")},
    ),
    "ledger": Mutation(
        "the primary key of the ledger, with the query that avoids its error",
        ("I1",),
        {
            "tick_fire_decide": (
                "NOT EXISTS (\n    SELECT 1 FROM ticks AS t "
                "WHERE t.schedule_id = firing.schedule_id AND t.scheduled_for = firing.fires)",
                "1",
            )
        },
        _drop_ledger_key,
    ),
    "fence": Mutation(
        "the fence in the completion of a task",
        ("I5",),
        {"task_complete_insert": ("AND t.fence = r.value ->> 2", "")},
    ),
    "expiry": Mutation(
        "the end of the lease in the completion and the heartbeat of a task",
        ("I5",),
        {
            "task_complete_insert": ("AND +t.lease_until > :now", ""),
            "task_heartbeat_find": ("AND +t.lease_until > :now", ""),
        },
    ),
}


@contextlib.contextmanager
def applied(name: str | None) -> Iterator[Callable[[apsw.Connection], None]]:
    """Change the loaded SQL for the duration of a run. Yields the change of the schema."""
    if name is None:
        yield lambda _connection: None
        return
    mutation, blocks = MUTATIONS[name], blocks_of(_STORE)
    before = {block: blocks[block].sql for block in mutation.replaced}
    try:
        for block, (text, replacement) in mutation.replaced.items():
            blocks[block].sql = _replace(blocks[block].sql, text, replacement)
        yield mutation.schema
    finally:
        for block, sql in before.items():
            blocks[block].sql = sql


def _replace(sql: str, text: str, replacement: str) -> str:
    if sql.count(text) != 1:
        raise ValueError(f"the mutation does not fit: {text!r} is {sql.count(text)} times in {sql!r}")
    return sql.replace(text, replacement)
