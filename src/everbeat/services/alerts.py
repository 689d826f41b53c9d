"""Operations on alert rules and incidents. The evaluation of the rules is services/alert_evaluator.py."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from everbeat.core.access import Caller
from everbeat.core.alerts import MAX_ALERTS, AlertInput, AlertRule, is_same_alert, new_alert
from everbeat.core.audit_log import AuditLogAction
from everbeat.core.errors import Conflict, NotFound
from everbeat.core.incidents import Incident, IncidentState
from everbeat.services.audit_log import new_audit_log_entries
from everbeat.services.target_rules import RulesOf, no_rules
from everbeat.store.base import Store
from everbeat.store.values import IncidentCount

_TRIES = 10


class ChangedAlert(NamedTuple):
    rule: AlertRule
    is_new: bool


class AlertService:
    def __init__(self, store: Store, *, rules_of: RulesOf = no_rules) -> None:
        self._store = store
        self._rules_of = rules_of

    async def page(self, tenant_id: UUID, *, after_name: str | None, limit: int) -> list[AlertRule]:
        return await self._store.alert_list(tenant_id, after_name=after_name, limit=limit)

    async def get(self, tenant_id: UUID, name: str) -> AlertRule:
        for rule in await self._store.alert_find(tenant_id, [name]):
            return rule
        raise _no_alert(name)

    async def put(
        self,
        tenant_id: UUID,
        name: str,
        given: AlertInput,
        *,
        must_be_new: bool = False,
        by: Caller | None = None,
        now: datetime | None = None,
    ) -> ChangedAlert:
        """Create or replace a rule. Nothing changes if nothing differs. `must_be_new`: refuse to replace a rule."""
        for _ in range(_TRIES):
            existing = next(iter(await self._store.alert_find(tenant_id, [name])), None)
            if existing is not None and must_be_new:
                raise Conflict(f'there is already an alert named "{name[:200]}"')
            moment = await self._store.clock(now=now)
            rule = new_alert(tenant_id, name, given, existing, self._rules_of(tenant_id), moment)
            if existing is not None and is_same_alert(existing, rule):
                return ChangedAlert(existing, False)
            await self._check_count(tenant_id, existing)
            audit_log = new_audit_log_entries(by, AuditLogAction.ALERT_PUT, name, revision=rule.revision, kind=rule.kind.value)
            expected = None if existing is None else existing.revision
            if await self._store.alert_write(rule, expected=expected, audit_log=audit_log, now=now):
                return ChangedAlert(rule, existing is None)
        raise Conflict(f'the alert "{name[:200]}" was changed by other requests too many times; try again')

    async def _check_count(self, tenant_id: UUID, existing: AlertRule | None) -> None:
        if existing is None and len(await self._store.alert_list(tenant_id, after_name=None, limit=MAX_ALERTS)) >= MAX_ALERTS:
            raise Conflict(f"there are already {MAX_ALERTS} alerts, which is the limit; remove one first")

    async def delete(self, tenant_id: UUID, name: str, *, by: Caller | None = None, now: datetime | None = None) -> None:
        """Remove a rule. Its incidents are resolved without a notification, and stay in the list."""
        audit_log = new_audit_log_entries(by, AuditLogAction.ALERT_DELETE, name)
        if await self._store.alert_delete(tenant_id, name, audit_log=audit_log, now=now) == 0:
            raise _no_alert(name)

    async def incidents(
        self,
        tenant_id: UUID,
        *,
        states: Collection[IncidentState] = tuple(IncidentState),
        alert: str | None = None,
        before: tuple[datetime, UUID] | None = None,
        limit: int,
    ) -> list[Incident]:
        """Return incidents, newest first."""
        return await self._store.incident_list(tenant_id, states=states, alert=alert, before=before, limit=limit)

    async def incident(self, tenant_id: UUID, id_: UUID) -> Incident:
        for incident in await self._store.incident_find(tenant_id, [id_]):
            return incident
        raise NotFound(f"there is no incident {id_}")

    async def counts(self, tenant_id: UUID) -> list[IncidentCount]:
        return await self._store.incident_counts(tenant_id)

    async def acknowledge(
        self, tenant_id: UUID, id_: UUID, *, note: str | None = None, by: Caller, now: datetime | None = None
    ) -> Incident:
        """Acknowledge an open incident. It gets no more reminders. Repeating it changes nothing."""
        audit_log = new_audit_log_entries(by, AuditLogAction.INCIDENT_ACKNOWLEDGE, id_, note=note)
        is_done = await self._store.incident_acknowledge(
            tenant_id, id_, actor=by.actor, note=note, audit_log=audit_log, now=now
        )
        incident = await self.incident(tenant_id, id_)
        if not is_done and incident.state is IncidentState.RESOLVED:
            raise Conflict("the incident is already resolved")
        return incident


def _no_alert(name: str) -> NotFound:
    return NotFound(f'there is no alert named "{name[:200]}"')
