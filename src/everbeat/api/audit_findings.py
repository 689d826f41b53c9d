"""/v1/audit/findings: what the auditor found: missing, doubled, late and overdue ticks, and faults of the cluster."""

from __future__ import annotations

from typing import Annotated

import msgspec

from everbeat.api import paging
from everbeat.api.filters import TenantRef, requested_tenant, schedule_id_of
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import Operation, Success
from everbeat.api.paging import Absent, NameText, WindowQuery
from everbeat.api.responses import AuditFindingList, AuditFindingResponse
from everbeat.api.routing import get
from everbeat.core.audit_findings import AuditFinding, FindingKind, FindingState
from everbeat.core.definitions import optional_rfc3339, rfc3339
from everbeat.core.responses import optional_id
from everbeat.services.audit_findings import FindingPosition, FindingQuery


class FindingListQuery(WindowQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: Annotated[FindingState, msgspec.Meta(description="Only open, or only resolved findings.")] | Absent = msgspec.UNSET
    kind: Annotated[FindingKind, msgspec.Meta(description="Only findings of this kind.")] | Absent = msgspec.UNSET
    schedule: Annotated[NameText, msgspec.Meta(description="The id or the name of a schedule.")] | Absent = msgspec.UNSET
    tenant: TenantRef | Absent = msgspec.UNSET


@get(
    "/v1/audit/findings",
    Operation(
        id="listAuditFindings",
        tag="Operations",
        summary="List what the auditor found, open findings first, each newest first",
        responses={200: Success("A page of findings.", AuditFindingList)},
        query=FindingListQuery,
        problems=(404,),
        description="The window limits the times of the ticks. Findings about the whole cluster are shown to all tenants.",
    ),
)
async def list_audit_findings(request: ApiRequest) -> Response:
    query = paging.parse_query(request, FindingListQuery)
    ref = paging.given(query.tenant)
    tenant_id = await requested_tenant(request, ref)
    if tenant_id is None and ref is None:
        tenant_id = request.tenant_id
    filter_ = FindingQuery(
        state=None if isinstance(query.state, Absent) else query.state,
        kind=None if isinstance(query.kind, Absent) else query.kind,
        schedule_id=await schedule_id_of(request, paging.given(query.schedule)),
        from_at=paging.optional_time("from", query.from_),
        to_at=paging.optional_time("to", query.to),
    )
    position = paging.word_id_after(query.cursor, list(FindingState))
    after = None if position is None else FindingPosition(FindingState(position[0]), position[1])
    found = await request.context.findings.page(tenant_id, filter_, after=after, limit=query.limit + 1)
    page, last = paging.split_page(found, query.limit)
    next_cursor = None if last is None else paging.word_id_cursor(last.state.value, last.id)
    return json_response(AuditFindingList([finding_response(one) for one in page], next_cursor))


def finding_response(finding: AuditFinding) -> AuditFindingResponse:
    details = msgspec.json.decode(finding.details)
    return AuditFindingResponse(
        id=str(finding.id),
        tenant_id=optional_id(finding.tenant_id),
        schedule_id=optional_id(finding.schedule_id),
        schedule=details.pop("name", None),
        kind=finding.kind,
        state=finding.state,
        scheduled_for=rfc3339(finding.scheduled_for),
        found_at=rfc3339(finding.found_at),
        resolved_at=optional_rfc3339(finding.resolved_at),
        resolution=finding.resolution,
        details=details,
    )


ROUTES = [list_audit_findings]
