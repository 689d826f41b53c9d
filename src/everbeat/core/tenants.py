"""Tenants: the isolation boundary, with a weight and quotas."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

DEFAULT_MAX_SCHEDULES = 100_000
MAX_PAYLOAD_BYTES = 10 * 1024 * 1024
MAX_PRIORITY = 1000
EVERY_TENANT = "all"


class TenantQuotas(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a tenant. None: no limit. `min_priority`: the lowest number, and so the best priority, of its tasks.

    `retention_days`: how long its ledger and history are kept, if that is shorter than the retention of the cluster.
    """

    max_schedules: int | None = None
    max_ready: int | None = None
    max_running: int | None = None
    submits_per_second: float | None = None
    max_payload_bytes: int | None = None
    min_priority: int | None = None
    retention_days: float | None = None


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant. `weight`: the size of its fair share of the workers, relative to other tenants."""

    id: UUID
    name: str
    weight: float = 1.0
    quotas: TenantQuotas = TenantQuotas()
    revision: int = 1
    created_at: datetime
    updated_at: datetime
