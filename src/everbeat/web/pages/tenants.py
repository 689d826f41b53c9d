"""Tenants and their API keys, for administrators. The text of a new key is shown once, after its creation."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from everbeat.api import paging
from everbeat.api.messages import ApiRequest, Response
from everbeat.api.routing import get, post
from everbeat.api.tenants import TenantInput, TenantPatch
from everbeat.core.access import Scope
from everbeat.core.definitions import convert
from everbeat.core.errors import InvalidInput
from everbeat.core.tenants import Tenant, TenantQuotas
from everbeat.web.forms import Form, read_form
from everbeat.web.inputs import id_of, optional_moment
from everbeat.web.pages.declarations import ADMIN
from everbeat.web.pages.queries import query_of
from everbeat.web.rendering import page, redirect

_PAGE_SIZE = 50
_KEYS = 200
_WHOLE = ("max_schedules", "max_ready", "max_running", "max_payload_bytes", "min_priority")
_NUMBERS = ("weight", "submits_per_second", "retention_days")


@get("/tenants", ADMIN)
async def list_tenants(request: ApiRequest) -> Response:
    query = query_of(request)
    after = paging.name_after(query["cursor"]) if "cursor" in query else None
    found = await request.context.tenants.page(after_name=after, limit=_PAGE_SIZE + 1)
    shown, last = paging.split_page(found, _PAGE_SIZE)
    return await page(
        request, "tenants.html", tenants=shown, next_cursor=None if last is None else paging.name_cursor(last.name)
    )


@post("/tenants", ADMIN)
async def create_tenant(request: ApiRequest) -> Response:
    form = await read_form(request)
    given = convert({**_limits(form), "name": form.text("name")}, TenantInput)
    quotas = TenantQuotas(**{name: getattr(given, name) for name in TenantQuotas.__struct_fields__})
    await request.context.tenants.create(given.name, weight=given.weight, quotas=quotas, by=request.caller)
    return redirect(f"/tenants/{quote(given.name)}", f"The tenant {given.name} was created. Create a key for it.")


@get("/tenants/{tenant}", ADMIN)
async def show_tenant(request: ApiRequest) -> Response:
    return await _tenant_page(request, await request.context.tenants.get(request.path_params["tenant"]))


@post("/tenants/{tenant}", ADMIN)
async def change_tenant(request: ApiRequest) -> Response:
    form = await read_form(request)
    changes = msgspec.structs.asdict(convert(_limits(form, with_empty=True), TenantPatch))
    given = {name: value for name, value in changes.items() if value is not msgspec.UNSET}
    tenant = await request.context.tenants.patch(request.path_params["tenant"], given, by=request.caller)
    return redirect(f"/tenants/{tenant.id}", "The tenant was changed. Every node applies it within seconds.")


@post("/tenants/{tenant}/keys", ADMIN)
async def create_key(request: ApiRequest) -> Response:
    form = await read_form(request)
    tenant = await request.context.tenants.get(request.path_params["tenant"])
    scopes = [scope.strip() for scope in form.all("scope") if scope.strip()]
    if not scopes:
        raise InvalidInput.of("scope", "choose at least one scope")
    new = await request.context.keys.create(
        tenant.id,
        form.text("name") or "key",
        scopes,
        is_fleet=form.is_set("all_tenants"),
        expires_at=optional_moment(form, "expires_at"),
        by=request.caller,
    )
    return await _tenant_page(request, tenant, new_key=new.text)


@post("/keys/{id}/revoke", ADMIN)
async def revoke_key(request: ApiRequest) -> Response:
    form = await read_form(request)
    await request.context.keys.revoke(id_of(request, "id", "key"), by=request.caller)
    return redirect(f"/tenants/{quote(form.text('tenant'))}", "The key was revoked, and its sessions have ended.")


async def _tenant_page(request: ApiRequest, tenant: Tenant, new_key: str | None = None) -> Response:
    keys = await request.context.keys.page(tenant.id, after=None, limit=_KEYS)
    now = await request.context.store.clock()
    return await page(request, "tenant.html", tenant=tenant, keys=keys, new_key=new_key, now=now, all_scopes=list(Scope))


def _limits(form: Form, *, with_empty: bool = False) -> dict[str, Any]:
    """Return the weight and the quotas. An empty quota means no limit."""
    found: dict[str, Any] = {}
    for name in (*_WHOLE, *_NUMBERS):
        text = form.text(name)
        if not text and (name == "weight" or (name not in form and not with_empty)):
            continue
        try:
            found[name] = None if not text else int(text) if name in _WHOLE else float(text)
        except ValueError:
            raise InvalidInput.of(name, "must be a number, or empty for no limit") from None
    return found


ROUTES = [list_tenants, create_tenant, show_tenant, change_tenant, create_key, revoke_key]
