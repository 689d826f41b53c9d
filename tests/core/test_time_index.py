"""The time index: ordered by due time, entries replaced by id, and no stale entries."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from everbeat.core.time_index import TimeIndex
from tests.factories import NOW, seconds


class Entry(NamedTuple):
    id: UUID
    due_at: datetime
    label: str = ""


def entry(number: int, due: float, label: str = "") -> Entry:
    return Entry(UUID(int=number), NOW + seconds(due), label)


def test_it_returns_due_entries_oldest_first_and_removes_them() -> None:
    index: TimeIndex[Entry] = TimeIndex()
    for number, due in enumerate([3, 1, 2, 9]):
        index.put(entry(number, due))
    assert [one.id.int for one in index.take_due(NOW + seconds(3), 10)] == [1, 2, 0]
    assert index.take_due(NOW + seconds(3), 10) == []
    assert len(index) == 1


def test_it_returns_at_most_the_limit() -> None:
    index: TimeIndex[Entry] = TimeIndex()
    for number in range(5):
        index.put(entry(number, number))
    assert [one.id.int for one in index.take_due(NOW + seconds(9), 2)] == [0, 1]
    assert index.next_due_at() == NOW + seconds(2)


def test_an_entry_put_again_replaces_the_old_one_whatever_its_time() -> None:
    index: TimeIndex[Entry] = TimeIndex()
    for due, label in ((5, "first"), (1, "sooner"), (8, "later"), (8, "same time")):
        index.put(entry(1, due, label))
    assert len(index) == 1
    assert index.next_due_at() == NOW + seconds(8)
    assert index.take_due(NOW + seconds(7), 10) == []
    assert [one.label for one in index.take_due(NOW + seconds(8), 10)] == ["same time"]
    assert index.next_due_at() is None


def test_a_discarded_entry_is_never_returned() -> None:
    index: TimeIndex[Entry] = TimeIndex()
    index.put(entry(1, 1))
    index.put(entry(2, 2))
    index.discard([UUID(int=1), UUID(int=99)])
    assert UUID(int=1) not in index
    assert index.get(UUID(int=1)) is None
    assert index.next_due_at() == NOW + seconds(2)
    assert [one.id.int for one in index.take_due(NOW + seconds(5), 5)] == [2]


def test_clear_removes_all_entries() -> None:
    index: TimeIndex[Entry] = TimeIndex()
    index.put(entry(1, 1))
    index.clear()
    assert (len(index), index.next_due_at(), index.take_due(NOW + seconds(5), 5), index.values()) == (0, None, [], [])


def test_entries_that_are_replaced_often_do_not_accumulate() -> None:
    index: TimeIndex[Entry] = TimeIndex()
    for number in range(10_000):
        index.put(entry(number % 10, number))
    assert len(index) == 10
    assert len(index._heap) < 200


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, 20)),
        st.tuples(st.just("discard"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("take"), st.integers(0, 20), st.integers(1, 3)),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(STEPS)
def test_it_behaves_like_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    index: TimeIndex[Entry] = TimeIndex()
    model: dict[UUID, Entry] = {}
    for verb, one, two in steps:
        if verb == "put":
            index.put(entry(one, two))
            model[UUID(int=one)] = entry(one, two)
        elif verb == "discard":
            index.discard([UUID(int=one)])
            model.pop(UUID(int=one), None)
        else:
            taken = index.take_due(NOW + seconds(one), two)
            due = sorted(other.due_at for other in model.values() if other.due_at <= NOW + seconds(one))
            assert [other.due_at for other in taken] == due[:two]
            for other in taken:
                assert model.pop(other.id) == other
        assert len(index) == len(model)
        assert index.next_due_at() == min((other.due_at for other in model.values()), default=None)
    assert sorted(index.values()) == sorted(model.values())
