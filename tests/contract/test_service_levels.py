"""service_level_write, service_level_list, service_level_total and service_level_prune."""

from __future__ import annotations

from uuid import UUID

from everbeat.core.service_levels import BUCKET, LevelBucket, LevelTotal, bucket_of
from everbeat.store.base import Store
from tests.factories import NOW, minutes

ONE, OTHER = UUID(int=1), UUID(int=2)
AT = bucket_of(NOW)


async def test_service_level_write_is_added_up_over_nodes(store: Store) -> None:
    await store.service_level_write(ONE, [LevelBucket(AT, 9, 10, 3, 4, 5, 6, 0b00101, 0b00001)])
    await store.service_level_write(OTHER, [LevelBucket(AT, 1, 2, 0, 0, 7, 8, 0b10001, 0), LevelBucket(AT + BUCKET, 1, 1)])
    assert await store.service_level_list(AT) == [
        LevelBucket(AT, 10, 12, 3, 4, 12, 14, 0b10101, 0b00001),
        LevelBucket(AT + BUCKET, 1, 1),
    ]


async def test_service_level_write_of_the_same_totals_changes_nothing(store: Store) -> None:
    bucket = LevelBucket(AT, 9, 10, 3, 4, 5, 6, 1, 0)
    for _ in range(2):
        await store.service_level_write(ONE, [bucket])
    assert await store.service_level_list(AT) == [bucket]
    later = bucket._replace(fire_good=19, fire_total=21, available_minutes=0b11)
    await store.service_level_write(ONE, [later])
    assert await store.service_level_list(AT) == [later]


async def test_service_level_write_never_lowers_a_total(store: Store) -> None:
    await store.service_level_write(ONE, [LevelBucket(AT, 9, 10, 0, 0, 0, 0, 0b01, 0)])
    await store.service_level_write(ONE, [LevelBucket(AT, 1, 1, 2, 2, 0, 0, 0b10, 0)])  # the clock was set back
    assert await store.service_level_list(AT) == [LevelBucket(AT, 9, 10, 2, 2, 0, 0, 0b11, 0)]


async def test_service_level_list_is_ordered_and_begins_at_the_given_time(store: Store) -> None:
    buckets = [LevelBucket(AT + number * BUCKET, number, number) for number in (2, 0, 1)]
    await store.service_level_write(ONE, buckets)
    assert [one.fire_good for one in await store.service_level_list(AT)] == [0, 1, 2]
    assert [one.fire_good for one in await store.service_level_list(AT + minutes(5))] == [1, 2]
    assert await store.service_level_list(AT + minutes(60)) == []


async def test_service_level_prune_deletes_the_oldest_first(store: Store) -> None:
    await store.service_level_write(ONE, [LevelBucket(AT + number * BUCKET, number, number) for number in range(4)])
    assert await store.service_level_prune(before=AT + 3 * BUCKET, limit=2) == 2
    assert [one.fire_good for one in await store.service_level_list(AT)] == [2, 3]
    assert await store.service_level_prune(before=AT + 3 * BUCKET, limit=10) == 1


async def test_service_level_total_adds_up_buckets_and_counts_available_minutes(store: Store) -> None:
    assert await store.service_level_total(AT, AT + minutes(60)) is None
    first, second, third = (AT + number * BUCKET for number in range(3))
    await store.service_level_write(ONE, [LevelBucket(first, 1, 2, 3, 4, 5, 6, 0b11000, 0), LevelBucket(second, 1, 1)])
    await store.service_level_write(OTHER, [LevelBucket(first, 1, 1, 1, 1, 1, 1, 0b00100, 0b10000)])
    await store.service_level_write(OTHER, [LevelBucket(third, 9, 9, 9, 9, 9, 9, 0b11111, 0)])
    assert await store.service_level_total(first, third) == LevelTotal(first, 0b11100, 3, 4, 4, 5, 6, 7, 2)
    assert await store.service_level_total(first, third + BUCKET) == LevelTotal(first, 0b11100, 12, 13, 13, 14, 15, 16, 7)
    assert await store.service_level_total(second, third) == LevelTotal(second, 0, 1, 1, 0, 0, 0, 0, 0)
