"""/v1/tenants: the tenants of this server, with their weights and quotas. For operators."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from everbeat.api import paging
from everbeat.api.bodies import decode_as, idempotency_of, if_match_revision, read_as, read_body
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import IDEMPOTENCY, Body, Operation, Success
from everbeat.api.paging import Absent, NoQuery, PageQuery
from everbeat.api.refinements import NAME
from everbeat.api.responses import TenantList
from everbeat.api.routing import get, patch, post
from everbeat.api.schedules import IF_MATCH
from everbeat.core.access import Scope
from everbeat.core.responses import TenantResponse, tenant_response
from everbeat.core.tenants import DEFAULT_MAX_SCHEDULES, MAX_PAYLOAD_BYTES, MAX_PRIORITY, Tenant, TenantQuotas

_MAX_COUNT = 2**31 - 1

TenantName = Annotated[str, msgspec.Meta(description="The name of the tenant. It must not be a UUID.", extra_json_schema=NAME)]
Weight = Annotated[
    float, msgspec.Meta(ge=0.001, le=1_000_000, description="The tenant's share of the workers, relative to other tenants.")
]
MaxSchedules = Annotated[int, msgspec.Meta(ge=0, le=_MAX_COUNT, description="The maximum number of schedules.")]
MaxReady = Annotated[int, msgspec.Meta(ge=0, le=_MAX_COUNT, description="The maximum number of ready tasks.")]
MaxRunning = Annotated[int, msgspec.Meta(ge=0, le=_MAX_COUNT, description="The maximum number of running tasks.")]
Submits = Annotated[
    float, msgspec.Meta(ge=0.001, le=1_000_000, description="The maximum rate of submitted tasks, over all nodes.")
]
MaxPayload = Annotated[int, msgspec.Meta(ge=0, le=MAX_PAYLOAD_BYTES, description="The maximum size of a payload.")]

MinPriority = Annotated[
    int,
    msgspec.Meta(
        ge=0,
        le=MAX_PRIORITY,
        description="The best priority of the tenant's tasks: a lower number of a task or a schedule is raised to this one.",
    ),
]
RetentionDays = Annotated[
    float,
    msgspec.Meta(
        ge=1,
        le=36_500,
        description="How long the tenant's ledger and history are kept, if that is shorter than the retention of the server.",
    ),
]


class TenantInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new tenant. A quota of null means no limit."""

    name: TenantName
    weight: Weight = 1.0
    max_schedules: MaxSchedules | None = DEFAULT_MAX_SCHEDULES
    max_ready: MaxReady | None = None
    max_running: MaxRunning | None = None
    submits_per_second: Submits | None = None
    max_payload_bytes: MaxPayload | None = None
    min_priority: MinPriority | None = None
    retention_days: RetentionDays | None = None


class TenantPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fields to change. A quota of null means no limit."""

    name: TenantName | Absent = msgspec.UNSET
    weight: Weight | Absent = msgspec.UNSET
    max_schedules: MaxSchedules | Absent | None = msgspec.UNSET
    max_ready: MaxReady | Absent | None = msgspec.UNSET
    max_running: MaxRunning | Absent | None = msgspec.UNSET
    submits_per_second: Submits | Absent | None = msgspec.UNSET
    max_payload_bytes: MaxPayload | Absent | None = msgspec.UNSET
    min_priority: MinPriority | Absent | None = msgspec.UNSET
    retention_days: RetentionDays | Absent | None = msgspec.UNSET


_EXAMPLE = {"name": "billing", "weight": 3, "max_schedules": 10_000, "max_running": 200, "submits_per_second": 500}


@get(
    "/v1/tenants",
    Operation(
        id="listTenants",
        scope=Scope.ADMIN,
        tag="Tenants and keys",
        summary="List tenants by name",
        responses={200: Success("A page of tenants.", TenantList)},
        query=PageQuery,
    ),
)
async def list_tenants(request: ApiRequest) -> Response:
    query = paging.parse_query(request, PageQuery)
    found = await request.context.tenants.page(after_name=paging.name_after(query.cursor), limit=query.limit + 1)
    page, last = paging.split_page(found, query.limit)
    next_cursor = None if last is None else paging.name_cursor(last.name)
    return json_response(TenantList([tenant_response(tenant) for tenant in page], next_cursor))


@post(
    "/v1/tenants",
    Operation(
        id="createTenant",
        scope=Scope.ADMIN,
        tag="Tenants and keys",
        summary="Create a tenant with a weight and quotas",
        responses={201: Success("The new tenant.", TenantResponse, headers=("ETag", "Location"))},
        query=NoQuery,
        body=Body(TenantInput, {"billing": _EXAMPLE}),
        headers=IDEMPOTENCY,
        problems=(409,),
    ),
)
async def create_tenant(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    raw = await read_body(request)
    idempotency = idempotency_of(request, raw)
    body = await decode_as(request, raw, TenantInput)
    quotas = TenantQuotas(**{name: getattr(body, name) for name in TenantQuotas.__struct_fields__})
    response = await request.context.tenants.create(
        body.name, weight=body.weight, quotas=quotas, idempotency=idempotency, by=request.caller
    )
    created = msgspec.json.decode(response.body)
    headers = {"Location": f"/v1/tenants/{created['id']}", "ETag": f'"{created["revision"]}"'}
    return json_response(response.body, response.status, headers)


@get(
    "/v1/tenants/{tenant}",
    Operation(
        id="getTenant",
        scope=Scope.ADMIN,
        tag="Tenants and keys",
        summary="Read a tenant",
        responses={200: Success("The tenant.", TenantResponse, headers=("ETag",))},
        query=NoQuery,
        problems=(404,),
    ),
)
async def get_tenant(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    return _response(await request.context.tenants.get(request.path_params["tenant"]))


@patch(
    "/v1/tenants/{tenant}",
    Operation(
        id="patchTenant",
        scope=Scope.ADMIN,
        tag="Tenants and keys",
        summary="Change a tenant's name, weight or quotas; takes effect on every node within seconds",
        responses={200: Success("The tenant.", TenantResponse, headers=("ETag",))},
        query=NoQuery,
        body=Body(TenantPatch, {"weight": {"weight": 2}, "no limit": {"max_ready": None}}),
        headers=IF_MATCH,
        problems=(404, 409),
    ),
)
async def patch_tenant(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    if_match = if_match_revision(request)
    patch_ = await read_as(request, TenantPatch)
    changes: dict[str, Any] = {
        name: value for name, value in msgspec.structs.asdict(patch_).items() if value is not msgspec.UNSET
    }
    service = request.context.tenants
    return _response(await service.patch(request.path_params["tenant"], changes, if_match=if_match, by=request.caller))


def _response(tenant: Tenant) -> Response:
    return json_response(tenant_response(tenant), 200, {"ETag": f'"{tenant.revision}"'})


ROUTES = [list_tenants, create_tenant, get_tenant, patch_tenant]
