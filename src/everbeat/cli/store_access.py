"""Runs commands on a database directly, and identifies their caller for the audit log."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from everbeat.config import load_settings
from everbeat.core.access import LOCAL_CALLER, Caller
from everbeat.server import make_store
from everbeat.store.base import Store
from everbeat.store.migrate import check_schema

T = TypeVar("T")


def run_on_store(database_url: str | None, config: Path | None, work: Callable[[Store], Awaitable[T]]) -> T:
    settings = load_settings({"database_url": database_url}, file=config)

    async def run() -> T:
        store = make_store(settings)
        try:
            await _prepare(store)
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def _prepare(store: Store) -> None:
    schema = await store.schema_version()
    if schema.version == 0:
        await store.migrate()
        click.echo(f"{store.description} was empty and has been migrated", err=True)
    else:
        check_schema(schema)


def local_caller() -> Caller:
    """Return a caller with the name of the operating system user, for the audit log."""
    try:
        return LOCAL_CALLER._replace(actor=f"cli:{getpass.getuser()}")
    except (KeyError, OSError):  # in a container, the user id may have no name
        return LOCAL_CALLER._replace(actor="cli")


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows in aligned columns."""
    lines = [header, *rows]
    widths = [max(len(row[column]) for row in lines) for column in range(len(header))]
    for row in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
