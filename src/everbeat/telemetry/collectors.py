"""Metrics that are not single counters: histograms of batches, the sampled state of the cluster, and the state of the node."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from everbeat.core.service_levels import Level, Objective, Sli
from everbeat.services.service_levels import SliCounts
from everbeat.store.samples import ClusterSample, PoolUse

_Family = GaugeMetricFamily | CounterMetricFamily


class BatchHistogram(Collector):
    """A histogram that is observed in the event loop only, with many values at once and without locks."""

    def __init__(self, name: str, documentation: str, buckets: Sequence[float], label: str | None = None) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = list(buckets)
        self._texts = [*map(floatToGoString, buckets), "+Inf"]
        self._label = label
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        if label is None:
            self._add_series("")

    def observe_many(self, values: Sequence[float], label: str = "") -> None:
        if label not in self._counts:
            self._add_series(label)
        counts, bounds = self._counts[label], self._bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self._sums[label] += sum(values)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=None if self._label is None else [self._label])
        for label, counts in self._counts.items():
            buckets = list(zip(self._texts, map(float, accumulate(counts)), strict=True))
            family.add_metric([] if self._label is None else [label], buckets, self._sums[label])
        yield family

    def describe(self) -> Iterator[HistogramMetricFamily]:
        yield HistogramMetricFamily(self._name, self._documentation, labels=None if self._label is None else [self._label])

    def _add_series(self, label: str) -> None:
        self._counts[label] = [0] * len(self._texts)
        self._sums[label] = 0.0


class _Gauge(NamedTuple):
    """A gauge of several series: the values of its labels, and the value of each series."""

    name: str
    documentation: str
    labels: tuple[str, ...]
    read: Callable[[ClusterSample], Mapping[tuple[str, ...], float | None]]


def _single(read: Callable[[ClusterSample], float | None]) -> Callable[[ClusterSample], Mapping[tuple[str, ...], float | None]]:
    return lambda sample: {(): read(sample)}


_SAMPLED = (
    _Gauge(
        "everbeat_live_tasks",
        "Live tasks by state",
        ("state",),
        lambda sample: {(state,): count for state, count in sample.states.items()},
    ),
    _Gauge(
        "everbeat_queue_ready_tasks",
        "Ready tasks by queue",
        ("queue",),
        lambda sample: {(one.queue,): one.ready for one in sample.queues},
    ),
    _Gauge(
        "everbeat_queue_running_tasks",
        "Running tasks by queue",
        ("queue",),
        lambda sample: {(one.queue,): one.running for one in sample.queues},
    ),
    _Gauge(
        "everbeat_queue_oldest_ready_seconds",
        "Age of the oldest ready task by queue",
        ("queue",),
        lambda sample: {(one.queue,): one.oldest_ready_seconds for one in sample.queues},
    ),
    _Gauge(
        "everbeat_queue_workers",
        "Live workers by queue",
        ("queue",),
        lambda sample: {(one.queue,): one.workers for one in sample.queues},
    ),
    _Gauge(
        "everbeat_tasks_near_timeout",
        "Running tasks that have used more than 90 % of their timeout",
        (),
        _single(lambda sample: sample.near_timeout),
    ),
    _Gauge(
        "everbeat_unowned_partitions",
        "Partitions that no live node owns",
        (),
        _single(lambda sample: sample.unowned_partitions),
    ),
    _Gauge("everbeat_database_bytes", "Size of the database", (), _single(lambda sample: sample.database.bytes)),
    _Gauge(
        "everbeat_database_free_bytes",
        "Free pages in the file of the database (SQLite)",
        (),
        _single(lambda sample: sample.database.free_bytes),
    ),
    _Gauge("everbeat_wal_bytes", "Size of the write-ahead log", (), _single(lambda sample: sample.database.wal_bytes)),
    _Gauge(
        "everbeat_oldest_transaction_seconds",
        "Age of the oldest transaction (PostgreSQL)",
        (),
        _single(lambda sample: sample.database.oldest_transaction_seconds),
    ),
    _Gauge(
        "everbeat_table_bytes",
        "Size of a table with its indexes and partitions (PostgreSQL)",
        ("table",),
        lambda sample: {(one.table,): one.bytes for one in sample.database.tables},
    ),
    _Gauge(
        "everbeat_table_rows",
        "Live rows of a table, estimated (PostgreSQL)",
        ("table",),
        lambda sample: {(one.table,): one.live_rows for one in sample.database.tables},
    ),
    _Gauge(
        "everbeat_dead_rows",
        "Dead rows of a table, estimated (PostgreSQL)",
        ("table",),
        lambda sample: {(one.table,): one.dead_rows for one in sample.database.tables},
    ),
    _Gauge(
        "everbeat_sample_timestamp_seconds",
        "When the state of the cluster was sampled",
        (),
        _single(lambda sample: sample.at.timestamp()),
    ),
)


class SampleCollector(Collector):
    """The last sample of the cluster. An old one is not exported: a value that may be wrong is worse than none."""

    def __init__(self) -> None:
        self._sample: ClusterSample | None = None
        self._valid_until = 0.0

    def set(self, sample: ClusterSample, valid_seconds: float) -> None:
        self._sample, self._valid_until = sample, time.monotonic() + valid_seconds

    def collect(self) -> Iterator[GaugeMetricFamily]:
        sample = self._sample if time.monotonic() < self._valid_until else None
        for gauge in _SAMPLED:
            family = GaugeMetricFamily(gauge.name, gauge.documentation, labels=gauge.labels)
            for labels, value in gauge.read(sample).items() if sample is not None else ():
                if value is not None:
                    family.add_metric(labels, value)
            yield family

    def describe(self) -> Iterator[GaugeMetricFamily]:
        for gauge in _SAMPLED:
            yield GaugeMetricFamily(gauge.name, gauge.documentation, labels=gauge.labels)


class NodeState(NamedTuple):
    """What is read from a node at each scrape. It is in memory."""

    evaluation_lag: Callable[[], float]
    pool_use: Callable[[], list[PoolUse]]
    breaker_counts: Callable[[], Mapping[str, int]]
    objectives: Sequence[Objective] = ()
    level_counts: Callable[[], Mapping[Sli, SliCounts]] = dict


class NodeCollector(Collector):
    """The state of this node at the time of the scrape."""

    def __init__(self) -> None:
        self.state: NodeState | None = None

    def collect(self) -> Iterator[_Family]:
        lag, connections, most, waiting, breakers, targets, events, good = families = list(self.describe())
        if self.state is not None:
            lag.add_metric([], self.state.evaluation_lag())
            for use in self.state.pool_use():
                connections.add_metric([use.pool, "used"], use.used)
                connections.add_metric([use.pool, "idle"], use.open - use.used)
                most.add_metric([use.pool], use.max)
                waiting.add_metric([use.pool], use.waiting)
            for state, count in self.state.breaker_counts().items():
                breakers.add_metric([state], count)
            for objective in self.state.objectives:
                targets.add_metric([objective.sli.value], objective.target)
            for sli, counts in self.state.level_counts().items():
                events.add_metric([sli.value], counts.total)
                good.add_metric([sli.value], counts.good)
        yield from families

    def describe(self) -> Iterator[_Family]:
        yield GaugeMetricFamily("everbeat_evaluation_lag_seconds", "How late the tick loop evaluates due schedules")
        yield GaugeMetricFamily("everbeat_pool_connections", "Database connections", labels=("pool", "state"))
        yield GaugeMetricFamily("everbeat_pool_max_connections", "Size of the connection pool", labels=("pool",))
        yield GaugeMetricFamily("everbeat_pool_waiting", "Calls that wait for a connection", labels=("pool",))
        yield GaugeMetricFamily("everbeat_circuit_breakers", "Destinations by circuit breaker", labels=("state",))
        label = ("objective",)
        yield GaugeMetricFamily("everbeat_slo_target_ratio", "Service level objectives", labels=label)
        yield CounterMetricFamily("everbeat_slo_events", "Events that an objective is about", labels=label)
        yield CounterMetricFamily("everbeat_slo_good_events", "Events that met the objective", labels=label)


class LevelCollector(Collector):
    """What is left of the error budgets of the cluster, as last read from the database."""

    def __init__(self) -> None:
        self._levels: list[Level] = []
        self._valid_until = 0.0

    def set(self, levels: list[Level], valid_seconds: float) -> None:
        self._levels, self._valid_until = levels, time.monotonic() + valid_seconds

    def collect(self) -> Iterator[GaugeMetricFamily]:
        left, rates = self.describe()
        for level in self._levels if time.monotonic() < self._valid_until else ():
            name = level.objective.sli.value
            if level.budget_left is not None:
                left.add_metric([name], level.budget_left)
            for window, rate in level.burn_rates.items():
                if rate is not None:
                    rates.add_metric([name, window], rate)
        yield from (left, rates)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("everbeat_slo_budget_left_ratio", "What is left of an error budget", labels=("objective",))
        yield GaugeMetricFamily("everbeat_slo_burn_rate", "How fast an error budget is used up", labels=("objective", "window"))
