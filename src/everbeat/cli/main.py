"""The entry point of the command line. Commands are imported when they run. Expected errors are printed as one line."""

from __future__ import annotations

import importlib
import sys
from typing import NamedTuple

import click

from everbeat.core.errors import EverbeatError
from everbeat.version import __version__


class LazyCommand(NamedTuple):
    """The module of a command, and its summary, so that the list of commands is printed without importing the modules."""

    module: str
    summary: str


COMMANDS = {
    "dev": LazyCommand("everbeat.cli.run", "Run a server, scheduler and worker in one process, for development."),
    "import": LazyCommand("everbeat.cli.imports", "Create schedules from those of another scheduler."),
    "keys": LazyCommand("everbeat.cli.keys", "Create, list and revoke API keys in the database."),
    "migrate": LazyCommand("everbeat.cli.database", "Apply the migrations that the database needs."),
    "outbox": LazyCommand("everbeat.cli.outbox", "Create and inspect the outbox in the database of an application."),
    "relay": LazyCommand("everbeat.cli.outbox", "Move the rows of an outbox to a server."),
    "serve": LazyCommand("everbeat.cli.run", "Run a node of a cluster."),
    "shell": LazyCommand("everbeat.cli.shell", "Submit and schedule shell commands."),
    "tenants": LazyCommand("everbeat.cli.tenants", "Create, list and change tenants in the database."),
    "worker": LazyCommand("everbeat.cli.worker", "Run the tasks of an app."),
}

# The attribute of the module, if it cannot have the name of the command.
_ATTRIBUTES = {"import": "import_"}


class LazyGroup(click.Group):
    """Imports the module of a command only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = _ATTRIBUTES.get(cmd_name, cmd_name)
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name].module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="everbeat")
def cli() -> None:
    """Everbeat: a distributed cron and task scheduler."""


def main() -> None:
    try:
        cli(prog_name="everbeat")
    except EverbeatError as error:
        click.echo(f"everbeat: {error}", err=True)
        sys.exit(1)
