"""What to change so that a cluster keeps up: pure decisions on its facts."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

# A node with its own database fires about this many ticks in a second on two cores; see docs/reference/benchmarks.md.
TICKS_PER_SECOND_OF_A_NODE = 5_000
MAX_LAG_SECONDS = 1.0
MAX_TRANSACTION_SECONDS = 300.0
MAX_DEAD_RATIO = 0.3
MIN_DEAD_ROWS = 20_000
MIN_FREE_BYTES = 256 * 2**20
MAX_MEAN_SECONDS = 0.1
MIN_CALLS = 5


class BusySecond(NamedTuple):
    """The second of the next day in which most ticks are due. `names`: some of their schedules."""

    at: datetime
    ticks: int
    names: list[str]
    is_complete: bool


class NodeShare(NamedTuple):
    """A live node and the part of the partitions that it owns. `capacity` below 1: it could not keep up, and gave some away."""

    name: str
    is_scheduler: bool
    share: float
    capacity: float
    lag_seconds: float | None


class Bloat(NamedTuple):
    table: str
    bytes: int
    live_rows: int
    dead_rows: int

    @property
    def ratio(self) -> float:
        return self.dead_rows / max(self.live_rows + self.dead_rows, 1)


class SlowCall(NamedTuple):
    """The database calls of one verb on one node in the last minutes."""

    verb: str
    calls: int
    mean_seconds: float
    max_seconds: float


class CapacityFacts(NamedTuple):
    busiest: BusySecond | None
    nodes: list[NodeShare]
    tables: list[Bloat]
    oldest_transaction_seconds: float | None
    slow_calls: list[SlowCall]
    # The size of the database, and the part of it that is free again. None: unknown.
    database_bytes: int | None = None
    free_bytes: int | None = None


class CapacityAdvice(NamedTuple):
    about: str
    detail: str
    fix: str


def advise(facts: CapacityFacts) -> list[CapacityAdvice]:
    return [*_about_ticks(facts), *_about_nodes(facts), *_about_database(facts)]


def is_bloated(table: Bloat) -> bool:
    return table.dead_rows >= MIN_DEAD_ROWS and table.ratio > MAX_DEAD_RATIO


def is_slow(call: SlowCall) -> bool:
    return call.calls >= MIN_CALLS and call.mean_seconds > MAX_MEAN_SECONDS


def _about_ticks(facts: CapacityFacts) -> list[CapacityAdvice]:
    busiest, nodes = facts.busiest, sum(node.is_scheduler for node in facts.nodes)
    if busiest is None or busiest.ticks <= TICKS_PER_SECOND_OF_A_NODE * max(nodes, 1):
        return []
    detail = f"{busiest.ticks} ticks are due at {busiest.at:%Y-%m-%d %H:%M:%S}Z, such as those of {', '.join(busiest.names)}"
    fix = "spread them: jitter_seconds, or H in cron expressions (H 2 * * *); or add nodes with the role scheduler"
    return [CapacityAdvice("busiest second", detail, fix)]


def _about_nodes(facts: CapacityFacts) -> list[CapacityAdvice]:
    advice = []
    for node in facts.nodes:
        if node.capacity < 1:
            detail = f"{node.name} could not keep up and takes {node.capacity:.0%} of its usual share"
            advice.append(CapacityAdvice("nodes", detail, "look at its CPU and its connection to the database; or add a node"))
        elif (node.lag_seconds or 0.0) > MAX_LAG_SECONDS:
            detail = f"{node.name} fires {node.lag_seconds:.1f} s late"
            advice.append(CapacityAdvice("nodes", detail, "add a node with the role scheduler, or a faster database"))
    return advice


def _about_database(facts: CapacityFacts) -> list[CapacityAdvice]:
    advice = []
    if (facts.oldest_transaction_seconds or 0.0) > MAX_TRANSACTION_SECONDS:
        seconds = facts.oldest_transaction_seconds
        detail = f"a transaction has been open for {seconds:.0f} s and keeps dead rows from being removed"
        fix = "end it: SELECT pid, state, query FROM pg_stat_activity ORDER BY xact_start; SELECT pg_terminate_backend(pid)"
        advice.append(CapacityAdvice("transactions", detail, fix))
    for table in facts.tables:
        if is_bloated(table):
            detail = f"{table.ratio:.0%} of the rows of {table.table} are dead"
            advice.append(CapacityAdvice("bloat", detail, f"VACUUM {table.table}; look for long transactions; see autovacuum"))
    free, size = facts.free_bytes or 0, facts.database_bytes or 0
    if free > MIN_FREE_BYTES and free > size / 2:
        detail = f"{free / size:.0%} of the database file are free"
        advice.append(CapacityAdvice("bloat", detail, "nothing, if it fills up again; or VACUUM, while no node runs"))
    for call in facts.slow_calls:
        if is_slow(call):
            detail = f"{call.verb} takes {call.mean_seconds * 1000:.0f} ms on average ({call.calls} calls in the last minutes)"
            fix = "look at the load of the database and its storage; ANALYZE; everbeat doctor --database-url for its indexes"
            advice.append(CapacityAdvice("slow queries", detail, fix))
    return advice
