"""Wires the commands together, and turns expected errors into one line that says what to do."""

from __future__ import annotations

import sys

import click

from everbeat.cli.database import migrate
from everbeat.cli.run import dev, serve
from everbeat.cli.worker import worker
from everbeat.core.errors import EverbeatError
from everbeat.version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="everbeat")
def cli() -> None:
    """Everbeat: a distributed cron and task scheduler. Every tick accounted for."""


cli.add_command(dev)
cli.add_command(serve)
cli.add_command(worker)
cli.add_command(migrate)


def main() -> None:
    try:
        cli(prog_name="everbeat")
    except EverbeatError as error:
        click.echo(f"everbeat: {error}", err=True)
        sys.exit(1)
