"""Commands on API keys. They work on the database itself: whoever can reach it needs no key."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import click

from everbeat.cli.options import CONFIG, DATABASE_URL
from everbeat.cli.store_access import local_caller, run_on_store, show_table
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

_PAGE = 500
_NO_SERVER = "A server that was started with auth auto before there was any key goes on without; start it again."


@click.group()
def keys() -> None:
    """Create, list and revoke API keys in the database."""


@keys.command()
@DATABASE_URL
@CONFIG
@click.option("--tenant", default="default", show_default=True, help="Whose key it is; a tenant that is not there is made.")
@click.option("--all-tenants", is_flag=True, help="For workers that serve every tenant; only with the scope work.")
@click.option(
    "--scope", "scopes", multiple=True, required=True, help="admin, manage, submit, read, work or work:QUEUE; again for more."
)
@click.option("--name", help="What it is called in lists and in the audit trail (its scopes).")
@click.option("--expires-in", help="For how long it is good, such as 30d or 12h (for ever).")
def create(
    database_url: str | None,
    config: Path | None,
    tenant: str,
    all_tenants: bool,
    scopes: tuple[str, ...],
    name: str | None,
    expires_in: str | None,
) -> None:
    """Make a key and print it: to stdout, once. Everything else goes to stderr, so that KEY=$(everbeat keys create …) works."""
    seconds = None if expires_in is None else seconds_of(expires_in, "expires-in")
    parse_scopes(scopes, is_fleet=all_tenants, field="scope")  # before a tenant is made for it

    async def work(store: Store) -> NewKey:
        tenant_id = DEFAULT_TENANT if all_tenants else await _tenant(store, tenant)
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
    whose = "the workers of all tenants" if all_tenants else f"the tenant {tenant}"
    click.echo(f"The API key {key.id} for {whose}, {_scopes(key)}, {_expiry(key)}. It is shown only this once:", err=True)
    click.echo(text)
    click.echo(_NO_SERVER, err=True)


@keys.command("list")
@DATABASE_URL
@CONFIG
@click.option("--tenant", help="Only those of this tenant.")
@click.option("--all", "is_all", is_flag=True, help="Also those that were revoked or have expired.")
def list_(database_url: str | None, config: Path | None, tenant: str | None, is_all: bool) -> None:
    """The keys there are, without what they open: id, tenant, hint, name, scopes, expiry, last use and state."""

    async def work(store: Store) -> tuple[datetime, list[ApiKey], dict[UUID, str]]:
        tenant_id = None if tenant is None else await _known_tenant(store, tenant)
        found, after = list[ApiKey](), None
        while page := await store.key_list(tenant_id, after=after, limit=_PAGE):
            found += page
            after = page[-1].id
        names = {one.id: one.name for one in await store.tenant_find(ids=list({key.tenant_id for key in found}))}
        return await store.clock(), found, names

    now, found, names = run_on_store(database_url, config, work)
    rows = [_row(key, names, now) for key in found if is_all or key.is_usable(now)]
    show_table(("ID", "TENANT", "KEY", "NAME", "SCOPES", "EXPIRES", "LAST USED", "STATE"), rows)


@keys.command()
@click.argument("ids", nargs=-1, required=True, type=click.UUID, metavar="ID...")
@DATABASE_URL
@CONFIG
def revoke(ids: tuple[UUID, ...], database_url: str | None, config: Path | None) -> None:
    """End keys for good. Every node heeds it within seconds, and what is open under them ends. Its argument: ids."""

    async def work(store: Store) -> None:
        for id_ in ids:
            await KeyService(store).revoke(id_, by=local_caller())

    run_on_store(database_url, config, work)
    click.echo(f"revoked {', '.join(map(str, ids))}", err=True)


async def _tenant(store: Store, name: str) -> UUID:
    """The tenant of this name; it is made if it is not there."""
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
            click.echo(f"there was no tenant {name}; it is made now", err=True)
            return id_
    raise EverbeatError(f"the tenant {name} cannot be made")  # somebody made and removed it meanwhile


async def _known_tenant(store: Store, name: str) -> UUID:
    for found in await store.tenant_find(names=[name]):
        return found.id
    raise EverbeatError(
        f"there is no tenant {name}; it is made with its first key: everbeat keys create --tenant {name} --scope …"
    )


def _scopes(key: ApiKey) -> str:
    return f"scope {key.scopes[0]}" if len(key.scopes) == 1 else f"scopes {', '.join(key.scopes)}"


def _expiry(key: ApiKey) -> str:
    return "good until it is revoked" if key.expires_at is None else f"good until {rfc3339(key.expires_at)}"


def _row(key: ApiKey, names: dict[UUID, str], now: datetime) -> tuple[str, ...]:
    state = "revoked" if key.revoked_at is not None else "good" if key.is_usable(now) else "expired"
    tenant = "(all)" if key.is_fleet else names.get(key.tenant_id, str(key.tenant_id))
    times = (rfc3339(at)[:19] + "Z" if at else "never" for at in (key.expires_at, key.last_used_at))
    return (str(key.id), tenant, key.hint, key.name, " ".join(key.scopes), *times, state)
