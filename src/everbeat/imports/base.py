"""The result of reading another scheduler's schedules, and the comparison of their fire times with Everbeat's.

An importer returns an ImportPlan. Each schedule in it has a definition for the HTTP API and, if the importer can compute them
independently of Everbeat, the times at which the other scheduler would run. Nothing is written before they were compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from everbeat.client.declarations import timeline_of

COMPARED_TIMES = 20

_ANY_TARGET: Mapping[str, Any] = MappingProxyType({"kind": "worker", "type": "any"})

# Returns the next `count` times after an instant, in UTC. Fewer if there are no more.
FireTimes = Callable[[datetime, int], list[datetime]]


@dataclass(frozen=True, kw_only=True)
class PlannedSchedule:
    """A schedule to create. `source`: where it was read, such as `crontab line 12`. `notes`: what a user should know."""

    source: str
    definition: Mapping[str, Any]
    expected_times: FireTimes | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return str(self.definition["name"])


class NotCarriedOver(NamedTuple):
    """Something that was read and becomes no schedule, with the reason and, if possible, what to do instead."""

    source: str
    text: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ImportPlan:
    """What an import creates, what it does not carry over, and notes on the whole."""

    schedules: list[PlannedSchedule] = field(default_factory=list)
    not_carried_over: list[NotCarriedOver] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class ComparedTimes(NamedTuple):
    """The next times of a schedule. `expected` None: the importer cannot compute them."""

    planned: PlannedSchedule
    ticks: list[datetime]
    expected: list[datetime] | None

    @property
    def differs(self) -> bool:
        return self.expected is not None and self.expected != self.ticks

    @property
    def first_difference(self) -> tuple[datetime | None, datetime | None] | None:
        """The first tick and expected time that are not equal."""
        if not self.differs:
            return None
        expected = self.expected or []
        for index in range(max(len(self.ticks), len(expected))):
            tick = self.ticks[index] if index < len(self.ticks) else None
            time = expected[index] if index < len(expected) else None
            if tick != time:
                return tick, time
        return None


def compare_times(planned: PlannedSchedule, after: datetime, count: int = COMPARED_TIMES) -> ComparedTimes:
    """Compare the next ticks of a schedule with the times of its source. Raises InvalidInput for an invalid definition."""
    ticks = list(_ticks_of(planned.definition, after, count))
    expected = None if planned.expected_times is None else planned.expected_times(after, count)
    return ComparedTimes(planned, ticks, expected)


def _ticks_of(definition: Mapping[str, Any], after: datetime, count: int) -> Iterator[datetime]:
    # Whether the connection of a target exists is only known on the server.
    timeline = timeline_of({**definition, "target": _ANY_TARGET})
    tick = timeline.next_tick(after)
    for _ in range(count):
        if tick is None:
            return
        yield tick
        tick = timeline.next_tick(tick)
