"""Operations on calendars. A change of a calendar recomputes the schedules that use it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from everbeat.core.access import Caller
from everbeat.core.audit_log import AuditLogAction
from everbeat.core.calendars import Calendar, parse_calendar
from everbeat.core.errors import Conflict, InvalidInput, NotFound
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.schedules import Schedule
from everbeat.services.audit_log import new_audit_log_entries
from everbeat.services.schedules import ScheduleService
from everbeat.store.base import Store
from everbeat.store.values import Notice


class CalendarService:
    def __init__(self, store: Store, schedules: ScheduleService) -> None:
        self._store = store
        self._schedules = schedules

    async def page(self, tenant_id: UUID, *, after_name: str | None, limit: int) -> list[Calendar]:
        calendars = await self._store.calendar_list(tenant_id)
        return [one for one in calendars if after_name is None or one.name > after_name][:limit]

    async def get(self, tenant_id: UUID, name: str) -> Calendar:
        for calendar in await self._store.calendar_list(tenant_id):
            if calendar.name == name:
                return calendar
        raise NotFound(f'there is no calendar named "{name[:200]}"')

    async def put(
        self, tenant_id: UUID, name: str, definition: Any, *, by: Caller | None = None, now: datetime | None = None
    ) -> tuple[Calendar, bool]:
        """Create or replace a calendar, and recompute the schedules that use it. Returns whether the calendar is new."""
        if not is_name(name):
            raise InvalidInput.of("name", NAME_MESSAGE)
        if not isinstance(definition, dict):
            raise InvalidInput.of("body", "must be a JSON object")
        existing = {one.name: one for one in await self._store.calendar_list(tenant_id)}.get(name)
        today = (await self._store.clock(now=now)).date()
        revision = 1 if existing is None else existing.revision + 1
        # A large ICS file takes seconds to expand; the tick loop must not wait for it.
        calendar = await asyncio.to_thread(parse_calendar, name, definition, revision=revision, today=today)
        if existing is not None and existing.to_definition() == calendar.to_definition():
            return existing, False
        audit_log = new_audit_log_entries(by, AuditLogAction.CALENDAR_PUT, name, revision=revision)
        is_new = await self._store.calendar_write(tenant_id, calendar, audit_log=audit_log, now=now)
        await self._schedules.recompute(tenant_id, await self._schedules_using(tenant_id, name), now=now)
        self._store.publish(Notice.CALENDARS)
        return calendar, is_new

    async def delete(self, tenant_id: UUID, name: str, *, by: Caller | None = None, now: datetime | None = None) -> None:
        schedules = await self._schedules_using(tenant_id, name)
        if schedules:
            names = ", ".join(one.spec.name for one in schedules[:5])
            raise Conflict(f"the calendar is used by {len(schedules)} schedule(s), including {names}; change them first")
        if (
            await self._store.calendar_delete(
                tenant_id, name, audit_log=new_audit_log_entries(by, AuditLogAction.CALENDAR_DELETE, name), now=now
            )
            == 0
        ):
            raise NotFound(f'there is no calendar named "{name[:200]}"')

    async def _schedules_using(self, tenant_id: UUID, name: str) -> Sequence[Schedule]:
        found = await self._store.schedule_using_calendar(tenant_id, name)
        return [one for one in found if name in (*one.spec.rule.exclude, *one.spec.rule.only)]
