"""The verbs of the Store contract for alerts, checks, samples and service levels."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from everbeat.core.access import AuditLogEntry
from everbeat.core.alert_facts import AlertSignal, ReadyAge, ScheduleRun, SlowTask
from everbeat.core.alerts import AlertRule
from everbeat.core.checks import Check, CheckChange, CheckState, CheckTick, CheckTransition, Ping
from everbeat.core.incidents import Incident, IncidentState
from everbeat.core.schedules import Schedule
from everbeat.core.service_levels import LevelBucket, LevelTotal
from everbeat.core.tasks import TaskState
from everbeat.store.samples import DatabaseSample, PoolUse, ReadySample, RunningSample
from everbeat.store.values import (
    AlertEvaluation,
    AlertTenant,
    CheckTickTotal,
    Completion,
    IncidentCount,
)


class MonitoringVerbs(Protocol):
    """See `Store`."""

    # Alerts

    async def alert_list(self, tenant_id: UUID, *, after_name: str | None, limit: int) -> list[AlertRule]:
        """The tenant's alert rules in order of name, after the given name."""

    async def alert_find(self, tenant_id: UUID, names: Sequence[str]) -> list[AlertRule]:
        """The tenant's alert rules with these names."""

    async def alert_write(
        self,
        rule: AlertRule,
        *,
        expected: int | None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> bool:
        """Write a rule, and return whether it was as expected. `expected`: its revision, None if it must be new.

        A new rule is not written if the tenant has as many as it may have.
        """

    async def alert_delete(
        self, tenant_id: UUID, name: str, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> int:
        """Delete a rule, and resolve its incidents without a notification."""

    async def alert_tenants(self, *, after: UUID | None, limit: int) -> list[AlertTenant]:
        """The tenants with alert rules, in order, after the given one."""

    async def alert_signals(self, tenant_id: UUID, *, limit: int) -> list[AlertSignal]:
        """The oldest signals of a tenant that have not been judged."""

    async def alert_apply(self, evaluation: AlertEvaluation, *, now: datetime | None = None) -> bool:
        """Store an evaluation, with its incidents and notifications, in one transaction.

        False, and nothing is stored, if the rules of the tenant were changed or evaluated since the facts were read.
        """

    async def alert_signal_prune(self, *, old_seconds: float, limit: int, now: datetime | None = None) -> int:
        """Delete old signals of tenants that have no rules any more."""

    async def incident_list(
        self,
        tenant_id: UUID,
        *,
        states: Collection[IncidentState] = tuple(IncidentState),
        alert: str | None = None,
        before: tuple[datetime, UUID] | None = None,
        limit: int,
    ) -> list[Incident]:
        """The tenant's incidents in these states, optionally of one rule, newest first."""

    async def incident_find(self, tenant_id: UUID, ids: Sequence[UUID]) -> list[Incident]:
        """The tenant's incidents with these ids."""

    async def incident_pending(self, tenant_id: UUID, *, limit: int) -> list[Incident]:
        """The tenant's incidents that are not resolved, or whose end is still to be reported."""

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
        """Acknowledge an incident. False if it is not open."""

    async def incident_counts(self, tenant_id: UUID | None) -> list[IncidentCount]:
        """The numbers of unresolved incidents of a tenant, or of all (None), by kind and state."""

    async def incident_prune(self, *, resolved_seconds: float, limit: int, now: datetime | None = None) -> int:
        """Delete incidents that were resolved more than `resolved_seconds` ago."""

    async def schedule_late(
        self, tenant_id: UUID, *, late_seconds: float, limit: int, now: datetime | None = None
    ) -> list[Schedule]:
        """Active schedules of a tenant with a tick that should have fired more than `late_seconds` ago."""

    async def schedule_runs(self, tenant_id: UUID, ids: Sequence[UUID], *, limit: int) -> list[ScheduleRun]:
        """The `limit` newest finished tasks of each of these schedules; those of a schedule are newest first."""

    async def task_slow(self, tenant_id: UUID, *, seconds: float, limit: int, now: datetime | None = None) -> list[SlowTask]:
        """Running tasks of a tenant whose attempt began more than `seconds` ago, the oldest first, without notifications."""

    async def task_ready_ages(
        self, tenant_id: UUID, *, seconds: float, limit: int, now: datetime | None = None
    ) -> list[ReadyAge]:
        """The ready tasks of a tenant that could have run more than `seconds` ago, by queue and type, without notifications."""

    async def task_outcomes(
        self,
        tenant_id: UUID,
        *,
        since_id: UUID,
        queue: str | None = None,
        label: tuple[str | None, str | None] = (None, None),
        limit: int,
    ) -> dict[TaskState, int]:
        """How the `limit` newest finished tasks with an id from `since_id` on ended, without notifications."""

    async def task_completions(self, tenant_id: UUID, *, limit: int) -> list[Completion]:
        """When tasks without a schedule were last completed, by queue and type, among the `limit` newest finished tasks."""

    # Checks

    async def check_list(
        self,
        tenant_id: UUID,
        *,
        state: CheckState | None = None,
        prefix: str | None = None,
        after_name: str | None = None,
        limit: int,
    ) -> list[Check]:
        """The tenant's checks in order of name, after the given name, optionally only those in a state or with a prefix."""

    async def check_find(
        self, tenant_id: UUID, names: Sequence[str], *, now: datetime | None = None
    ) -> tuple[datetime, list[Check]]:
        """The tenant's checks with these names, and the current time."""

    async def check_find_tokens(self, tokens: Sequence[str], *, now: datetime | None = None) -> tuple[datetime, list[Check]]:
        """The checks with these tokens, and the current time. The caller checks whether an old token has expired."""

    async def check_due(self, *, limit: int, now: datetime | None = None) -> tuple[datetime, list[Check]]:
        """The checks whose deadline has passed, the oldest first, and the current time."""

    async def check_write(
        self,
        change: CheckChange,
        *,
        max_schedules: int | None = None,
        audit_log: Sequence[AuditLogEntry] = (),
        now: datetime | None = None,
    ) -> bool:
        """Write a check with its records, and return whether its version was as expected, or its name was free.

        Raises QuotaExceeded if the tenant would have more than `max_schedules` schedules and checks.
        """

    async def check_advance(self, changes: Sequence[CheckChange], *, now: datetime | None = None) -> set[UUID]:
        """Write new positions of checks with their records, in one transaction. Returns those whose version was as expected."""

    async def check_delete(
        self, tenant_id: UUID, name: str, *, audit_log: Sequence[AuditLogEntry] = (), now: datetime | None = None
    ) -> int:
        """Delete a check. Its ledger and its pings are kept until they are pruned."""

    async def check_ping_list(self, tenant_id: UUID, check_id: UUID, *, before: int | None = None, limit: int) -> list[Ping]:
        """The pings of a check, newest first, before the given number."""

    async def check_tick_list(
        self, tenant_id: UUID, check_id: UUID, *, from_: datetime, to: datetime, limit: int
    ) -> list[CheckTick]:
        """Ledger entries of a check that overlap [from, to), oldest first."""

    async def check_tick_recent(
        self, tenant_id: UUID, ids: Sequence[UUID], *, from_: datetime, limit: int
    ) -> dict[UUID, list[CheckTick]]:
        """The `limit` newest ledger entries since `from_` of each of these checks, oldest first."""

    async def check_tick_totals(self, tenant_id: UUID, *, from_: datetime, to: datetime) -> list[CheckTickTotal]:
        """Totals of the ledger entries of a tenant's checks that begin in [from, to), by check and outcome."""

    async def check_transition_list(
        self, tenant_id: UUID, check_id: UUID, *, before: int | None = None, limit: int
    ) -> list[tuple[int, CheckTransition]]:
        """The transitions of a check with their numbers, newest first, before the given number."""

    async def check_state_counts(self) -> dict[str, int]:
        """The number of checks of all tenants by state."""

    async def check_prune(self, *, before: datetime, keep: int, limit: int) -> int:
        """Delete limited numbers of records before that time, and of pings beyond the `keep` newest of each check."""

    # Samples for metrics

    async def sample_waiting(self, *, limit: int) -> dict[str, int]:
        """The numbers of held and of scheduled tasks of all tenants, each counted up to `limit`."""

    async def sample_ready(self, *, max_queues: int, max_flows: int, limit: int) -> list[ReadySample]:
        """The queues with ready tasks, at most `max_queues`, each counted up to `limit`.

        The oldest task of a queue is found among the first `max_flows` flows.
        """

    async def sample_running(self, *, near_ratio: float, limit: int, now: datetime | None = None) -> list[RunningSample]:
        """The running tasks by queue, at most `limit`. `near_ratio`: from what part of its timeout a task is near it."""

    async def sample_workers(self, *, limit: int, now: datetime | None = None) -> dict[str, int]:
        """The number of live workers by queue, of at most `limit` workers."""

    async def sample_database(self) -> DatabaseSample:
        """The sizes of the database and its tables, and the oldest transaction."""

    def pool_use(self) -> list[PoolUse]:
        """The use of the connections of this process."""

    # Service levels

    async def service_level_write(self, node_id: UUID, buckets: Sequence[LevelBucket]) -> int:
        """Write what a node has counted in these buckets. The counts are totals, so a repeated write changes nothing."""

    async def service_level_list(self, from_at: datetime) -> list[LevelBucket]:
        """The counts of all nodes since that time, added up by bucket, oldest first."""

    async def service_level_total(self, from_at: datetime, before_at: datetime) -> LevelTotal | None:
        """The counts of all nodes in [from_at, before_at), added up. None if there are none."""

    async def service_level_prune(self, *, before: datetime, limit: int) -> int:
        """Delete counts before that time, the oldest first."""
