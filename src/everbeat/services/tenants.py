"""Tenants: the directory of their weights, quotas and pauses that each node keeps in memory, and the operations on tenants."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from everbeat.core.access import Caller
from everbeat.core.audit_log import AuditLogAction
from everbeat.core.errors import Conflict, NotFound, RevisionMismatch, StoreError
from everbeat.core.names import is_name
from everbeat.core.pauses import Pause, pause_of
from everbeat.core.responses import tenant_response
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tenant_definitions import checked_tenant
from everbeat.core.tenants import DEFAULT_MAX_SCHEDULES, Tenant, TenantQuotas
from everbeat.services.audit_log import new_audit_log_entries
from everbeat.services.idempotency import EncodedResponse, Idempotency, repeated
from everbeat.services.ids import new_ids
from everbeat.services.loops import wait_for_event
from everbeat.store.base import Store
from everbeat.store.values import IdempotentResponse, Notice, TenantWrite

_TRIES = 20
_PAGE = 1000
_REFRESH_SECONDS = 5.0
_NO_LIMITS = TenantQuotas()


class TenantDirectory:
    """The weights, quotas and pauses of all tenants, and the number of nodes that share the rates.

    It is read again after a notice, and every few seconds. If the database is unavailable, the old values remain in force.
    A loop keeps the directory current. Callers that need current values await `refresh` or `refresh_if_changed` first.
    """

    name = "directory"
    deadline_seconds = 30.0

    def __init__(
        self, store: Store, *, refresh_seconds: float = _REFRESH_SECONDS, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._refresh_seconds = refresh_seconds
        self._monotonic = monotonic
        self._tenants: Mapping[UUID, Tenant] = {}
        self._api_nodes = 1
        self._limited: frozenset[UUID] = frozenset()
        self._pauses: Sequence[Pause] = ()
        self._moment = datetime.min.replace(tzinfo=UTC)
        self.with_max_ready: frozenset[UUID] = frozenset()
        self._read_at = float("-inf")
        self._has_changed = True
        self._reads_change = False
        self._read_lock = asyncio.Lock()
        self._woken = asyncio.Event()
        store.subscribe(self._on_notice)

    # Lookups

    def weight_of(self, tenant_id: UUID) -> float:
        """Return the weight of the tenant; 1 if the tenant is unknown."""
        tenant = self._tenants.get(tenant_id)
        return 1.0 if tenant is None else tenant.weight

    def limited_tenants(self) -> Collection[UUID]:
        """Return the tenants that have a limit of running tasks."""
        return self._limited

    def is_paused(self, tenant_id: UUID, queue: str) -> bool:
        """Return whether the queue is paused, as far as this node knows. The store decides again when tasks are claimed."""
        return bool(self._pauses) and pause_of(self._pauses, tenant_id, queue, self._now()) is not None

    def has_pauses(self, tenant_id: UUID | None, queues: Collection[str]) -> bool:
        """Return whether any of these queues may be paused, of one tenant or of any (None)."""
        return any(
            (tenant_id is None or pause.tenant_id in (None, tenant_id)) and (pause.queue is None or pause.queue in queues)
            for pause in self._pauses
            if pause.is_active_at(self._now())
        )

    def _now(self) -> datetime:
        """Return the time of the database, as far as it is known since the last read."""
        return self._moment + timedelta(seconds=max(0.0, self._monotonic() - self._read_at))

    def quotas_of(self, tenant_id: UUID) -> TenantQuotas:
        tenant = self._tenants.get(tenant_id)
        return _NO_LIMITS if tenant is None else tenant.quotas

    def max_running_of(self, tenant_id: UUID) -> int | None:
        return self.quotas_of(tenant_id).max_running

    def name_of(self, tenant_id: UUID) -> str | None:
        tenant = self._tenants.get(tenant_id)
        return None if tenant is None else tenant.name

    def ids(self) -> list[UUID]:
        return list(self._tenants)

    @property
    def api_nodes(self) -> int:
        """The number of live nodes that serve requests. Each grants its part of a rate."""
        return self._api_nodes

    @property
    def is_stale(self) -> bool:
        return self._has_changed or self._monotonic() - self._read_at >= self._refresh_seconds

    # Reading

    async def refresh(self, *, now: datetime | None = None) -> None:
        """Read the directory again if it is stale. If a read after a change has begun, wait for it."""
        if not self.is_stale and not self._reads_change:
            return
        async with self._read_lock:
            if self.is_stale:
                await self._read(now)

    async def refresh_if_changed(self) -> None:
        """Refresh after a change, or if the values are much too old. If the database is unavailable, keep the old values."""
        if self._has_changed or self._monotonic() - self._read_at >= 3 * self._refresh_seconds:
            try:
                await self.refresh()
            except StoreError:
                if self._read_at == float("-inf"):
                    raise

    async def run_once(self, now: datetime | None = None) -> bool:
        await self.refresh(now=now)
        return False

    async def wait(self) -> None:
        await wait_for_event(self._woken, self._read_at + self._refresh_seconds - self._monotonic())

    async def close(self) -> None:
        """Do nothing: nothing runs in the background."""

    async def _read(self, now: datetime | None) -> None:
        self._reads_change = self._has_changed
        self._has_changed = False  # reset first, so that a change during the read causes another read
        try:
            tenants: dict[UUID, Tenant] = {}
            after: str | None = None
            while True:
                page = await self._store.tenant_list(after_name=after, limit=_PAGE)
                tenants.update({tenant.id: tenant for tenant in page})
                if len(page) < _PAGE:
                    break
                after = page[-1].name
            pauses = await self._store.pause_list(None, now=now)
            moment, nodes = await self._store.node_list(now=now)
        except BaseException:
            self._has_changed = True
            raise
        finally:
            self._reads_change = False
        alive = [node for node in nodes if (moment - node.seen_at).total_seconds() < node.lease_seconds]
        self._tenants, self._pauses, self._moment = tenants, pauses, moment
        self._limited = frozenset(id_ for id_, one in tenants.items() if one.quotas.max_running is not None)
        self.with_max_ready = frozenset(id_ for id_, one in tenants.items() if one.quotas.max_ready is not None)
        self._api_nodes = max(1, sum("api" in node.roles for node in alive))
        self._read_at = self._monotonic()

    def _on_notice(self, notice: Notice) -> None:
        if notice is Notice.TENANTS:
            self._has_changed = True
            self._woken.set()


class TenantService:
    """The operations of /v1/tenants, for operators. `now` is None in production: the database's clock decides."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def page(self, *, after_name: str | None, limit: int) -> list[Tenant]:
        return await self._store.tenant_list(after_name=after_name, limit=limit)

    async def get(self, ref: str) -> Tenant:
        """Return the tenant with that id or name."""
        try:
            ids = [UUID(ref)]
        except ValueError:
            ids = []
        names = [ref] if is_name(ref) else []
        found = await self._store.tenant_find(ids=ids, names=names) if ids or names else []
        for tenant in sorted(found, key=lambda one: one.id not in ids):
            return tenant
        raise NotFound(f'there is no tenant with the name or id "{ref[:200]}"')

    async def create(
        self,
        name: str,
        *,
        weight: float = 1.0,
        quotas: TenantQuotas | None = None,
        idempotency: Idempotency | None = None,
        by: Caller | None = None,
        now: datetime | None = None,
    ) -> EncodedResponse:
        """Create a tenant. A repeated request with the same idempotency key returns the same response."""
        response_tenant_id = DEFAULT_TENANT if by is None else by.tenant_id
        for _ in range(_TRIES):
            if idempotency is not None:
                existing = await self._store.idempotent_response_find(response_tenant_id, idempotency.key, now=now)
                if existing is not None:
                    return repeated(existing, idempotency)
            moment, (id_,) = await self._store.clock(now=now), new_ids(1)
            quotas = TenantQuotas(max_schedules=DEFAULT_MAX_SCHEDULES) if quotas is None else quotas
            tenant = checked_tenant(
                Tenant(id=id_, name=name, weight=weight, quotas=quotas, created_at=moment, updated_at=moment)
            )
            body = msgspec.json.encode(tenant_response(tenant))
            stored = None if idempotency is None else IdempotentResponse(**idempotency._asdict(), status=201, body=body)
            audit_log = new_audit_log_entries(by, AuditLogAction.TENANT_CREATE, id_, tenant_id=id_, **_limits(tenant))
            if await self._store.tenant_write(
                [TenantWrite(tenant)], response_tenant_id=response_tenant_id, response=stored, audit_log=audit_log, now=now
            ):
                self._store.publish(Notice.TENANTS)
                return EncodedResponse(201, body)
            if await self._store.tenant_find(names=[name]) and not await self._has_response(
                response_tenant_id, idempotency, now
            ):
                raise Conflict(f'a tenant named "{name}" already exists; to change it, use PATCH or everbeat tenants set')
        raise Conflict(f'"{name}" was changed by other requests too many times; try again')

    async def _has_response(self, response_tenant_id: UUID, idempotency: Idempotency | None, now: datetime | None) -> bool:
        return (
            idempotency is not None
            and await self._store.idempotent_response_find(response_tenant_id, idempotency.key, now=now) is not None
        )

    async def patch(
        self,
        ref: str,
        changes: Mapping[str, Any],
        *,
        if_match: int | None = None,
        by: Caller | None = None,
        now: datetime | None = None,
    ) -> Tenant:
        """Change the name, weight or quotas of a tenant. Fields that are not in `changes` keep their values."""
        for _ in range(_TRIES):
            tenant = await self.get(ref)
            if if_match is not None and tenant.revision != if_match:
                raise RevisionMismatch(f"the tenant is at revision {tenant.revision}, not {if_match}; read it again")
            changed = checked_tenant(_changed(tenant, changes))
            if changed == tenant:
                return tenant
            if tenant.id == DEFAULT_TENANT and changed.name != tenant.name:
                raise Conflict("the default tenant cannot be renamed")
            moment = await self._store.clock(now=now)
            changed = msgspec.structs.replace(changed, revision=tenant.revision + 1, updated_at=moment)
            audit_log = new_audit_log_entries(
                by, AuditLogAction.TENANT_UPDATE, tenant.id, tenant_id=tenant.id, **_limits(changed)
            )
            if await self._store.tenant_write([TenantWrite(changed, expected=tenant.revision)], audit_log=audit_log, now=now):
                self._store.publish(Notice.TENANTS)
                return changed
            same_name = await self._store.tenant_find(names=[changed.name])
            if any(one.id != tenant.id for one in same_name):
                raise Conflict(f'a tenant named "{changed.name}" already exists')
        raise Conflict(f'"{ref}" was changed by other requests too many times; try again')


def _changed(tenant: Tenant, changes: Mapping[str, Any]) -> Tenant:
    own = {name: value for name, value in changes.items() if name in ("name", "weight")}
    quotas = {name: value for name, value in changes.items() if name not in own}
    return msgspec.structs.replace(tenant, **own, quotas=msgspec.structs.replace(tenant.quotas, **quotas))


def _limits(tenant: Tenant) -> dict[str, Any]:
    return {"name": tenant.name, "weight": tenant.weight, **msgspec.structs.asdict(tenant.quotas)}
