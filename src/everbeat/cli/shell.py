"""Commands that submit and schedule shell tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from everbeat.cli.connection import API_KEY_FILE, URL, connect
from everbeat.cli.examples import examples
from everbeat.core.shell import DEFAULT_KILL_AFTER_SECONDS, DEFAULT_SHELL_QUEUE, SHELL_TYPE, shell_command

F = TypeVar("F", bound=Callable[..., Any])

_EXAMPLE = "everbeat shell submit -- backup --all"


def _command_options(command: F) -> F:
    """Add the options that describe a command. The result is passed as `payload`, made by _payload."""
    options = (
        click.argument("argv", metavar="[-- PROGRAM ARGUMENT...]", nargs=-1),
        click.option("--line", help="A line for the shell, instead of a program with its arguments."),
        click.option("--env", multiple=True, metavar="NAME=VALUE", help="A variable of the environment."),
        click.option("--cwd", help="The directory to start in (the home directory of the user)."),
        click.option("--user", help="The user to run as (the user of the worker)."),
        click.option("--nice", type=click.IntRange(-20, 19), default=0, show_default=True),
        click.option("--success-code", type=click.IntRange(0, 255), multiple=True, default=(0,), show_default=True),
        click.option(
            "--kill-after-seconds", type=click.FloatRange(0, 300), default=DEFAULT_KILL_AFTER_SECONDS, show_default=True
        ),
        click.option("--queue", default=DEFAULT_SHELL_QUEUE, show_default=True),
        click.option("--timeout-seconds", type=click.FloatRange(0.1, 7 * 86_400), default=3600.0, show_default=True),
        click.option("--max-attempts", type=click.IntRange(1, 100), default=3, show_default=True),
        URL,
        API_KEY_FILE,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group(epilog=examples("everbeat shell submit -- backup --all"))
def shell() -> None:
    """Submit and schedule shell commands."""


@shell.command(
    epilog=examples(
        "everbeat shell submit -- backup --all", 'everbeat shell submit --line "pg_dump app | gzip > /backups/app.gz"'
    )
)
@_command_options
@click.option("--key", help="An idempotency key: a second submit with the same key submits nothing.")
def submit(
    argv: Sequence[str], url: str | None, api_key_file: Path | None, key: str | None, queue: str, **options: Any
) -> None:
    """Submit a shell command, to run now. Prints the id of the task."""
    task_options = {"queue": queue, "timeout": options.pop("timeout_seconds"), "max_attempts": options.pop("max_attempts")}
    payload = _payload(argv, **options)
    with contextlib.closing(connect(url, api_key_file)) as app:
        click.echo(app.submit(SHELL_TYPE, payload, key=key, **task_options).id)


@shell.command(epilog=examples('everbeat shell schedule nightly-backup --cron "0 2 * * *" --tz Europe/Berlin -- backup --all'))
@click.argument("name")
@_command_options
@click.option("--cron", required=True, help="The cron expression.")
@click.option("--tz", default="UTC", show_default=True, help="The time zone of the cron expression.")
def schedule(
    name: str, argv: Sequence[str], url: str | None, api_key_file: Path | None, cron: str, tz: str, queue: str, **options: Any
) -> None:
    """Create or replace a schedule of a shell command."""
    limits = {name: options.pop(name) for name in ("timeout_seconds", "max_attempts")}
    definition = {
        "name": name,
        "cron": cron,
        "timezone": tz,
        "target": {"kind": "worker", "queue": queue, "type": SHELL_TYPE},
        "payload": _payload(argv, **options),
        **limits,
    }
    with contextlib.closing(connect(url, api_key_file)) as app:
        written = app.client.schedules.put(definition)
    click.echo(f"{written.name}: {written.trigger_text}, next {written.next_tick_at}")


def _payload(argv: Sequence[str], line: str | None, env: Sequence[str], success_code: Sequence[int], **fields: Any) -> Any:
    if bool(argv) == (line is not None):
        raise click.UsageError(f"give either a program with its arguments after --, or --line; for example: {_EXAMPLE}")
    variables = dict(text.partition("=")[::2] for text in env)
    if any("=" not in text for text in env):
        raise click.BadParameter("must be NAME=VALUE", param_hint="--env")
    return shell_command(line if line is not None else list(argv), env=variables, success_codes=success_code, **fields)
