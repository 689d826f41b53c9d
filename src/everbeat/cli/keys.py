"""Commands on API keys. They access the database directly and need no key."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import click

from everbeat.cli.examples import examples
from everbeat.cli.options import CONFIG, DATABASE_URL
from everbeat.cli.store_access import local_caller, print_table, run_on_store
from everbeat.client.durations import seconds_of
from everbeat.core.audit_log import AuditLogAction
from everbeat.core.definitions import rfc3339
from everbeat.core.errors import EverbeatError, InvalidInput
from everbeat.core.keys import ApiKey, parse_scopes
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.core.tenants import DEFAULT_MAX_SCHEDULES, Tenant, TenantQuotas
from everbeat.services.audit_log import new_audit_log_entry
from everbeat.services.ids import new_ids
from everbeat.services.keys import KeyService, NewKey
from everbeat.store.base import Store
from everbeat.store.values import Notice, TenantWrite

T = TypeVar("T")

_PAGE_SIZE = 500
_RESTART_NOTE = "With auth=auto, a server that started before the database had a key requires no keys until it is restarted."


@click.group(epilog=examples("KEY=$(everbeat keys create --scope manage)", "everbeat keys list"))
def keys() -> None:
    """Create, list and revoke API keys in the database."""


@keys.command(
    epilog=examples(
        "KEY=$(everbeat keys create --scope manage)", "everbeat keys create --tenant acme --scope work:reports --expires-in 90d"
    )
)
@DATABASE_URL
@CONFIG
@click.option("--tenant", default="default", show_default=True, help="The tenant of the key. Created if it does not exist.")
@click.option("--all-tenants", is_flag=True, help="A key for workers that serve all tenants; only with the scope work.")
@click.option(
    "--scope", "scopes", multiple=True, required=True, help="admin, manage, submit, read, work or work:QUEUE. Can be repeated."
)
@click.option("--name", help="The name of the key in lists and in the audit log (its scopes).")
@click.option("--expires-in", help="How long the key is valid, such as 30d or 12h (until it is revoked).")
def create(
    database_url: str | None,
    config: Path | None,
    tenant: str,
    all_tenants: bool,
    scopes: tuple[str, ...],
    name: str | None,
    expires_in: str | None,
) -> None:
    """Create a key and print it to stdout, once. All other output goes to stderr, for use as KEY=$(everbeat keys create …)."""
    seconds = None if expires_in is None else seconds_of(expires_in, "expires-in")
    parse_scopes(scopes, is_fleet=all_tenants, field="scope")  # validate before a tenant is created

    async def work(store: Store) -> NewKey:
        tenant_id = DEFAULT_TENANT if all_tenants else await _find_or_create_tenant(store, tenant)
        now = await store.clock()
        return await KeyService(store).create(
            tenant_id,
            name or " ".join(scopes),
            scopes,
            is_fleet=all_tenants,
            expires_at=None if seconds is None else now + timedelta(seconds=seconds),
            by=local_caller(),
        )

    key, text = run_on_store(database_url, config, work)
    owner = "the workers of all tenants" if all_tenants else f"the tenant {tenant}"
    click.echo(f"The API key {key.id} for {owner}, {_scopes(key)}, {_expiry(key)}. It is shown only once:", err=True)
    click.echo(text)
    click.echo(_RESTART_NOTE, err=True)


@keys.command("list", epilog=examples("everbeat keys list --tenant acme"))
@DATABASE_URL
@CONFIG
@click.option("--tenant", help="List only the keys of this tenant.")
@click.option("--all", "is_all", is_flag=True, help="Also list keys that were revoked or have expired.")
def list_(database_url: str | None, config: Path | None, tenant: str | None, is_all: bool) -> None:
    """List the keys, without their secrets: id, tenant, hint, name, scopes, expiry, last use and state."""

    async def work(store: Store) -> tuple[datetime, list[ApiKey], dict[UUID, str]]:
        tenant_id = None if tenant is None else await _find_tenant(store, tenant)
        found, after = list[ApiKey](), None
        while page := await store.key_list(tenant_id, after=after, limit=_PAGE_SIZE):
            found += page
            after = page[-1].id
        tenant_ids = {key.tenant_id for key in found}
        names = {tenant.id: tenant.name for tenant in await store.tenant_find(ids=list(tenant_ids))}
        return await store.clock(), found, names

    now, found, names = run_on_store(database_url, config, work)
    rows = [_row(key, names, now) for key in found if is_all or key.is_usable(now)]
    print_table(("ID", "TENANT", "KEY", "NAME", "SCOPES", "EXPIRES", "LAST USED", "STATE"), rows)


@keys.command(epilog=examples("everbeat keys revoke 019a9f00-0000-7000-8000-000000000000"))
@click.argument("ids", nargs=-1, required=True, type=click.UUID, metavar="ID...")
@DATABASE_URL
@CONFIG
def revoke(ids: tuple[UUID, ...], database_url: str | None, config: Path | None) -> None:
    """Revoke keys permanently, by their ids. Every node stops accepting them within seconds and ends their open requests."""

    async def work(store: Store) -> None:
        for id_ in ids:
            await KeyService(store).revoke(id_, by=local_caller())

    run_on_store(database_url, config, work)
    click.echo(f"revoked {', '.join(map(str, ids))}", err=True)


async def _find_or_create_tenant(store: Store, name: str) -> UUID:
    """Return the id of the tenant, creating it if it does not exist."""
    if not is_name(name):
        raise InvalidInput.of("tenant", NAME_MESSAGE)
    for _ in range(2):
        for found in await store.tenant_find(names=[name]):
            return found.id
        now, (id_,) = await store.clock(), new_ids(1)
        quotas = TenantQuotas(max_schedules=DEFAULT_MAX_SCHEDULES)
        tenant = Tenant(id=id_, name=name, quotas=quotas, created_at=now, updated_at=now)
        audit_log = [new_audit_log_entry(local_caller(), AuditLogAction.TENANT_CREATE, id_, tenant_id=id_, name=name)]
        if await store.tenant_write([TenantWrite(tenant)], audit_log=audit_log):
            store.publish(Notice.TENANTS)
            click.echo(f"created the tenant {name}", err=True)
            return id_
    raise EverbeatError(f"the tenant {name} could not be created")  # another process has created and removed it in between


async def _find_tenant(store: Store, name: str) -> UUID:
    for found in await store.tenant_find(names=[name]):
        return found.id
    raise EverbeatError(
        f"there is no tenant {name}; create it with its first key: everbeat keys create --tenant {name} --scope …"
    )


def _scopes(key: ApiKey) -> str:
    return f"scope {key.scopes[0]}" if len(key.scopes) == 1 else f"scopes {', '.join(key.scopes)}"


def _expiry(key: ApiKey) -> str:
    return "valid until it is revoked" if key.expires_at is None else f"valid until {rfc3339(key.expires_at)}"


def _row(key: ApiKey, names: dict[UUID, str], now: datetime) -> tuple[str, ...]:
    state = "revoked" if key.revoked_at is not None else "valid" if key.is_usable(now) else "expired"
    tenant = "(all)" if key.is_fleet else names.get(key.tenant_id, str(key.tenant_id))
    times = (rfc3339(at)[:19] + "Z" if at else "never" for at in (key.expires_at, key.last_used_at))
    return (str(key.id), tenant, key.hint, key.name, " ".join(key.scopes), *times, state)
