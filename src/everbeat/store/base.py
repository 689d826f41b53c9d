"""The Store contract. Each verb is one async method and works on a batch.

Time: every verb that depends on the time takes `now`. In production it is None, and the database's clock is used. Tests pass
the time of a fake clock. A verb that reads the clock also returns the time, so that callers need no second query.
Errors: StoreUnavailable means that the outcome is unknown and has to be read back. StoreRefused means that the database
rejected this write.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from everbeat.store.contract.administration import AdministrationVerbs
from everbeat.store.contract.monitoring import MonitoringVerbs
from everbeat.store.contract.schedules import ScheduleVerbs
from everbeat.store.contract.tasks import TaskVerbs
from everbeat.store.migrate import SchemaVersion
from everbeat.store.values import (
    Listener,
    Notice,
    PoolName,
)


class Store(ScheduleVerbs, TaskVerbs, MonitoringVerbs, AdministrationVerbs, Protocol):
    """All operations that Everbeat needs from a database.

    `audit_log` entries are written in the transaction of the change that they describe. If nothing changes, they are not
    written.
    """

    dialect: str
    description: str

    async def open(self) -> None:
        """Connect. If this fails, the error message says what to do."""

    async def close(self) -> None:
        """Close all connections."""

    async def schema_version(self) -> SchemaVersion:
        """The migration that the database is at, the one that this code needs, and the one that code has to know."""

    async def migrate(self, *, visible: int | None = None) -> list[str]:
        """Apply the missing migrations in order, one node at a time. Returns their names.

        Nodes of 0.1.0, which refuse a newer schema, do not see the migrations after `visible`.
        """

    async def migration_show(self, visible: int | None) -> None:
        """Hide the applied migrations after `visible` from nodes of 0.1.0, or show them all (None)."""

    async def clock(self, *, now: datetime | None = None) -> datetime:
        """The current time of the database's clock."""

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` for every notice, from this process or another one."""

    def publish(self, notice: Notice) -> None:
        """Send a notice to every node. Calls in quick succession are sent as one notice."""

    def publish_to_others(self, notice: Notice) -> None:
        """Like `publish`, but without the listeners of this process: they have already received the change itself."""

    def pool(self, pool: PoolName) -> Store:
        """The same store on a separate connection pool, so that slow work on one pool does not delay the others."""

    def event_stream_listen(self, on_message: Callable[[str], None]) -> bool:
        """Call `on_message` for every message of another process. False if this store sends no messages between processes."""

    async def event_stream_send(self, message: str) -> None:
        """Send a message of less than 8000 bytes to the other processes. It may be lost."""


class Observer(Protocol):
    """Called by a store after each call, for telemetry."""

    def __call__(self, verb: str, seconds: float, failed: bool) -> None: ...
