"""Operations on schedules: register, change, pause, resume and delete them. Quotas and tenants are checked here.

Every change reads, decides and writes if nothing has changed meanwhile: the decisions are pure (core/changes.py), the write
names the revision and position that it is based on, and the loser of a race reads and decides again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import uuid_utils.compat

from everbeat.core.access import Caller
from everbeat.core.audit_log import AuditLogAction
from everbeat.core.changes import Calendars, ScheduleChanges, ScheduleWrite
from everbeat.core.definitions import apply_patch, parse_definition
from everbeat.core.edits import recorded_changes
from everbeat.core.errors import Conflict, FieldError, InvalidInput, NotFound, RevisionMismatch
from everbeat.core.hooks import NO_HOOKS, hooks_with_stored_secrets
from everbeat.core.names import is_name
from everbeat.core.responses import RegistrationStatus, schedule_response
from everbeat.core.schedules import Schedule, Spec, Status
from everbeat.core.target_secrets import redaction_errors, with_stored_secrets
from everbeat.core.targets import TargetRules
from everbeat.core.timeline import TimelineCache
from everbeat.services.audit_log import AuditLogEntries, new_audit_log_entries
from everbeat.services.idempotency import EncodedResponse, Idempotency, repeated
from everbeat.services.publisher import ChangePublisher
from everbeat.services.quotas import QuotaService
from everbeat.services.target_rules import RulesOf, no_rules
from everbeat.services.time_slices import TimeSlices
from everbeat.store.base import Store
from everbeat.store.values import IdempotentResponse, Notice, ScheduleFilter

MAX_BATCH = 1000
_TRIES = 20
_NOTICE_HORIZON = timedelta(seconds=60)


class RegisteredSchedule(NamedTuple):
    schedule: Schedule
    status: RegistrationStatus


class ScheduleService:
    """The operations of /v1/schedules. `now` is None in production: the database's clock decides."""

    def __init__(
        self,
        store: Store,
        timelines: TimelineCache,
        publisher: ChangePublisher,
        quotas: QuotaService | None = None,
        *,
        rules_of: RulesOf = no_rules,
    ) -> None:
        self._store = store
        self._rules_of = rules_of
        self._publisher = publisher
        self._quotas = quotas or QuotaService(store)
        self._changes = ScheduleChanges(timelines)

    # Reading

    async def get(self, tenant_id: UUID, ref: str) -> Schedule:
        return (await self._find(tenant_id, ref, None))[1]

    async def page(self, tenant_id: UUID, filter_: ScheduleFilter, *, after_name: str | None, limit: int) -> list[Schedule]:
        return await self._store.schedule_list(tenant_id, filter_, after_name=after_name, limit=limit)

    # Registering

    async def create(
        self,
        tenant_id: UUID,
        data: Any,
        *,
        idempotency: Idempotency | None = None,
        by: Caller | None = None,
        now: datetime | None = None,
    ) -> EncodedResponse:
        spec = parse_definition(data, self._rules_of(tenant_id))
        await self._quotas.check_payloads(tenant_id, [spec.payload])
        for _ in range(_TRIES):
            key = None if idempotency is None else idempotency.key
            found = await self._store.schedule_find(tenant_id, names=[spec.name], key=key, now=now)
            if found.response is not None and idempotency is not None:
                return repeated(found.response, idempotency)
            if found.schedules:
                raise Conflict(
                    f'a schedule named "{spec.name}" already exists; to change it, use PUT or everbeat schedule edit'
                )
            write = self._registration(tenant_id, spec, None, found.now, await self._calendars(tenant_id, [spec]))
            assert write is not None
            body = msgspec.json.encode(schedule_response(write.schedule))
            response = None
            if idempotency is not None:
                response = IdempotentResponse(key=idempotency.key, fingerprint=idempotency.fingerprint, status=201, body=body)
            audit_log = _registered(by, write)
            if await self._write(tenant_id, [write], found.now, now, response, audit_log=audit_log):
                return EncodedResponse(201, body)
        raise _too_many_conflicts(spec.name)

    async def put(
        self, tenant_id: UUID, name: str, data: Any, *, by: Caller | None = None, now: datetime | None = None
    ) -> RegisteredSchedule:
        if isinstance(data, dict):
            if data.get("name", name) != name:
                raise InvalidInput.of("name", "differs from the name in the path; leave it out or make them equal")
            data = {**data, "name": name}
        return (await self._register(tenant_id, [parse_definition(data, self._rules_of(tenant_id))], by, now))[0]

    async def put_batch(
        self, tenant_id: UUID, items: Sequence[Any], *, by: Caller | None = None, now: datetime | None = None
    ) -> list[RegisteredSchedule]:
        """Create or replace up to 1,000 schedules by name: all or none."""
        if not 1 <= len(items) <= MAX_BATCH:
            raise InvalidInput.of("schedules", f"must have 1 to {MAX_BATCH} items, has {len(items)}")
        specs = await self._parse_batch(items, self._rules_of(tenant_id))
        return await self._register(tenant_id, specs, by, now, is_batch=True)

    async def _parse_batch(self, items: Sequence[Any], rules: TargetRules) -> list[Spec]:
        specs: list[Spec] = []
        errors: list[FieldError] = []
        seen: set[str] = set()
        slices = TimeSlices()
        for index, item in enumerate(items):
            await slices.pause()  # the tick loop of this process must not wait for a large batch
            try:
                spec = parse_definition(item, rules)
            except InvalidInput as error:
                errors.extend(error.under(f"schedules[{index}]").errors)
                continue
            if spec.name in seen:
                errors.append(FieldError(f"schedules[{index}].name", f'"{spec.name}" is in the batch twice'))
            seen.add(spec.name)
            specs.append(spec)
        if errors:
            raise InvalidInput(*errors[:100])
        return specs

    async def _register(
        self, tenant_id: UUID, specs: Sequence[Spec], by: Caller | None, now: datetime | None, *, is_batch: bool = False
    ) -> list[RegisteredSchedule]:
        await self._quotas.check_payloads(tenant_id, [spec.payload for spec in specs])
        for _ in range(_TRIES):
            found = await self._store.schedule_find(tenant_id, names=[spec.name for spec in specs], now=now)
            known = {schedule.spec.name: schedule for schedule in found.schedules}
            calendars = await self._calendars(tenant_id, [*specs, *(one.spec for one in found.schedules)])
            registered, writes = [], []
            slices = TimeSlices()
            for index, spec in enumerate(specs):
                await slices.pause()
                try:
                    write = self._registration(tenant_id, spec, known.get(spec.name), found.now, calendars)
                except InvalidInput as error:
                    raise (error.under(f"schedules[{index}]") if is_batch else error) from None
                existing = known.get(spec.name)
                if write is None:
                    assert existing is not None
                    registered.append(RegisteredSchedule(existing, "unchanged"))
                    continue
                writes.append(write)
                registered.append(RegisteredSchedule(write.schedule, "created" if existing is None else "updated"))
            audit_log = tuple(entry for write in writes for entry in _registered(by, write))
            if not writes or await self._write(tenant_id, writes, found.now, now, audit_log=audit_log):
                return registered
        raise _too_many_conflicts(specs[0].name)

    def _registration(
        self, tenant_id: UUID, spec: Spec, existing: Schedule | None, moment: datetime, calendars: Calendars
    ) -> ScheduleWrite | None:
        spec = _with_stored_secrets(spec, None if existing is None else existing.spec)
        if existing is None:
            return self._changes.create(uuid_utils.compat.uuid7(), tenant_id, spec, moment, calendars)
        return self._changes.update(existing, spec, moment, calendars)

    # Changing

    async def patch(
        self,
        tenant_id: UUID,
        ref: str,
        patch: Any,
        *,
        if_match: int | None = None,
        by: Caller | None = None,
        now: datetime | None = None,
    ) -> Schedule:
        fields = sorted(patch) if isinstance(patch, dict) else []

        def decide(existing: Schedule, moment: datetime, calendars: Calendars) -> ScheduleWrite | None:
            if if_match is not None and existing.revision != if_match:
                raise RevisionMismatch(f"the schedule is at revision {existing.revision}, not {if_match}; read it again")
            spec = parse_definition(apply_patch(existing.spec, patch), self._rules_of(tenant_id))
            spec = _with_stored_secrets(spec, existing.spec)
            has_enabled = isinstance(patch, dict) and "enabled" in patch
            return self._changes.update(existing, spec, moment, calendars, enabled=spec.enabled if has_enabled else None)

        return await self._decide(tenant_id, ref, decide, now, lambda write: _updated(by, write, fields=fields))

    async def pause(
        self, tenant_id: UUID, ref: str, *, note: str | None, by: Caller | None = None, now: datetime | None = None
    ) -> Schedule:
        def decide(existing: Schedule, moment: datetime, calendars: Calendars) -> ScheduleWrite | None:
            if existing.status is Status.FINISHED:
                raise Conflict("the schedule is finished; there is nothing to pause")
            if existing.status is Status.PAUSED and note in (None, existing.note):
                return None
            return self._changes.reposition(existing, moment, calendars, status=Status.PAUSED, note=note)

        def log_change(write: ScheduleWrite) -> AuditLogEntries:
            return new_audit_log_entries(
                by, AuditLogAction.SCHEDULE_PAUSE, write.schedule.id, name=write.schedule.spec.name, note=note
            )

        return await self._decide(tenant_id, ref, decide, now, log_change)

    async def resume(self, tenant_id: UUID, ref: str, *, by: Caller | None = None, now: datetime | None = None) -> Schedule:
        def decide(existing: Schedule, moment: datetime, calendars: Calendars) -> ScheduleWrite | None:
            if existing.status is Status.FINISHED:
                raise Conflict("the schedule is finished; change its trigger or its end to start it again")
            if existing.status is Status.ACTIVE:
                return None
            enabled = msgspec.structs.replace(existing, spec=msgspec.structs.replace(existing.spec, enabled=True))
            write = self._changes.reposition(enabled, moment, calendars, status=Status.ACTIVE, note=None)
            return write._replace(expected=existing)

        def log_change(write: ScheduleWrite) -> AuditLogEntries:
            return new_audit_log_entries(by, AuditLogAction.SCHEDULE_RESUME, write.schedule.id, name=write.schedule.spec.name)

        return await self._decide(tenant_id, ref, decide, now, log_change)

    async def delete(self, tenant_id: UUID, ref: str, *, by: Caller | None = None, now: datetime | None = None) -> None:
        _, schedule = await self._find(tenant_id, ref, None)
        audit_log = new_audit_log_entries(
            by, AuditLogAction.SCHEDULE_DELETE, schedule.id, name=schedule.spec.name, revision=schedule.revision
        )
        if await self._store.schedule_delete(tenant_id, [schedule.id], audit_log=audit_log, now=now) == 0:
            raise NotFound(_missing(ref))

    async def recompute(self, tenant_id: UUID, schedules: Sequence[Schedule], *, now: datetime | None = None) -> None:
        """Recompute the next ticks of active schedules after a change of a calendar."""

        def decide(existing: Schedule, moment: datetime, calendars: Calendars) -> ScheduleWrite | None:
            if existing.status is not Status.ACTIVE:
                return None
            return self._changes.reposition(existing, moment, calendars, status=Status.ACTIVE, note=existing.note)

        for schedule in schedules:
            await self._decide(tenant_id, str(schedule.id), decide, now, lambda _: ())

    async def rezone(self, schedule: Schedule, *, now: datetime | None = None) -> bool:
        """Move the next tick of a schedule after a change of the tz database. Returns whether it has moved."""
        calendars = await self._calendars(schedule.tenant_id, [schedule.spec])
        if self._changes.rezone(schedule, schedule.updated_at, calendars) is None:
            return False
        moved = False

        def decide(existing: Schedule, moment: datetime, calendars: Calendars) -> ScheduleWrite | None:
            nonlocal moved
            write = self._changes.rezone(existing, moment, calendars)
            moved = write is not None
            return write

        await self._decide(schedule.tenant_id, str(schedule.id), decide, now, lambda _: ())
        return moved

    async def _decide(
        self,
        tenant_id: UUID,
        ref: str,
        decide: Callable[[Schedule, datetime, Calendars], ScheduleWrite | None],
        now: datetime | None,
        log_change: Callable[[ScheduleWrite], AuditLogEntries],
    ) -> Schedule:
        for _ in range(_TRIES):
            moment, existing = await self._find(tenant_id, ref, now)
            write = decide(existing, moment, await self._calendars(tenant_id))
            if write is None:
                return existing
            await self._quotas.check_payloads(tenant_id, [write.schedule.spec.payload], [existing.spec.payload])
            if await self._write(tenant_id, [write], moment, now, audit_log=log_change(write)):
                return write.schedule
            name = write.schedule.spec.name
            if name != existing.spec.name and await self._is_taken(tenant_id, name):
                raise Conflict(f'a schedule named "{name}" already exists')
        raise _too_many_conflicts(ref)

    # IO

    async def _find(self, tenant_id: UUID, ref: str, now: datetime | None) -> tuple[datetime, Schedule]:
        try:
            ids = [UUID(ref)]
        except ValueError:
            ids = []
        names = [ref] if is_name(ref) else []
        if not ids and not names:
            raise NotFound(_missing(ref))
        found = await self._store.schedule_find(tenant_id, names=names, ids=ids, now=now)
        by_id = [schedule for schedule in found.schedules if schedule.id in ids]
        for schedule in by_id or found.schedules:
            return found.now, schedule
        raise NotFound(_missing(ref))

    async def _calendars(self, tenant_id: UUID, specs: Sequence[Spec] | None = None) -> Calendars:
        if specs is not None and not any(spec.rule.exclude or spec.rule.only for spec in specs):
            return {}
        return {calendar.name: calendar for calendar in await self._store.calendar_list(tenant_id)}

    async def _is_taken(self, tenant_id: UUID, name: str) -> bool:
        return bool((await self._store.schedule_find(tenant_id, names=[name])).schedules)

    async def _write(
        self,
        tenant_id: UUID,
        writes: Sequence[ScheduleWrite],
        moment: datetime,
        now: datetime | None,
        response: IdempotentResponse | None = None,
        *,
        audit_log: AuditLogEntries,
    ) -> bool:
        max_schedules = (await self._quotas.of(tenant_id)).max_schedules
        written = await self._store.schedule_write(
            tenant_id, writes, response=response, max_schedules=max_schedules, audit_log=audit_log, now=now
        )
        if not written:
            return False
        self._publisher.publish(written.changes)
        soon = moment + _NOTICE_HORIZON
        if any(write.schedule.due_at is not None and write.schedule.due_at <= soon for write in writes):
            self._store.publish(Notice.SCHEDULES)
        return True


def _with_stored_secrets(spec: Spec, stored: Spec | None) -> Spec:
    target = with_stored_secrets(spec.target, None if stored is None else stored.target)
    errors = redaction_errors(target)
    hooks = spec.hooks
    if hooks:
        hooks, hook_errors = hooks_with_stored_secrets(hooks, NO_HOOKS if stored is None else stored.hooks)
        errors += hook_errors
    if errors:
        raise InvalidInput(*errors)
    return spec if target is spec.target and not hooks else msgspec.structs.replace(spec, target=target, hooks=hooks)


def _registered(by: Caller | None, write: ScheduleWrite) -> AuditLogEntries:
    if write.expected is not None:
        return _updated(by, write)
    return new_audit_log_entries(by, AuditLogAction.SCHEDULE_CREATE, write.schedule.id, name=write.schedule.spec.name)


def _updated(by: Caller | None, write: ScheduleWrite, **more: Any) -> AuditLogEntries:
    if by is None or write.expected is None:
        return ()
    schedule = write.schedule
    changes = recorded_changes(write.expected.spec, schedule.spec)
    return new_audit_log_entries(
        by,
        AuditLogAction.SCHEDULE_UPDATE,
        schedule.id,
        name=schedule.spec.name,
        revision=schedule.revision,
        **more,
        changes=changes,
    )


def _missing(ref: str) -> str:
    return f'there is no schedule with the name or id "{ref[:200]}"'


def _too_many_conflicts(ref: str) -> Conflict:
    return Conflict(f'"{ref}" was changed by other requests too many times; try again')
