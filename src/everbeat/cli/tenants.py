"""Commands on tenants, their weights and their quotas. They access the database directly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from everbeat.cli.examples import examples
from everbeat.cli.options import CONFIG, DATABASE_URL
from everbeat.cli.store_access import local_caller, print_table, run_on_store
from everbeat.core.errors import InvalidInput
from everbeat.core.tenants import DEFAULT_MAX_SCHEDULES, MAX_PAYLOAD_BYTES, MAX_PRIORITY, Tenant, TenantQuotas
from everbeat.services.tenants import TenantService
from everbeat.store.base import Store

F = TypeVar("F", bound=Callable[..., Any])

_MAX_INT = 2**31 - 1
_NO_LIMIT = "none"
_PAGE_SIZE = 500


class _Quota(click.ParamType[Any]):
    """A number within bounds, or `none` for no limit."""

    name = "quota"

    def __init__(self, kind: type[int] | type[float], minimum: float, maximum: float) -> None:
        self._kind = kind
        self._min = minimum
        self._max = maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == _NO_LIMIT:
            return _NO_LIMIT
        try:
            number = self._kind(value)
        except ValueError:
            number = self._kind(-1)
        if not self._min <= number <= self._max:
            self.fail(f"must be {self._min:g} to {self._max:.12g}, or {_NO_LIMIT}", param, ctx)
        return number


_COUNT = _Quota(int, 0, _MAX_INT)


def _limits(command: F) -> F:
    """Add the options for the weight and for each quota."""
    options = (
        click.option("--weight", type=click.FloatRange(0.001, 1_000_000), help="Weight of its fair share of workers."),
        click.option("--max-schedules", type=_COUNT, help="Maximum number of schedules."),
        click.option("--max-ready", type=_COUNT, help="Maximum number of tasks that are ready and have not started."),
        click.option("--max-running", type=_COUNT, help="Maximum number of tasks that run at the same time."),
        click.option(
            "--submits-per-second", type=_Quota(float, 0.001, 1_000_000), help="Maximum rate of submits, on all nodes."
        ),
        click.option("--max-payload-bytes", type=_Quota(int, 0, MAX_PAYLOAD_BYTES), help="Maximum size of one payload."),
        click.option(
            "--min-priority",
            type=_Quota(int, 0, MAX_PRIORITY),
            help="Best priority of its tasks; lower numbers are raised to it.",
        ),
        click.option(
            "--retention-days",
            type=_Quota(float, 1, 36_500),
            help="How long its ledger and history are kept, if shorter than those of the server.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group(epilog=examples("everbeat tenants create acme --weight 2", "everbeat tenants list"))
def tenants() -> None:
    """Create, list and change tenants in the database."""


@tenants.command(epilog=examples("everbeat tenants create acme --max-schedules 1000"))
@click.argument("name")
@DATABASE_URL
@CONFIG
@_limits
def create(name: str, database_url: str | None, config: Path | None, **limits: Any) -> None:
    """Create a tenant."""
    changes = _changes(limits)
    weight = changes.pop("weight", 1.0)
    quotas = msgspec.structs.replace(TenantQuotas(max_schedules=DEFAULT_MAX_SCHEDULES), **changes)

    async def work(store: Store) -> None:
        await TenantService(store).create(name, weight=weight, quotas=quotas, by=local_caller())

    run_on_store(database_url, config, work)
    click.echo(f"created the tenant {name}; create a key with: everbeat keys create --tenant {name} --scope manage", err=True)


@tenants.command("set", epilog=examples("everbeat tenants set acme --weight 2 --max-ready none"))
@click.argument("name")
@DATABASE_URL
@CONFIG
@_limits
def set_(name: str, database_url: str | None, config: Path | None, **limits: Any) -> None:
    """Change the given properties of a tenant. `none` removes a limit."""
    changes = _changes(limits)
    if not changes:
        raise InvalidInput.of("options", "nothing to change; use options such as --weight 2 or --max-ready none")

    async def work(store: Store) -> Tenant:
        return await TenantService(store).patch(name, changes, by=local_caller())

    tenant = run_on_store(database_url, config, work)
    click.echo(f"the tenant {tenant.name} is at revision {tenant.revision}", err=True)


@tenants.command("list", epilog=examples("everbeat tenants list --database-url sqlite:///everbeat.db"))
@DATABASE_URL
@CONFIG
def list_(database_url: str | None, config: Path | None) -> None:
    """List all tenants by name."""

    async def work(store: Store) -> list[Tenant]:
        found, after = list[Tenant](), None
        while page := await store.tenant_list(after_name=after, limit=_PAGE_SIZE):
            found += page
            after = page[-1].name
        return found

    names = TenantQuotas.__struct_fields__
    header = ("NAME", "ID", "WEIGHT", *(name.upper().replace("_", " ") for name in names))
    print_table(header, [_row(tenant, names) for tenant in run_on_store(database_url, config, work)])


def _row(tenant: Tenant, names: tuple[str, ...]) -> tuple[str, ...]:
    limits = [getattr(tenant.quotas, name) for name in names]
    return (tenant.name, str(tenant.id), f"{tenant.weight:g}", *("-" if limit is None else f"{limit:.12g}" for limit in limits))


def _changes(limits: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value == _NO_LIMIT else value for name, value in limits.items() if value is not None}
