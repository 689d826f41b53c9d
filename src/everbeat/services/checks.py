"""Operations on checks: define, change, pause, resume and delete them, and read their pings and transitions."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec
import uuid_utils.compat

from everbeat.core.access import Caller
from everbeat.core.audit_log import AuditLogAction
from everbeat.core.check_states import CheckStep, edit_step, first_position, pause_step, resume_step, with_step
from everbeat.core.checks import (
    OLD_TOKEN_VALID,
    TOKEN_BYTES,
    Check,
    CheckChange,
    CheckInput,
    CheckSpec,
    CheckState,
    CheckTransition,
    Ping,
    parse_check,
    token_text,
)
from everbeat.core.errors import Conflict, NotFound
from everbeat.core.timeline import TimelineCache
from everbeat.services.audit_log import new_audit_log_entries
from everbeat.services.check_changes import CheckPublisher, change_of, expectation_of
from everbeat.services.quotas import QuotaService
from everbeat.store.base import Store

_TRIES = 20
Decide = Callable[[Check, datetime], CheckChange | None]


class FoundCheck(NamedTuple):
    """A check at an instant. `is_new`: the request has created it."""

    check: Check
    moment: datetime
    is_new: bool = False


def _random_token() -> str:
    return token_text(secrets.token_bytes(TOKEN_BYTES))


class CheckService:
    """The operations of /v1/checks. `now` is None in production: the database's clock decides."""

    def __init__(
        self,
        store: Store,
        timelines: TimelineCache,
        publisher: CheckPublisher,
        quotas: QuotaService | None = None,
        *,
        new_token: Callable[[], str] = _random_token,
    ) -> None:
        self._store = store
        self._timelines = timelines
        self._publisher = publisher
        self._quotas = quotas or QuotaService(store)
        self._new_token = new_token

    # Reading

    async def get(self, tenant_id: UUID, name: str, *, now: datetime | None = None) -> FoundCheck:
        moment, found = await self._store.check_find(tenant_id, [name], now=now)
        if not found:
            raise _not_found(name)
        return FoundCheck(found[0], moment)

    async def page(
        self,
        tenant_id: UUID,
        *,
        state: CheckState | None = None,
        prefix: str | None = None,
        after_name: str | None = None,
        limit: int,
    ) -> list[Check]:
        return await self._store.check_list(tenant_id, state=state, prefix=prefix, after_name=after_name, limit=limit)

    async def clock(self) -> datetime:
        return await self._store.clock()

    async def pings(self, check: Check, *, before: int | None, limit: int) -> list[Ping]:
        return await self._store.check_ping_list(check.tenant_id, check.id, before=before, limit=limit)

    async def transitions(self, check: Check, *, before: int | None, limit: int) -> list[tuple[int, CheckTransition]]:
        return await self._store.check_transition_list(check.tenant_id, check.id, before=before, limit=limit)

    # Changing

    async def put(
        self, tenant_id: UUID, name: str, given: CheckInput, *, by: Caller | None = None, now: datetime | None = None
    ) -> FoundCheck:
        """Create a check with a new token, or replace its definition. Nothing changes if nothing differs."""
        spec = parse_check(name, given)
        for _ in range(_TRIES):
            moment, found = await self._store.check_find(tenant_id, [name], now=now)
            if found and found[0].spec == spec:
                return FoundCheck(found[0], moment)
            if found:
                change = self._edited(found[0], spec, moment)
                quota = None
            else:
                change = self._created(tenant_id, spec, moment)
                quota = (await self._quotas.of(tenant_id)).max_schedules
            audit_log = new_audit_log_entries(by, AuditLogAction.CHECK_PUT, name, revision=change.check.revision)
            if await self._store.check_write(change, max_schedules=quota, audit_log=audit_log, now=now):
                self._publisher.publish([change])
                return FoundCheck(change.check, moment, not found)
        raise _too_many_conflicts(name)

    def _created(self, tenant_id: UUID, spec: CheckSpec, moment: datetime) -> CheckChange:
        check = Check(
            id=uuid_utils.compat.uuid7(),
            tenant_id=tenant_id,
            spec=spec,
            token=self._new_token(),
            position=first_position(moment),
            created_at=moment,
            updated_at=moment,
        )
        return CheckChange(check, None)

    def _edited(self, existing: Check, spec: CheckSpec, moment: datetime) -> CheckChange:
        edited = msgspec.structs.replace(existing, spec=spec)
        before, after = (expectation_of(check, self._timelines) for check in (existing, edited))
        step = edit_step(existing.position, before, after, moment, has_new_rule=spec.rule != existing.spec.rule)
        return _change(existing, edited, step, moment)

    async def rotate(
        self, tenant_id: UUID, name: str, *, keeps_old: bool = True, by: Caller | None = None, now: datetime | None = None
    ) -> FoundCheck:
        """Give a check a new ping URL. The old one stays valid for 24 hours, unless it must not be kept."""

        def decide(check: Check, moment: datetime) -> CheckChange:
            old, until = (check.token, moment + OLD_TOKEN_VALID) if keeps_old else (None, None)
            rotated = msgspec.structs.replace(check, token=self._new_token(), old_token=old, old_token_until=until)
            return _change(check, rotated, CheckStep(check.position), moment)

        return await self._decided(tenant_id, name, decide, AuditLogAction.CHECK_ROTATE, by, now)

    async def pause(self, tenant_id: UUID, name: str, *, by: Caller | None = None, now: datetime | None = None) -> FoundCheck:
        def decide(check: Check, moment: datetime) -> CheckChange | None:
            if check.position.state is CheckState.PAUSED:
                return None
            return change_of(check, pause_step(check.position, expectation_of(check, self._timelines), moment))

        return await self._decided(tenant_id, name, decide, AuditLogAction.CHECK_PAUSE, by, now)

    async def resume(self, tenant_id: UUID, name: str, *, by: Caller | None = None, now: datetime | None = None) -> FoundCheck:
        def decide(check: Check, moment: datetime) -> CheckChange | None:
            if check.position.state is not CheckState.PAUSED:
                return None
            return change_of(check, resume_step(check.position, expectation_of(check, self._timelines), moment))

        return await self._decided(tenant_id, name, decide, AuditLogAction.CHECK_RESUME, by, now)

    async def delete(self, tenant_id: UUID, name: str, *, by: Caller | None = None, now: datetime | None = None) -> None:
        audit_log = new_audit_log_entries(by, AuditLogAction.CHECK_DELETE, name)
        if await self._store.check_delete(tenant_id, name, audit_log=audit_log, now=now) == 0:
            raise _not_found(name)

    async def _decided(
        self,
        tenant_id: UUID,
        name: str,
        decide: Decide,
        action: AuditLogAction,
        by: Caller | None,
        now: datetime | None,
    ) -> FoundCheck:
        """Read, decide and write if nothing has changed meanwhile. None: nothing is to be changed."""
        for _ in range(_TRIES):
            check, moment, _ = await self.get(tenant_id, name, now=now)
            change = decide(check, moment)
            if change is None:
                return FoundCheck(check, moment)
            audit_log = new_audit_log_entries(by, action, name)
            if await self._store.check_write(change, audit_log=audit_log, now=now):
                self._publisher.publish([change])
                return FoundCheck(change.check, moment)
        raise _too_many_conflicts(name)


def _change(existing: Check, changed: Check, step: CheckStep, moment: datetime) -> CheckChange:
    """Return the change of a definition, with its next revision."""
    check = msgspec.structs.replace(with_step(changed, step), revision=existing.revision + 1, updated_at=moment)
    return CheckChange(check, existing.version, (), step.ticks, step.transitions)


def _not_found(name: str) -> NotFound:
    return NotFound(f'there is no check named "{name[:200]}"')


def _too_many_conflicts(name: str) -> Conflict:
    return Conflict(f'the check "{name[:200]}" was changed by other requests too many times; try again')
