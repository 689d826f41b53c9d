"""The kinds of faults: what each one disturbs, and how soon after it everything must be on time again.

The plan, the injectors and the checker read this table. It imports nothing of Everbeat: the bounds are those that the
documentation promises.
"""

from __future__ import annotations

from typing import NamedTuple

GROUPS = ("nodes", "workers", "database", "network")
STORES = ("postgres", "sqlite")

# What a fault can delay: the firing of ticks, the start of a task on a worker, and the delivery to a webhook receiver.
FIRE, START, DELIVER = "fire", "start", "deliver"
_EVERYTHING = frozenset({FIRE, START, DELIVER})
_TASKS = frozenset({START, DELIVER})


class FaultKind(NamedTuple):
    """A kind of fault.

    `seconds` is the range of durations. `recovery_seconds` is the time after its end until everything is on time again. With
    `is_takeover`, other nodes take over within the lease and a second, however long the fault lasts, if they are undisturbed.
    `repeats` is how often the kind is in the lot, and `nodes` how many nodes it needs.
    """

    group: str
    seconds: tuple[float, float]
    delays: frozenset[str]
    recovery_seconds: float
    is_takeover: bool = False
    stores: tuple[str, ...] = STORES
    repeats: int = 1


_POSTGRES = ("postgres",)
_SQLITE = ("sqlite",)

KINDS: dict[str, FaultKind] = {
    # A node
    "node_kill": FaultKind("nodes", (0.0, 3.0), _EVERYTHING, 4.0, is_takeover=True, repeats=3),
    "node_stop": FaultKind("nodes", (0.0, 2.0), _EVERYTHING, 4.0, is_takeover=True, repeats=2),
    "node_freeze_long": FaultKind("nodes", (6.0, 7.0), _EVERYTHING, 4.0, is_takeover=True, repeats=2),
    "node_freeze_short": FaultKind("nodes", (1.3, 1.6), _EVERYTHING, 2.0),
    "node_starved": FaultKind("nodes", (3.0, 7.0), _EVERYTHING, 5.0),
    "node_files": FaultKind("nodes", (2.0, 4.0), _EVERYTHING, 6.0),
    "node_clock": FaultKind("nodes", (3.0, 8.0), frozenset(), 0.0),
    "nodes_rolling_kill": FaultKind("nodes", (6.0, 9.0), _EVERYTHING, 6.0),
    "nodes_all_kill": FaultKind("nodes", (0.0, 2.0), _EVERYTHING, 8.0),
    # A worker
    "worker_kill": FaultKind("workers", (0.0, 2.0), _TASKS, 8.0, repeats=2),
    "worker_freeze": FaultKind("workers", (7.0, 8.0), _TASKS, 8.0, repeats=2),
    "worker_stop": FaultKind("workers", (0.0, 1.0), _TASKS, 8.0),
    "worker_poison": FaultKind("workers", (1.0, 1.0), _TASKS, 8.0),
    # The database
    "database_restart": FaultKind("database", (0.0, 3.0), _EVERYTHING, 8.0, stores=_POSTGRES),
    "database_crash": FaultKind("database", (0.0, 1.0), _EVERYTHING, 8.0, stores=_POSTGRES),
    "database_stall": FaultKind("database", (1.0, 4.0), _EVERYTHING, 8.0, stores=_POSTGRES),
    "database_lock": FaultKind("database", (3.0, 8.0), _EVERYTHING, 6.0, stores=_POSTGRES),
    "database_sessions_killed": FaultKind("database", (0.0, 0.0), _EVERYTHING, 5.0, stores=_POSTGRES, repeats=2),
    "database_connections": FaultKind("database", (2.0, 5.0), _EVERYTHING, 6.0, stores=_POSTGRES),
    "database_read_only": FaultKind("database", (1.0, 4.0), _EVERYTHING, 8.0, stores=_POSTGRES),
    "database_disk_full": FaultKind("database", (1.0, 4.0), _EVERYTHING, 8.0),
    "database_clock": FaultKind("database", (2.0, 6.0), _EVERYTHING, 10.0, stores=_POSTGRES, repeats=2),
    "database_writer_lock": FaultKind("database", (2.0, 8.0), _EVERYTHING, 8.0, stores=_SQLITE, repeats=2),
    "database_reader": FaultKind("database", (2.0, 8.0), frozenset(), 0.0, stores=_SQLITE),
    "database_fsync": FaultKind("database", (1.0, 4.0), _EVERYTHING, 8.0, stores=_SQLITE),
    # The links between nodes and the database, workers and nodes, and nodes and the webhook receiver
    "link_cut": FaultKind("network", (2.0, 7.0), _EVERYTHING, 4.0, is_takeover=True, stores=_POSTGRES),
    "link_freeze": FaultKind("network", (2.0, 7.0), _EVERYTHING, 6.0, stores=_POSTGRES, repeats=2),
    "link_delay": FaultKind("network", (3.0, 7.0), _EVERYTHING, 5.0, stores=_POSTGRES),
    "link_flap": FaultKind("network", (3.0, 7.0), _EVERYTHING, 6.0, stores=_POSTGRES),
    "link_lost_replies": FaultKind("network", (2.0, 6.0), _EVERYTHING, 6.0, stores=_POSTGRES, repeats=2),
    "worker_link_cut": FaultKind("network", (2.0, 7.0), _TASKS, 9.0),
    "worker_link_lost_replies": FaultKind("network", (2.0, 6.0), _TASKS, 9.0),
    "receiver_errors": FaultKind("network", (1.0, 5.0), frozenset({DELIVER}), 30.0),
    "receiver_hangs": FaultKind("network", (1.0, 5.0), frozenset({DELIVER}), 30.0),
    "receiver_resets": FaultKind("network", (1.0, 5.0), frozenset({DELIVER}), 30.0),
}

# The only kind that changes the clock by which ticks are due.
DATABASE_CLOCK = "database_clock"
# Kinds that disturb a single node. Another one at the same time means that nobody may be left to take over.
NODE_KINDS = frozenset(name for name, kind in KINDS.items() if FIRE in kind.delays)


def kinds_of(group: str, store: str) -> list[str]:
    """Return the kinds of a group, each as often as it is in the lot."""
    return [name for name, kind in KINDS.items() if kind.group == group and store in kind.stores for _ in range(kind.repeats)]
