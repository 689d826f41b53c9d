"""/v1/tenants/{tenant}/keys and /v1/keys: create, list and revoke the API keys of a tenant. For operators."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import msgspec

from everbeat.api import paging
from everbeat.api.bodies import decode_as, idempotency_of, read_body
from everbeat.api.messages import NO_CONTENT, ApiRequest, Response, json_response
from everbeat.api.operations import IDEMPOTENCY, Body, Operation, Success
from everbeat.api.paging import NoQuery, PageQuery
from everbeat.api.responses import KeyList, KeyResponse, NewKeyResponse
from everbeat.api.routing import delete, get, post
from everbeat.core.access import Scope
from everbeat.core.definitions import Instant, optional_rfc3339, rfc3339, utc
from everbeat.core.errors import NotFound
from everbeat.core.keys import MAX_NAME_LENGTH, MAX_SCOPES, ApiKey

ScopeText = Annotated[
    str, msgspec.Meta(extra_json_schema={"pattern": "^(admin|manage|submit|read|work|work:[A-Za-z0-9._:-]{1,200})$"})
]


class KeyInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new key. Scopes are admin, manage, submit, read, work and work:QUEUE. `all_tenants`: for workers of all tenants."""

    scopes: Annotated[list[ScopeText], msgspec.Meta(min_length=1, max_length=MAX_SCOPES)]
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_LENGTH)] = "key"
    expires_at: Instant | None = None
    all_tenants: bool = False


@get(
    "/v1/tenants/{tenant}/keys",
    Operation(
        id="listKeys",
        scope=Scope.ADMIN,
        tag="Tenants and keys",
        summary="List the API keys of a tenant, including revoked ones, in order of creation, without secrets",
        responses={200: Success("A page of keys.", KeyList)},
        query=PageQuery,
        problems=(404,),
    ),
)
async def list_keys(request: ApiRequest) -> Response:
    query = paging.parse_query(request, PageQuery)
    after = paging.id_after(query.cursor)
    context = request.context
    tenant = await context.tenants.get(request.path_params["tenant"])
    page, last = paging.split_page(await context.keys.page(tenant.id, after=after, limit=query.limit + 1), query.limit)
    next_cursor = None if last is None else paging.id_cursor(last.id)
    return json_response(KeyList([KeyResponse(**_fields(key)) for key in page], next_cursor))


@post(
    "/v1/tenants/{tenant}/keys",
    Operation(
        id="createKey",
        scope=Scope.ADMIN,
        tag="Tenants and keys",
        summary="Create an API key for a tenant; only this response contains its secret",
        responses={201: Success("The new key, with its secret.", NewKeyResponse)},
        query=NoQuery,
        body=Body(
            KeyInput,
            {
                "manager": {"name": "billing's deployments", "scopes": ["manage"]},
                "worker": {"scopes": ["work:reports"], "expires_at": "2100-01-01T00:00:00Z"},
                "fleet": {"name": "shared workers", "scopes": ["work"], "all_tenants": True},
            },
        ),
        headers=IDEMPOTENCY,
        problems=(404, 409),
    ),
)
async def create_key(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    raw = await read_body(request)
    idempotency = idempotency_of(request, raw)
    body = await decode_as(request, raw, KeyInput)
    expires_at = None if body.expires_at is None else paging.bounded("expires_at", utc(body.expires_at, "expires_at"))
    context = request.context
    tenant = await context.tenants.get(request.path_params["tenant"])
    new = await context.keys.create(
        tenant.id,
        body.name,
        body.scopes,
        is_fleet=body.all_tenants,
        expires_at=expires_at,
        idempotency=idempotency,
        by=request.caller,
    )
    return json_response(NewKeyResponse(**_fields(new.key), key=new.text), 201)


@delete(
    "/v1/keys/{key_id}",
    Operation(
        id="revokeKey",
        scope=Scope.ADMIN,
        tag="Tenants and keys",
        summary="Revoke an API key on all nodes and end its open requests; not possible for the last key with the scope admin",
        responses={204: Success("The key was revoked.")},
        query=NoQuery,
        problems=(404, 409),
    ),
)
async def revoke_key(request: ApiRequest) -> Response:
    paging.parse_query(request, NoQuery)
    await request.context.keys.revoke(_id(request), by=request.caller)
    return NO_CONTENT


def _id(request: ApiRequest) -> UUID:
    id_ = paging.uuid_of(request.path_params["key_id"])
    if id_ is None:
        raise NotFound("there is no such key")
    return id_


def _fields(key: ApiKey) -> dict[str, Any]:
    return {
        "id": str(key.id),
        "tenant_id": str(key.tenant_id),
        "name": key.name,
        "hint": key.hint,
        "scopes": list(key.scopes),
        "all_tenants": key.is_fleet,
        "created_at": rfc3339(key.created_at),
        "expires_at": optional_rfc3339(key.expires_at),
        "last_used_at": optional_rfc3339(key.last_used_at),
        "revoked_at": optional_rfc3339(key.revoked_at),
    }


ROUTES = [list_keys, create_key, revoke_key]
