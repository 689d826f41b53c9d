"""Samples of the state of the cluster for metrics. All queries are bounded, and use indexes that exist for other verbs."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple


class ReadySample(NamedTuple):
    """The ready tasks of a queue, and since when the oldest of them is due."""

    queue: str
    ready: int
    oldest_at: datetime


class RunningSample(NamedTuple):
    """The running tasks of a queue, and how many of them have used up most of their timeout."""

    queue: str
    running: int
    near_timeout: int


class TableSample(NamedTuple):
    """The size of a table with its indexes and partitions. The numbers of rows are estimates of the database."""

    table: str
    bytes: int
    live_rows: int
    dead_rows: int


class DatabaseSample(NamedTuple):
    """The size of the database, and what keeps it from being cleaned up. None: unknown to this database or role."""

    bytes: int
    free_bytes: int | None
    wal_bytes: int | None
    oldest_transaction_seconds: float | None
    tables: list[TableSample]


class QueueSample(NamedTuple):
    """A queue, or all queues beyond the largest ones together."""

    queue: str
    ready: int
    running: int
    workers: int
    oldest_ready_seconds: float


class ClusterSample(NamedTuple):
    """What one pass of the sampler has found. `is_available`: every partition has an owner with a valid lease."""

    at: datetime
    states: dict[str, int]
    queues: list[QueueSample]
    near_timeout: int
    unowned_partitions: int
    database: DatabaseSample

    @property
    def is_available(self) -> bool:
        return self.unowned_partitions == 0


class PoolUse(NamedTuple):
    """The connections of a pool of this node: in use, open, allowed; and how many calls wait for one."""

    pool: str
    used: int
    open: int
    max: int
    waiting: int
