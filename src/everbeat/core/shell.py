"""The payload of a shell task: what it runs, as whom and where, and which commands a worker allows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from everbeat.core.definitions import convert
from everbeat.core.errors import EverbeatError, FieldError, InvalidInput

SHELL_TYPE = "everbeat.shell"
DEFAULT_SHELL_QUEUE = "shell"
DEFAULT_SHELL = "/bin/sh"
DEFAULT_KILL_AFTER_SECONDS = 5.0
MAX_COMMAND_CHARACTERS = 32_768

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_ANY_ARGUMENTS = " *"

Argument = Annotated[str, msgspec.Meta(max_length=MAX_COMMAND_CHARACTERS)]
ExitCode = Annotated[int, msgspec.Meta(ge=0, le=255)]


class ShellCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The payload: exactly one of `command`, a line for the shell, and `argv`, a program with its arguments.

    `cwd` None: the home directory of the user. `user` None: the user of the worker.
    """

    command: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_COMMAND_CHARACTERS)] | None = None
    argv: Annotated[list[Argument], msgspec.Meta(min_length=1, max_length=1000)] | None = None
    shell: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)] = DEFAULT_SHELL
    env: dict[str, str] = {}
    cwd: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)] | None = None
    user: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    nice: Annotated[int, msgspec.Meta(ge=-20, le=19)] = 0
    stdin: str = ""
    success_codes: Annotated[tuple[ExitCode, ...], msgspec.Meta(min_length=1, max_length=256)] = (0,)
    kill_after_seconds: Annotated[float, msgspec.Meta(ge=0, le=300)] = DEFAULT_KILL_AFTER_SECONDS

    @property
    def arguments(self) -> list[str]:
        """The program to start, with its arguments."""
        return list(self.argv) if self.argv is not None else [self.shell, "-c", self.command or ""]

    @property
    def shown(self) -> str:
        return self.command if self.command is not None else shlex.join(self.argv or ())


class CommandNotAllowed(EverbeatError):
    """The worker's list of allowed commands does not contain the command."""


class AllowedCommands(NamedTuple):
    """What a worker runs. `commands` None: everything.

    With a list, a payload may set only these users, variables and directories, and a standard input only if it is allowed,
    because each of them could make an allowed command do something else.
    """

    commands: Sequence[str] | None = None
    users: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    directories: frozenset[str] = frozenset()
    allows_stdin: bool = False

    def check(self, command: ShellCommand) -> None:
        """Raise CommandNotAllowed if the worker must not run the command."""
        if self.commands is None:
            return
        if not any(_allows(entry, command) for entry in self.commands):
            raise CommandNotAllowed(f"this worker does not allow the command: {command.shown[:200]}")
        if command.shell != DEFAULT_SHELL:
            raise CommandNotAllowed(f"this worker allows only the shell {DEFAULT_SHELL}")
        if command.user is not None and command.user not in self.users:
            raise CommandNotAllowed(f"this worker does not allow the user {command.user}")
        if command.cwd is not None and command.cwd not in self.directories:
            raise CommandNotAllowed(f"this worker does not allow the directory {command.cwd}")
        if command.stdin and not self.allows_stdin:
            raise CommandNotAllowed("this worker does not allow a standard input")
        if denied := sorted(set(command.env) - self.variables):
            raise CommandNotAllowed(f"this worker does not allow the variable {denied[0]}")


def _allows(entry: str, command: ShellCommand) -> bool:
    """Whether an entry of the list allows a command: the same line, or the same arguments; ` *` at the end allows more."""
    if command.argv is None:
        return entry == command.command
    if entry.endswith(_ANY_ARGUMENTS):
        words = shlex.split(entry.removesuffix(_ANY_ARGUMENTS))
        return command.argv[: len(words)] == words
    return command.argv == shlex.split(entry)


def parse_allowed_commands(lines: Sequence[str]) -> list[str]:
    """Return the commands of a list, without empty lines and comments. Raises InvalidInput if one cannot be parsed."""
    commands = [text for line in lines if (text := line.strip()) and not text.startswith("#")]
    for command in commands:
        try:
            shlex.split(command)
        except ValueError as error:
            raise InvalidInput.of("command", f"{command!r}: {error}") from None
    return commands


def parse_shell_command(payload: Any) -> ShellCommand:
    """Return the command of a payload. Raises InvalidInput with all errors."""
    command = convert(payload, ShellCommand)
    errors = _errors_of(command)
    if errors:
        raise InvalidInput(*errors)
    return command


def _errors_of(command: ShellCommand) -> list[FieldError]:
    errors = []
    if (command.command is None) == (command.argv is None):
        errors.append(FieldError("command", "give exactly one of command and argv"))
    if command.argv is not None and not command.argv[0]:
        errors.append(FieldError("argv", "must begin with the name of a program"))
    if command.cwd is not None and not command.cwd.startswith("/"):
        errors.append(FieldError("cwd", "must be an absolute path"))
    if not command.shell.startswith("/"):
        errors.append(FieldError("shell", "must be an absolute path"))
    errors += [
        FieldError(f"env.{name[:100]}", "is not the name of a variable: letters, digits and _, not a digit first")
        for name in command.env
        if not _VARIABLE.fullmatch(name)
    ]
    texts = [*command.arguments, *command.env.values(), command.cwd or "", command.user or ""]
    if any("\0" in text for text in texts):
        errors.append(FieldError("command", "must not contain NUL characters"))
    return errors


_DEFAULTS = {name: getattr(ShellCommand(), name) for name in ShellCommand.__struct_fields__} | {"success_codes": [0]}


def shell_command(
    command: str | Sequence[str],
    *,
    env: dict[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
    nice: int = 0,
    stdin: str = "",
    shell: str = DEFAULT_SHELL,
    success_codes: Sequence[int] = (0,),
    kill_after_seconds: float = DEFAULT_KILL_AFTER_SECONDS,
) -> dict[str, Any]:
    """Return the payload of a shell task. A string is a line for the shell; a list is a program with its arguments."""
    is_line = isinstance(command, str)
    payload = {
        "command": command if is_line else None,
        "argv": None if is_line else list(command),
        "shell": shell,
        "env": env or {},
        "cwd": cwd,
        "user": user,
        "nice": nice,
        "stdin": stdin,
        "success_codes": list(success_codes),
        "kill_after_seconds": kill_after_seconds,
    }
    parse_shell_command(payload)
    return {name: value for name, value in payload.items() if value != _DEFAULTS[name]}
