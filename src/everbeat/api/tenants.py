"""/v1/tenants: the teams that share this server, their weights and their quotas. For operators."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from everbeat.api import paging
from everbeat.api.bodies import as_struct, decode, idempotency_of, if_match_revision, read_as, read_body
from everbeat.api.messages import ApiRequest, Response, json_response
from everbeat.api.operations import IDEMPOTENCY, Body, Operation, Success
from everbeat.api.paging import Absent, NoQuery, PageQuery
from everbeat.api.refinements import NAME
from everbeat.api.responses import TenantList, TenantResponse
from everbeat.api.routing import get, patch, post
from everbeat.api.schedules import IF_MATCH
from everbeat.core.access import Scope
from everbeat.core.tenant_definitions import tenant_response
from everbeat.core.tenants import DEFAULT_MAX_SCHEDULES, MAX_PAYLOAD_BYTES, Tenant, TenantQuotas

_MAX_COUNT = 2**31 - 1

TenantName = Annotated[str, msgspec.Meta(description="Of the tenant; not an id.", extra_json_schema=NAME)]
Weight = Annotated[
    float, msgspec.Meta(ge=0.001, le=1_000_000, description="The tenant's share of what workers serve, against the others'.")
]
MaxSchedules = Annotated[int, msgspec.Meta(ge=0, le=_MAX_COUNT, description="How many schedules there may be.")]
MaxReady = Annotated[int, msgspec.Meta(ge=0, le=_MAX_COUNT, description="How many tasks may be ready and not yet started.")]
MaxRunning = Annotated[int, msgspec.Meta(ge=0, le=_MAX_COUNT, description="How many tasks may run at the same time.")]
Submits = Annotated[
    float, msgspec.Meta(ge=0.001, le=1_000_000, description="How many tasks may be submitted in a second, on all nodes.")
]
MaxPayload = Annotated[int, msgspec.Meta(ge=0, le=MAX_PAYLOAD_BYTES, description="How large one payload may be.")]


class TenantInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new tenant; a quota of null is no limit."""

    name: TenantName
    weight: Weight = 1.0
    max_schedules: MaxSchedules | None = DEFAULT_MAX_SCHEDULES
    max_ready: MaxReady | None = None
    max_running: MaxRunning | None = None
    submits_per_second: Submits | None = None
    max_payload_bytes: MaxPayload | None = None


class TenantPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is to change; a quota of null is no limit."""

    name: TenantName | Absent = msgspec.UNSET
    weight: Weight | Absent = msgspec.UNSET
    max_schedules: MaxSchedules | Absent | None = msgspec.UNSET
    max_ready: MaxReady | Absent | None = msgspec.UNSET
    max_running: MaxRunning | Absent | None = msgspec.UNSET
    submits_per_second: Submits | Absent | None = msgspec.UNSET
    max_payload_bytes: MaxPayload | Absent | None = msgspec.UNSET


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
    return json_response({"items": [tenant_response(tenant) for tenant in page], "next_cursor": next_cursor})


@post(
    "/v1/tenants",
    Operation(
        id="createTenant",
        scope=Scope.ADMIN,
        tag="Tenants and keys",
        summary="Create a tenant, with its weight and its quotas",
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
    asked = as_struct(await decode(raw), TenantInput)
    quotas = TenantQuotas(**{name: getattr(asked, name) for name in TenantQuotas.__struct_fields__})
    answer = await request.context.tenants.create(
        asked.name, weight=asked.weight, quotas=quotas, idempotency=idempotency, by=request.caller
    )
    created = msgspec.json.decode(answer.body)
    headers = {"Location": f"/v1/tenants/{created['id']}", "ETag": f'"{created["revision"]}"'}
    return json_response(answer.body, answer.status, headers)


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
    return _one(await request.context.tenants.get(request.path_params["tenant"]))


@patch(
    "/v1/tenants/{tenant}",
    Operation(
        id="patchTenant",
        scope=Scope.ADMIN,
        tag="Tenants and keys",
        summary="Change a tenant's name, weight or quotas; every node follows within seconds",
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
    asked = await read_as(request, TenantPatch)
    changes: dict[str, Any] = {
        name: value for name, value in msgspec.structs.asdict(asked).items() if value is not msgspec.UNSET
    }
    service = request.context.tenants
    return _one(await service.patch(request.path_params["tenant"], changes, if_match=if_match, by=request.caller))


def _one(tenant: Tenant) -> Response:
    return json_response(tenant_response(tenant), 200, {"ETag": f'"{tenant.revision}"'})


ROUTES = [list_tenants, create_tenant, get_tenant, patch_tenant]
