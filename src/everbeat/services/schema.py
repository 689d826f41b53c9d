"""The schema guard: notices that a newer version of Everbeat has migrated the database while this node was running.

A migration that only expands the schema is compatible with older code, and the node continues. The database says which
migrations code has to know. If the node does not know them, it stops its loops and refuses changes. It does not resume: it has
to be restarted with a version that knows the schema. The database checks this too when a node renews its partitions, so that an
old node cannot take partitions again in the meantime.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from everbeat.core.errors import SchemaTooNew
from everbeat.services.events import Emit, SchemaNewer, ignore
from everbeat.services.loops import Periodic
from everbeat.store.base import Store
from everbeat.store.migrate import check_not_newer
from everbeat.store.values import Notice

_INTERVAL_SECONDS = 1.0


class SchemaGuard(Periodic):
    """Calls `on_newer` once, when the schema has become newer than this node supports. `check` raises from then on."""

    name = "schema"
    deadline_seconds = 10.0

    def __init__(self, store: Store, *, emit: Emit = ignore) -> None:
        super().__init__(_INTERVAL_SECONDS)
        self._store = store
        self._emit = emit
        self._error: SchemaTooNew | None = None
        self._is_told = False
        self.on_newer: Callable[[], None] = lambda: None
        store.subscribe(self._on_notice)

    @property
    def is_newer(self) -> bool:
        return self._error is not None

    def check(self) -> None:
        """Raise SchemaTooNew if this node must not change the database any more."""
        if self._error is not None:
            raise SchemaTooNew(str(self._error))

    async def run_once(self, now: datetime | None = None) -> bool:
        if self._error is not None:
            return False
        schema = await self._store.schema_version()
        try:
            check_not_newer(schema)
        except SchemaTooNew as error:
            self._error = error
            self._emit(SchemaNewer(schema.version, schema.needed))
            self.on_newer()
            return False
        if schema.version > schema.needed and not self._is_told:
            self._is_told = True
            self._emit(SchemaNewer(schema.version, schema.needed, is_compatible=True))
        return False

    def _on_notice(self, notice: Notice) -> None:
        if notice is Notice.SCHEMA:
            self.wake()
