"""/v1/audit: compare the ledger and the tasks with the ticks that the rules require."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from everbeat.api import paging
from everbeat.api.audit_findings import finding_response
from everbeat.api.filters import TenantRef, requested_tenant
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import Operation, Success
from everbeat.api.paging import Absent, WindowQuery
from everbeat.api.responses import (
    AuditFindingResponse,
    AuditResponse,
    CheckCounts,
    FaultyScheduleResponse,
    ScheduleTickCounts,
    TenantTickCounts,
)
from everbeat.api.routing import get
from everbeat.core.audit_findings import FindingState
from everbeat.core.definitions import rfc3339
from everbeat.core.schedules import Schedule
from everbeat.services.audit import AuditCount, ScheduleAuditCount
from everbeat.services.audit_findings import FindingQuery
from everbeat.services.check_ledger import CheckCount

_MAX_OPEN_FINDINGS = 100


class AuditQuery(WindowQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tenant: TenantRef | Absent = msgspec.UNSET


@get(
    "/v1/audit",
    Operation(
        id="audit",
        tag="Operations",
        summary="Count expected, fired, skipped, missing and doubled ticks of a window; by default the last day",
        responses={200: Success("The totals, and a page of schedules.", AuditResponse)},
        query=AuditQuery,
        problems=(404,),
    ),
)
async def audit(request: ApiRequest) -> Response:
    query = paging.parse_query(request, AuditQuery)
    ref = paging.given(query.tenant)
    tenant_id = await requested_tenant(request, ref)
    if ref is not None and tenant_id is None:
        return await _audit_all_tenants(request, query)
    tenant_id = tenant_id or request.tenant_id
    found = await request.context.audit.run(
        tenant_id,
        from_=paging.optional_time("from", query.from_),
        to=paging.optional_time("to", query.to),
        after_name=paging.name_after(query.cursor),
        limit=query.limit + 1,
    )
    checks = await request.context.check_ledger.audit(tenant_id, from_=found.from_, to=found.to)
    page, last = paging.split_page(found.schedules, query.limit)
    return json_response(
        AuditResponse(
            from_=rfc3339(found.from_),
            to=rfc3339(found.to),
            **_counts(found.total),
            tenants=[TenantTickCounts(tenant_id=str(tenant_id), **_counts(found.total))],
            schedules=[_schedule(one) for one in page],
            faulty=_faulty(found.faulty),
            findings=await _open_findings(request, tenant_id),
            checks=_checks(checks),
            next_cursor=None if last is None else paging.name_cursor(last.schedule.spec.name),
        )
    )


async def _audit_all_tenants(request: ApiRequest, query: AuditQuery) -> Response:
    """Return the counts of all tenants, by tenant. Schedules are listed only in the audit of a single tenant."""
    found = await request.context.audit.run_all(
        from_=paging.optional_time("from", query.from_),
        to=paging.optional_time("to", query.to),
        after_name=paging.name_after(query.cursor),
        limit=query.limit + 1,
    )
    checks = await request.context.check_ledger.audit_all(from_=found.from_, to=found.to)
    page, last = paging.split_page(found.tenants, query.limit)
    return json_response(
        AuditResponse(
            from_=rfc3339(found.from_),
            to=rfc3339(found.to),
            **_counts(found.total),
            tenants=[TenantTickCounts(tenant_id=str(one.tenant.id), **_counts(one.counted)) for one in page],
            schedules=[],
            faulty=_faulty(found.faulty),
            findings=await _open_findings(request, None),
            checks=_checks(checks),
            next_cursor=None if last is None else paging.name_cursor(last.tenant.name),
        )
    )


async def _open_findings(request: ApiRequest, tenant_id: UUID | None) -> list[AuditFindingResponse]:
    query = FindingQuery(FindingState.OPEN)
    found = await request.context.findings.page(tenant_id, query, after=None, limit=_MAX_OPEN_FINDINGS)
    return [finding_response(one) for one in found]


def _faulty(schedules: Sequence[Schedule]) -> list[FaultyScheduleResponse]:
    return [FaultyScheduleResponse(str(one.id), one.spec.name, one.fault) for one in schedules]


def _checks(count: CheckCount) -> CheckCounts:
    return CheckCounts(**msgspec.structs.asdict(count))


def _schedule(one: ScheduleAuditCount) -> ScheduleTickCounts:
    schedule = one.schedule
    return ScheduleTickCounts(id=str(schedule.id), name=schedule.spec.name, status=schedule.status, **_counts(one.counted))


def _counts(count: AuditCount) -> dict[str, Any]:
    return {
        "expected": count.expected,
        "fired": count.fired,
        "skipped": {reason: number for reason, number in sorted(count.skipped.items()) if number},
        "missing": count.missing,
        "doubled": count.doubled,
    }


ROUTES = [audit]
