"""The commands that add, choose and list contexts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from everbeat.cli.connection import read_key
from everbeat.cli.contexts import ServerContext, contexts_path, read_contexts, write_contexts
from everbeat.cli.examples import examples
from everbeat.cli.output import Column, Printer, output_option
from everbeat.client.urls import validate_urls
from everbeat.core.errors import InvalidInput
from everbeat.core.names import NAME_MESSAGE, is_name


@click.group(
    epilog=examples(
        "everbeat context add prod --url https://everbeat.example.com --key-file ~/prod.key", "everbeat context use prod"
    )
)
def context() -> None:
    """Name the servers that commands use."""


@context.command(epilog=examples("everbeat context add prod --url https://everbeat.example.com --key-file ~/prod.key"))
@click.argument("name")
@click.option("--url", required=True, help="The server, or several of a cluster, separated by commas.")
@click.option(
    "--key-file", type=click.Path(dir_okay=False, path_type=Path), help="A file with the API key; only its path is stored."
)
def add(name: str, url: str, key_file: Path | None) -> None:
    """Add or replace a context. The first one becomes the current context."""
    if not is_name(name):
        raise InvalidInput.of("name", NAME_MESSAGE)
    if key_file is not None:
        read_key(key_file)
    found = read_contexts()
    path = None if key_file is None else str(key_file.expanduser().absolute())
    found.contexts[name] = ServerContext(validate_urls(url), path)
    found.current = found.current or name
    write_contexts(found)
    click.echo(f"the context {name} is in {contexts_path()}; the current context is {found.current}", err=True)


@context.command("list", epilog=examples("everbeat context list", "everbeat context list -o json"))
@output_option
def list_(printer: Printer) -> None:
    """List the contexts."""
    found = read_contexts()
    items = [_item(name, each, found.current) for name, each in sorted(found.contexts.items())]
    columns = [
        Column("CURRENT", lambda item: "*" if item["current"] else ""),
        Column("NAME", "name"),
        Column("URL", "url"),
        Column("KEY FILE", "key_file"),
    ]
    printer.items(items, columns, empty="there are no contexts; add one with: everbeat context add prod --url https://…")


@context.command(epilog=examples("everbeat context use prod"))
@click.argument("name")
def use(name: str) -> None:
    """Make a context the current one."""
    found = read_contexts()
    url = found.get(name).url
    found.current = name
    write_contexts(found)
    click.echo(f"the current context is {name} ({url})", err=True)


@context.command(epilog=examples("everbeat context show", "everbeat context show prod"))
@click.argument("name", required=False)
@output_option
def show(printer: Printer, name: str | None) -> None:
    """Show a context (the current one)."""
    found = read_contexts()
    chosen = name or found.current
    if chosen is None:
        raise click.UsageError("there is no current context; choose one with: everbeat context use NAME")
    printer.item(_item(chosen, found.get(chosen), found.current))


@context.command(epilog=examples("everbeat context remove prod"))
@click.argument("name")
def remove(name: str) -> None:
    """Remove a context. Its key file is kept."""
    found = read_contexts()
    found.get(name)
    del found.contexts[name]
    found.current = None if found.current == name else found.current
    write_contexts(found)
    click.echo(f"removed the context {name}", err=True)


def _item(name: str, found: ServerContext, current: str | None) -> dict[str, Any]:
    return {"name": name, "url": found.url, "key_file": found.key_file, "current": name == current}
