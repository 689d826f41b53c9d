"""Live updates: pages are told once that something changed, however many events there are."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest

from everbeat.core.definitions import rfc3339
from everbeat.core.errors import TooManyRequests
from everbeat.services import live_updates
from everbeat.services.event_stream import MAX_SUBSCRIBERS_PER_TENANT, EventKind, EventStream
from everbeat.services.live_updates import Interest, LiveSubscription, LiveUpdates

TENANT, OTHER = UUID(int=1), UUID(int=2)
SCHEDULE, TASK = UUID(int=10), UUID(int=11)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
REFRESH = b"event: refresh\ndata: {}\n\n"
TICKS = frozenset({Interest(EventKind.TICK)})


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_updates, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(live_updates, "SUMMARY_SECONDS", 0.02)
    monkeypatch.setattr(live_updates, "REFRESH_SECONDS", 0.25)


def tick(stream: EventStream, schedule: UUID = SCHEDULE, lag_ms: float = 4, tenant: UUID = TENANT) -> None:
    fired_at = rfc3339(NOW + timedelta(milliseconds=lag_ms))
    data = {"schedule_id": schedule, "scheduled_for": rfc3339(NOW), "outcome": "fired", "fired_at": fired_at}
    stream.publish(EventKind.TICK, tenant, data)


async def take(page: LiveSubscription, seconds: float = 2) -> bytes:
    return await page.take(seconds)


async def test_many_events_are_one_refresh_of_every_page() -> None:
    stream = EventStream()
    updates = LiveUpdates(stream)
    with updates.open(TENANT, TICKS, wants_lag=False) as one, updates.open(TENANT, TICKS, wants_lag=False) as other:
        for _ in range(500):
            tick(stream)
        assert await take(one) == REFRESH
        assert await take(other) == REFRESH
        assert await take(one, 0.05) == b""


async def test_a_change_shortly_after_a_refresh_is_reported_by_a_later_refresh() -> None:
    stream = EventStream()
    with LiveUpdates(stream).open(TENANT, TICKS, wants_lag=False) as page:
        tick(stream)
        assert await take(page) == REFRESH
        refreshed_at = asyncio.get_running_loop().time()
        tick(stream)
        assert await take(page) == REFRESH
        assert asyncio.get_running_loop().time() - refreshed_at > 0.15


async def test_the_lag_is_that_of_the_worst_tick_and_only_for_pages_that_show_it() -> None:
    stream = EventStream()
    updates = LiveUpdates(stream)
    with (
        updates.open(TENANT, frozenset(), wants_lag=True) as chart,
        updates.open(TENANT, frozenset(), wants_lag=False) as page,
    ):
        for lag in (3, 41, 7):
            tick(stream, lag_ms=lag)
        block = await take(chart)
        assert block.startswith(b"event: lag\ndata: ")
        assert msgspec.json.decode(block.split(b"data: ")[1]) == {"at": NOW.timestamp() + 0.007, "ms": 41.0, "ticks": 3}
        assert await take(page, 0.05) == b""


@pytest.mark.parametrize(
    ("interest", "is_told"),
    [
        (Interest(EventKind.TICK), True),
        (Interest(EventKind.TICK, SCHEDULE), True),
        (Interest(EventKind.TICK, UUID(int=99)), False),
        (Interest(EventKind.TASK), True),
        (Interest(EventKind.TASK, TASK), True),
        (Interest(EventKind.TASK, SCHEDULE), False),
        (Interest(EventKind.CHECK), False),
        (Interest(EventKind.CLUSTER), True),
        (Interest(EventKind.CLUSTER, SCHEDULE), True),
    ],
)
async def test_a_page_is_told_of_what_it_shows(interest: Interest, is_told: bool) -> None:
    stream = EventStream()
    with LiveUpdates(stream).open(TENANT, frozenset({interest}), wants_lag=False) as page:
        tick(stream)
        stream.publish_task("completed", TENANT, TASK)
        stream.publish(EventKind.CLUSTER, None, {"change": "ownership"})
        assert (await take(page, 2 if is_told else 0.1) == REFRESH) is is_told


async def test_events_of_another_tenant_are_not_reported() -> None:
    stream = EventStream()
    with LiveUpdates(stream).open(TENANT, TICKS, wants_lag=True) as page:
        tick(stream, tenant=OTHER)
        assert await take(page, 0.1) == b""


async def test_more_subjects_than_are_remembered_concern_every_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_updates, "_MAX_SUBJECTS", 5)
    stream = EventStream()
    with LiveUpdates(stream).open(TENANT, frozenset({Interest(EventKind.TICK, SCHEDULE)}), wants_lag=False) as page:
        for number in range(100, 110):
            tick(stream, UUID(int=number))
        assert await take(page) == REFRESH


async def test_lost_events_refresh_every_page() -> None:
    stream = EventStream()
    updates = LiveUpdates(stream)
    with updates.open(TENANT, frozenset({Interest(EventKind.CHECK)}), wants_lag=False) as page:
        for subscriber in stream._subscriptions:
            subscriber.add_lost(3)
        assert await take(page) == REFRESH


async def test_the_version_changes_with_each_refresh_and_ends_with_the_last_page() -> None:
    stream = EventStream()
    updates = LiveUpdates(stream)
    assert updates.version(TENANT) is None
    with updates.open(TENANT, TICKS, wants_lag=False) as page:
        assert updates.version(TENANT) == 0
        tick(stream)
        await take(page)
        assert updates.version(TENANT) == 1
        assert stream.has_subscribers
    assert updates.version(TENANT) is None
    assert not stream.has_subscribers


async def test_the_number_of_pages_is_limited() -> None:
    updates = LiveUpdates(EventStream())
    pages = [updates.open(TENANT, TICKS, wants_lag=False) for _ in range(MAX_SUBSCRIBERS_PER_TENANT)]
    for page in pages:
        updates.check_capacity(TENANT)
        page.__enter__()
    with pytest.raises(TooManyRequests):
        updates.check_capacity(TENANT)
    updates.check_capacity(OTHER)
    for page in pages:
        page.__exit__(None, None, None)
    updates.check_capacity(TENANT)


async def test_pages_end_when_the_server_stops() -> None:
    stream = EventStream()
    with LiveUpdates(stream).open(TENANT, TICKS, wants_lag=False) as page:
        waiting = asyncio.create_task(take(page))
        await asyncio.sleep(0)
        stream.close()
        assert await waiting == b""
        assert page.is_closed
