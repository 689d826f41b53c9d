"""Pauses of a queue, of a tenant or of everything: begin, end and list them.

The store enforces a pause in the statements that fire ticks and claim tasks, so nothing starts after the pause is committed.
Ticks of a paused queue are skipped with the reason `paused`; tasks are accepted and wait; tasks of manual triggers run. The
schedules themselves do not change, so the end of a pause restores exactly what was active before.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from everbeat.core.access import Caller
from everbeat.core.audit_log import AuditLogAction
from everbeat.core.definitions import optional_rfc3339
from everbeat.core.errors import InvalidInput
from everbeat.core.pauses import Pause, pause_scope
from everbeat.services.audit_log import new_audit_log_entries
from everbeat.services.events import Emit, PauseChanged, ignore
from everbeat.services.ids import new_ids
from everbeat.store.base import Store
from everbeat.store.values import Notice


class PauseService:
    """The operations of /v1/pause, /v1/resume, /v1/pauses and /v1/queues/{queue}/pause. `now` is None in production."""

    def __init__(self, store: Store, *, emit: Emit = ignore) -> None:
        self._store = store
        self._emit = emit

    async def pause(
        self,
        tenant_id: UUID | None,
        queue: str | None = None,
        *,
        note: str | None = None,
        until: datetime | None = None,
        by: Caller,
        now: datetime | None = None,
    ) -> Pause:
        """Pause a queue of a tenant, all queues of a tenant (`queue` None), or everything (`tenant_id` None as well)."""
        moment = await self._store.clock(now=now)
        if until is not None and until <= moment:
            raise InvalidInput.of("until", "must be in the future")
        pause = Pause(
            id=new_ids(1)[0],
            tenant_id=tenant_id,
            queue=queue,
            note=note,
            paused_by=by.actor,
            since_at=moment,
            until_at=until,
        )
        entries = new_audit_log_entries(
            by, AuditLogAction.PAUSE_BEGIN, queue or pause.scope.value, note=note, until=optional_rfc3339(until)
        )
        written = await self._store.pause_write(pause, audit_log=entries, now=now)
        self._publish(written, "begin")
        return written

    async def resume(
        self, tenant_id: UUID | None, queue: str | None = None, *, by: Caller, now: datetime | None = None
    ) -> list[Pause]:
        """End this pause. Returns it, or nothing if there is none. Other pauses, and paused schedules, stay as they are."""
        entries = new_audit_log_entries(by, AuditLogAction.PAUSE_END, queue or pause_scope(tenant_id, queue).value)
        ended = await self._store.pause_end(tenant_id, queue, by.actor, audit_log=entries, now=now)
        for pause in ended:
            self._publish(pause, "end")
        return ended

    async def active(self, tenant_id: UUID, *, now: datetime | None = None) -> list[Pause]:
        """Return the pauses that apply to a tenant: its own, and those of everything."""
        return await self._store.pause_list(tenant_id, now=now)

    def _publish(self, pause: Pause, change: str) -> None:
        self._emit(PauseChanged(change, pause.scope.value, pause.queue, pause.note))
        # The directory of each node first, so that the scans that follow find what is paused.
        self._store.publish(Notice.TENANTS)
        self._store.publish(Notice.TASKS)
