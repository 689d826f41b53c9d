"""Wires the commands together, and turns expected errors into one line that says what to do."""

from __future__ import annotations

import importlib
import sys

import click

from everbeat.core.errors import EverbeatError
from everbeat.version import __version__

COMMANDS = {
    "dev": "everbeat.cli.run",
    "keys": "everbeat.cli.keys",
    "migrate": "everbeat.cli.database",
    "serve": "everbeat.cli.run",
    "tenants": "everbeat.cli.tenants",
    "worker": "everbeat.cli.worker",
}


class _Commands(click.Group):
    """Imports a command when it is asked for: a worker need not wait for the server's libraries to load."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="everbeat")
def cli() -> None:
    """Everbeat: a distributed cron and task scheduler. Every tick accounted for."""


def main() -> None:
    try:
        cli(prog_name="everbeat")
    except EverbeatError as error:
        click.echo(f"everbeat: {error}", err=True)
        sys.exit(1)
