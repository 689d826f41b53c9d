"""The options of a worker that may run commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from everbeat.core.errors import InvalidInput
from everbeat.core.shell import AllowedCommands, parse_allowed_commands

F = TypeVar("F", bound=Callable[..., Any])

_ALLOW = "allow_shell"
_COMMAND = "allow_shell_command"
_FILE = "allow_shell_file"
_USER = "allow_shell_user"
_VARIABLE = "allow_shell_variable"
_DIRECTORY = "allow_shell_directory"
_STDIN = "allow_shell_stdin"
# What a list of commands restricts too, unless it is allowed.
_ADDITIONS = (_USER, _VARIABLE, _DIRECTORY, _STDIN)


def shell_options(command: F) -> F:
    options = (
        click.option("--allow-shell", is_flag=True, help="Run shell tasks: any command, or those of a list."),
        click.option("--allow-shell-command", multiple=True, help="A command that may run; without a list, any may."),
        click.option(
            "--allow-shell-file",
            type=click.Path(dir_okay=False, path_type=Path),
            help="A file with commands that may run, one in each line.",
        ),
        click.option("--allow-shell-user", multiple=True, help="A user that a payload may name, with a list of commands."),
        click.option(
            "--allow-shell-variable", multiple=True, help="A variable that a payload may set, with a list of commands."
        ),
        click.option(
            "--allow-shell-directory", multiple=True, help="A directory that a payload may name, with a list of commands."
        ),
        click.option("--allow-shell-stdin", is_flag=True, help="Allow a standard input in payloads, with a list of commands."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def allowed_commands(flags: Mapping[str, Any]) -> AllowedCommands | None:
    """Return what the worker may run, or None if it runs no commands."""
    has_list = bool(flags[_COMMAND]) or flags[_FILE] is not None
    if not flags[_ALLOW]:
        if has_list or any(flags[name] for name in _ADDITIONS):
            raise click.UsageError("the options --allow-shell-… need --allow-shell")
        return None
    if not has_list:
        if any(flags[name] for name in _ADDITIONS):
            raise click.UsageError("without a list of commands, everything is allowed; add --allow-shell-command")
        return AllowedCommands()
    lines = [*flags[_COMMAND], *_lines_of(flags[_FILE])]
    try:
        commands = parse_allowed_commands(lines)
    except InvalidInput as error:
        raise click.UsageError(str(error)) from None
    return AllowedCommands(
        commands=commands,
        users=frozenset(flags[_USER]),
        variables=frozenset(flags[_VARIABLE]),
        directories=frozenset(flags[_DIRECTORY]),
        allows_stdin=flags[_STDIN],
    )


def shell_arguments(flags: Mapping[str, Any]) -> list[str]:
    """Return the same options as arguments, for a child process."""
    return list(_arguments(flags))


def _arguments(flags: Mapping[str, Any]) -> Iterator[str]:
    if flags[_ALLOW]:
        yield "--allow-shell"
    if flags[_FILE] is not None:
        yield from ("--allow-shell-file", str(flags[_FILE]))
    if flags[_STDIN]:
        yield "--allow-shell-stdin"
    for name in (_COMMAND, _USER, _VARIABLE, _DIRECTORY):
        for value in flags[name]:
            yield from (f"--{name.replace('_', '-')}", value)


def _lines_of(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{file} cannot be read ({error})", param_hint="--allow-shell-file") from None
