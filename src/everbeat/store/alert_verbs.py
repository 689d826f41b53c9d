"""Verbs of alert rules and incidents that are the same in both dialects. Each dialect adds the storing of an evaluation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from everbeat.core.access import AuditLogEntry
from everbeat.core.alert_facts import AlertSignal, ReadyAge, ScheduleRun, SignalKind, SlowTask
from everbeat.core.alerts import MAX_ALERTS, AlertKind, AlertRule, alert_from_text, alert_text
from everbeat.core.incidents import Incident, IncidentResolution, IncidentState, NotificationEvent
from everbeat.core.schedules import Schedule
from everbeat.core.tasks import TaskState
from everbeat.store.rows import LAST_ID, LATEST, Row, schedule_from_row
from everbeat.store.shared import SharedVerbs
from everbeat.store.values import AlertTenant, Completion, IncidentCount

Step = tuple[str, Mapping[str, Any]]

_decode_labels = msgspec.json.Decoder(dict[str, str]).decode


class AlertVerbs(SharedVerbs):
    @abstractmethod
    async def _change_in_order(self, steps: Sequence[Step], audit_log: Sequence[AuditLogEntry], now: datetime | None) -> int:
        """Run blocks in one transaction. If the first changes no row, nothing else is run. Returns the rows that it changed."""

    async def alert_list(self, tenant_id: UUID, *, after_name: str | None, limit: int) -> list[AlertRule]:
        rows = await self._read("alert_list", tenant_id=tenant_id, after_name=after_name or "", limit=limit)
        return [_rule(row) for row in rows]

    async def alert_find(self, tenant_id: UUID, names: Sequence[str]) -> list[AlertRule]:
        return [_rule(row) for row in await self._read("alert_find", tenant_id=tenant_id, names=list(names))]

    async def alert_write(
        self,
        rule: AlertRule,
        *,
        expected: int | None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> bool:
        values: dict[str, Any] = {
            "tenant_id": rule.tenant_id,
            "name": rule.name,
            "kind": rule.kind.value,
            "definition": alert_text(rule.given),
            "enabled": rule.given.enabled,
            "revision": rule.revision,
            "updated_at": rule.updated_at,
        }
        if expected is None:
            first: Step = ("alert_insert", {**values, "created_at": rule.created_at, "max_alerts": MAX_ALERTS})
        else:
            first = ("alert_replace", {**values, "expected": expected})
        refresh: Step = ("alert_tenant_refresh", {"tenant_id": rule.tenant_id})
        return await self._change_in_order([first, refresh], audit_log, now) == 1

    async def alert_delete(
        self, tenant_id: UUID, name: str, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> int:
        named = {"tenant_id": tenant_id, "name": name}
        steps: list[Step] = [
            ("alert_delete", named),
            ("alert_remove_incidents", {**named, "now": now}),
            ("alert_tenant_refresh", {"tenant_id": tenant_id}),
        ]
        return await self._change_in_order(steps, audit_log, now)

    async def alert_tenants(self, *, after: UUID | None, limit: int) -> list[AlertTenant]:
        rows = await self._read("alert_tenants", after=after, limit=limit)
        return [AlertTenant(row["tenant_id"], row["version"], row["positions"]) for row in rows]

    async def alert_signals(self, tenant_id: UUID, *, limit: int) -> list[AlertSignal]:
        return [_signal(row) for row in await self._read("alert_signals", tenant_id=tenant_id, limit=limit)]

    async def alert_signal_prune(self, *, old_seconds: float, limit: int, now: datetime | None = None) -> int:
        return await self._change("alert_signal_prune", old_seconds=old_seconds, limit=limit, now=now)

    async def incident_list(
        self,
        tenant_id: UUID,
        *,
        states: Collection[IncidentState] = tuple(IncidentState),
        alert: str | None = None,
        before: tuple[datetime, UUID] | None = None,
        limit: int,
    ) -> list[Incident]:
        before_at, before_id = before or (LATEST, LAST_ID)
        values = {"before_at": before_at, "before_id": before_id, "alert": alert, "limit": limit}
        rows = await self._read("incident_list", tenant_id=tenant_id, states=[one.value for one in states], **values)
        return [_incident(row) for row in rows]

    async def incident_find(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[Incident]:
        return [_incident(row) for row in await self._read("incident_find", tenant_id=tenant_id, ids=list(ids))]

    async def incident_pending(self, tenant_id: UUID, *, limit: int) -> list[Incident]:
        return [_incident(row) for row in await self._read("incident_pending", tenant_id=tenant_id, limit=limit)]

    async def incident_acknowledge(
        self,
        tenant_id: UUID,
        id_: UUID,
        *,
        actor: str,
        note: str | None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> bool:
        values = {"tenant_id": tenant_id, "id": id_, "actor": actor, "note": note, "now": now}
        return await self._change_with_audit_log("incident_acknowledge", audit_log, now, **values) == 1

    async def incident_counts(self, tenant_id: UUID | None) -> list[IncidentCount]:
        rows = await self._read("incident_counts", tenant_id=tenant_id)
        return [IncidentCount(AlertKind(row["kind"]), IncidentState(row["state"]), row["count"]) for row in rows]

    async def incident_prune(self, *, resolved_seconds: float, limit: int, now: datetime | None = None) -> int:
        return await self._change("incident_prune", resolved_seconds=resolved_seconds, limit=limit, now=now)

    async def schedule_late(
        self, tenant_id: UUID, *, late_seconds: float, limit: int, now: datetime | None = None
    ) -> list[Schedule]:
        rows = await self._read("schedule_late", tenant_id=tenant_id, late_seconds=late_seconds, limit=limit, now=now)
        return [schedule_from_row(row) for row in rows]

    async def schedule_runs(self, tenant_id: UUID, ids: Sequence[UUID], *, limit: int) -> list[ScheduleRun]:
        rows = await self._read("schedule_runs", tenant_id=tenant_id, ids=list(ids), limit=limit)
        return [ScheduleRun(**{**row, "state": TaskState(row["state"])}) for row in rows]

    async def task_slow(self, tenant_id: UUID, *, seconds: float, limit: int, now: datetime | None = None) -> list[SlowTask]:
        rows = await self._read("task_slow", tenant_id=tenant_id, seconds=seconds, limit=limit, now=now)
        return [SlowTask(**{**row, "labels": _decode_labels(row["labels"])}) for row in rows]

    async def task_ready_ages(
        self, tenant_id: UUID, *, seconds: float, limit: int, now: datetime | None = None
    ) -> list[ReadyAge]:
        rows = await self._read("task_ready_ages", tenant_id=tenant_id, seconds=seconds, limit=limit, now=now)
        return [ReadyAge(**row) for row in rows]

    async def task_outcomes(
        self,
        tenant_id: UUID,
        *,
        since_id: UUID,
        queue: str | None = None,
        label: tuple[str | None, str | None] = (None, None),
        limit: int,
    ) -> dict[TaskState, int]:
        values = {"since_id": since_id, "queue": queue, "label_key": label[0], "label_value": label[1], "limit": limit}
        rows = await self._read("task_outcomes", tenant_id=tenant_id, **values)
        return {TaskState(row["state"]): row["count"] for row in rows}

    async def task_completions(self, tenant_id: UUID, *, limit: int) -> list[Completion]:
        rows = await self._read("task_completions", tenant_id=tenant_id, limit=limit)
        return [Completion(**row) for row in rows]


def _rule(row: Row) -> AlertRule:
    return AlertRule(
        tenant_id=row["tenant_id"],
        name=row["name"],
        given=alert_from_text(row["definition"]),
        revision=row["revision"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def _signal(row: Row) -> AlertSignal:
    labels = _decode_labels(row["labels"]) if row["labels"] else {}
    return AlertSignal(**{**row, "kind": SignalKind(row["kind"]), "labels": labels})


def _incident(row: Row) -> Incident:
    return Incident(
        **{
            **row,
            "kind": AlertKind(row["kind"]),
            "state": IncidentState(row["state"]),
            "resolution": None if row["resolution"] is None else IncidentResolution(row["resolution"]),
            "pending": None if row["pending"] is None else NotificationEvent(row["pending"]),
        }
    )
