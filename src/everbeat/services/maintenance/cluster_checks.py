"""Checks the cluster: the database clock, and whether every partition has a live owner."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from everbeat.core.audit_findings import AuditFinding, FindingKind, Resolution
from everbeat.services.maintenance.finding_log import FindingLog, new_finding
from everbeat.store.base import Store
from everbeat.store.values import FindingFilter, LoopLease, NodeInfo, PartitionInfo

_CLOCK_TOLERANCE = timedelta(seconds=2)
# As in partition_renew: a lease that ends later than any valid one counts as expired.
_MAX_LEASE_FACTOR = 1.5
_MAX_LEASE_SECONDS = 300.0  # the limit of the setting
_MAX_OPEN = 100
# A restart of the only scheduler node is not a fault.
_UNOWNED_SECONDS = 20.0


class ClusterChecks:
    def __init__(self, store: Store, log: FindingLog, *, lease_seconds: float) -> None:
        self._store = store
        self._log = log
        self._lease_seconds = lease_seconds

    async def check(self, lease: LoopLease, unowned_since: datetime | None, now: datetime | None) -> datetime | None:
        """Record and resolve faults of the cluster. Returns since when partitions have had no owner."""
        await self._check_clock(lease, now)
        return await self._check_ownership(lease.now, unowned_since, now)

    async def _check_clock(self, lease: LoopLease, now: datetime | None) -> None:
        """The end of the last run is a time that the database clock has already reached."""
        if lease.ran_at is not None and lease.ran_at - lease.now > _CLOCK_TOLERANCE:
            behind = round((lease.ran_at - lease.now).total_seconds(), 3)
            await self._log.record([new_finding(FindingKind.CLOCK_SET_BACK, lease.ran_at, lease.now, seconds=behind)])
        else:
            await self._resolve(FindingKind.CLOCK_SET_BACK, now)

    async def _check_ownership(self, moment: datetime, unowned_since: datetime | None, now: datetime | None) -> datetime | None:
        """A hand-over takes up to a lease. Partitions that have no owner for longer are a fault."""
        _, nodes = await self._store.node_list(now=now)
        unowned = unowned_partitions(await self._store.partition_list(), nodes, moment)
        if not unowned:
            await self._resolve(FindingKind.UNOWNED_PARTITIONS, now)
            return None
        since = moment if unowned_since is None or unowned_since > moment else unowned_since
        allowed = max(_UNOWNED_SECONDS, self._lease_seconds * _MAX_LEASE_FACTOR)
        if (moment - since).total_seconds() > allowed and not await self._open(FindingKind.UNOWNED_PARTITIONS):
            found = new_finding(FindingKind.UNOWNED_PARTITIONS, since, moment, partitions=len(unowned), first=unowned[:10])
            await self._log.record([found])
        return since

    async def _open(self, kind: FindingKind) -> list[AuditFinding]:
        found = await self._store.finding_list(None, FindingFilter(kind=kind), limit=_MAX_OPEN)
        return [one for one in found if one.schedule_id is None]

    async def _resolve(self, kind: FindingKind, now: datetime | None) -> None:
        open_ids: list[UUID] = [one.id for one in await self._open(kind)]
        await self._log.resolve(dict.fromkeys(open_ids, Resolution.OVER), now)


def unowned_partitions(partitions: list[PartitionInfo], nodes: list[NodeInfo], now: datetime) -> list[int]:
    """Return the partitions without a live owner: no node, an expired lease, one too far in the future, or a dead node."""
    leases = {
        node.id: min(node.lease_seconds, _MAX_LEASE_SECONDS)
        for node in nodes
        if "scheduler" in node.roles and abs((now - node.seen_at).total_seconds()) <= node.lease_seconds * _MAX_LEASE_FACTOR
    }
    unowned = []
    for one in partitions:
        seconds = None if one.owner is None else leases.get(one.owner)
        if (
            seconds is None
            or one.lease_until is None
            or not now < one.lease_until <= now + timedelta(seconds=seconds * _MAX_LEASE_FACTOR)
        ):
            unowned.append(one.partition)
    return unowned
