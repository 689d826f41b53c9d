"""The entry point of the command line. Commands are imported when they run. Expected errors are printed as one line."""

from __future__ import annotations

import importlib
import sys
from difflib import get_close_matches
from typing import NamedTuple

import click

from everbeat.cli.examples import examples
from everbeat.cli.exit_codes import exit_code_of
from everbeat.core.errors import EverbeatError
from everbeat.version import __version__


class LazyCommand(NamedTuple):
    """The module of a command, and its summary, so that the list of commands is printed without importing the modules."""

    module: str
    summary: str


COMMANDS = {
    "alert": LazyCommand("everbeat.cli.alerts", "Create, change, list and delete alert rules."),
    "apply": LazyCommand(
        "everbeat.cli.plan",
        "Create and update the schedules and alert rules of a file; --prune deletes those no longer in it.",
    ),
    "audit": LazyCommand("everbeat.cli.audit", "Count expected, fired, skipped, missing and doubled ticks."),
    "calendar": LazyCommand("everbeat.cli.calendars", "List, show, create and delete calendars."),
    "check": LazyCommand("everbeat.cli.checks", "Watch jobs that run elsewhere and report by pings."),
    "completion": LazyCommand("everbeat.cli.completion", "Print the script that completes commands and options in a shell."),
    "context": LazyCommand("everbeat.cli.context_commands", "Name the servers that commands use."),
    "dev": LazyCommand("everbeat.cli.run", "Run a server, scheduler and worker in one process, for development."),
    "dlq": LazyCommand("everbeat.cli.dead_letters", "List, replay and purge dead letters: tasks that are not retried."),
    "doctor": LazyCommand("everbeat.cli.doctor", "Check the configuration, the server and the database, and say what to do."),
    "export": LazyCommand(
        "everbeat.cli.plan", "Print schedules and alert rules as a file for plan and apply: as YAML, or as JSON with -o json."
    ),
    "import": LazyCommand("everbeat.cli.imports", "Create schedules from those of another scheduler."),
    "incident": LazyCommand("everbeat.cli.alerts", "List, show and acknowledge what alert rules have found."),
    "keys": LazyCommand("everbeat.cli.keys", "Create, list and revoke API keys in the database."),
    "mcp": LazyCommand("everbeat.cli.mcp", "Serve tools for language models (Model Context Protocol) on stdin and stdout."),
    "migrate": LazyCommand("everbeat.cli.database", "Apply the migrations that the database needs."),
    "operations": LazyCommand("everbeat.cli.operations", "List, follow and cancel bulk operations."),
    "outbox": LazyCommand("everbeat.cli.outbox", "Create and inspect the outbox in the database of an application."),
    "pause": LazyCommand("everbeat.cli.queues", "Pause all schedules and queues."),
    "plan": LazyCommand("everbeat.cli.plan", "Show what apply would change, with the old and the new next ticks."),
    "preview": LazyCommand(
        "everbeat.cli.preview", "Show the next ticks of a trigger, in local time and UTC, with warnings; needs no server."
    ),
    "prune": LazyCommand("everbeat.cli.prune", "Remove what is past its retention now, or show what would be removed."),
    "queue": LazyCommand("everbeat.cli.queues", "List, pause and resume queues."),
    "relay": LazyCommand("everbeat.cli.outbox", "Move the rows of an outbox to a server."),
    "restored": LazyCommand("everbeat.cli.restored", "Make a database that was restored from a backup safe to start nodes on."),
    "resume": LazyCommand("everbeat.cli.queues", "End the pause of everything."),
    "schedule": LazyCommand("everbeat.cli.schedules", "Create, change, list and explain schedules."),
    "schema": LazyCommand("everbeat.cli.plan", "Print the JSON Schema of the files of plan and apply, for editors."),
    "serve": LazyCommand("everbeat.cli.run", "Run a node of a cluster."),
    "shell": LazyCommand("everbeat.cli.shell", "Submit and schedule shell commands."),
    "slo": LazyCommand(
        "everbeat.cli.service_levels", "Show the service levels of the last 30 days, and what is left of the error budgets."
    ),
    "task": LazyCommand("everbeat.cli.tasks", "Submit, list, cancel, retry and explain tasks."),
    "tenants": LazyCommand("everbeat.cli.tenants", "Create, list and change tenants in the database."),
    "top": LazyCommand("everbeat.cli.top", "Show nodes, queues and running tasks, refreshed until Ctrl-C."),
    "worker": LazyCommand("everbeat.cli.worker", "Run the tasks of an app."),
    "workers": LazyCommand("everbeat.cli.queues", "List the workers: also written as everbeat worker list."),
}

# The attribute of the module, if it cannot have the name of the command.
_ATTRIBUTES = {"import": "import_", "pause": "pause_everything", "resume": "resume_everything"}


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

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        # `everbeat worker MODULE:APP` runs a worker. An app is never named `list`, because it needs a colon.
        if args[:2] == ["worker", "list"]:
            args = ["workers", *args[2:]]
        if args and args[0] not in COMMANDS and (similar := get_close_matches(args[0], COMMANDS, 1)):
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{similar[0]}'?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples("everbeat dev --demo", 'everbeat preview "0 2 * * *" --tz Europe/Berlin', "everbeat schedule list"),
)
@click.version_option(__version__, prog_name="everbeat")
def cli() -> None:
    """Everbeat: a distributed cron and task scheduler."""


def main() -> None:
    try:
        cli(prog_name="everbeat", complete_var="_EVERBEAT_COMPLETE")
    except EverbeatError as error:
        click.echo(f"everbeat: {error}", err=True)
        sys.exit(exit_code_of(error))
