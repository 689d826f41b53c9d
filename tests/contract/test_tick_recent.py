"""tick_recent: the newest ledger rows of many schedules."""

from __future__ import annotations

from everbeat.core.changes import ScheduleWrite
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.store.base import Store
from tests.factories import NOW, OTHER_TENANT, make_schedule, minutes, skip


async def test_tick_recent_returns_the_newest_rows_of_each_schedule(store: Store) -> None:
    one, two, three = make_schedule("one"), make_schedule("two"), make_schedule("three")
    writes = [
        ScheduleWrite(one, skips=tuple(skip(NOW - minutes(ago)) for ago in (9, 7, 5, 3))),
        ScheduleWrite(two, skips=(skip(NOW - minutes(8)),)),
        ScheduleWrite(three),
    ]
    assert await store.schedule_write(DEFAULT_TENANT, writes, now=NOW)
    ids = [one.id, two.id, three.id]
    rows = await store.tick_recent(DEFAULT_TENANT, ids, from_=NOW - minutes(60), limit=2)
    found = {id_: [row.scheduled_for for row in rows if row.schedule_id == id_] for id_ in ids}
    assert found == {one.id: [NOW - minutes(5), NOW - minutes(3)], two.id: [NOW - minutes(8)], three.id: []}
    later = await store.tick_recent(DEFAULT_TENANT, ids, from_=NOW - minutes(4), limit=10)
    assert [(row.schedule_id, row.scheduled_for) for row in later] == [(one.id, NOW - minutes(3))]
    assert await store.tick_recent(OTHER_TENANT, ids, from_=NOW - minutes(60), limit=10) == []
