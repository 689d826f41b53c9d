"""/v1/audit-log: who changed what. A tenant can read its own entries, operators those of all tenants."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec

from everbeat.api import paging
from everbeat.api.filters import TenantRef, requested_tenant
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import Operation, Success
from everbeat.api.paging import Absent, WindowQuery
from everbeat.api.responses import AuditLogEntryResponse, AuditLogList
from everbeat.api.routing import get
from everbeat.core.access import AuditLogEntry, Scope
from everbeat.core.audit_log import AuditLogAction
from everbeat.core.definitions import rfc3339
from everbeat.core.responses import optional_id
from everbeat.store.values import AuditLogFilter


class AuditLogQuery(WindowQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    action: Annotated[AuditLogAction, msgspec.Meta(description="Only entries with this action.")] | Absent = msgspec.UNSET
    tenant: TenantRef | Absent = msgspec.UNSET


@get(
    "/v1/audit-log",
    Operation(
        id="listAuditLog",
        scope=Scope.MANAGE,
        tag="Operations",
        summary="Read the audit log of the tenant, newest first; with the scope admin, that of any or of all tenants",
        responses={200: Success("A page of the audit log.", AuditLogList)},
        query=AuditLogQuery,
        problems=(404,),
    ),
)
async def list_audit_log(request: ApiRequest) -> Response:
    query = paging.parse_query(request, AuditLogQuery)
    filter_ = AuditLogFilter(
        from_at=paging.optional_time("from", query.from_),
        to_at=paging.optional_time("to", query.to),
        action=None if isinstance(query.action, Absent) else query.action.value,
    )
    before = paging.time_id_before(query.cursor)
    tenant_id: UUID | None = await requested_tenant(request, paging.given(query.tenant))
    if tenant_id is None and Scope.ADMIN not in request.caller.scopes:
        tenant_id = request.caller.tenant_id
    found = await request.context.store.audit_log_list(tenant_id, filter_, before=before, limit=query.limit + 1)
    page, last = paging.split_page(found, query.limit)
    next_cursor = None
    if last is not None and last.at is not None:
        next_cursor = paging.time_id_cursor(last.at, last.id)
    return json_response(AuditLogList([_item(entry) for entry in page], next_cursor))


def _item(entry: AuditLogEntry) -> AuditLogEntryResponse:
    assert entry.at is not None
    return AuditLogEntryResponse(
        id=str(entry.id),
        at=rfc3339(entry.at),
        tenant_id=str(entry.tenant_id),
        actor=entry.actor,
        key_id=optional_id(entry.key_id),
        action=AuditLogAction(entry.action),
        subject=entry.subject,
        detail=msgspec.json.decode(entry.detail),
        request_id=entry.request_id,
        address=entry.address,
    )


ROUTES = [list_audit_log]
