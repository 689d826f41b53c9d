"""The exit codes of the command line. They are part of the interface: docs/reference/cli.md lists them."""

from __future__ import annotations

from enum import IntEnum

from everbeat.core.errors import EverbeatError


class ExitCode(IntEnum):
    DONE = 0
    FAILED = 1
    WRONG_USAGE = 2
    NOT_FOUND = 3
    NOT_ALLOWED = 4
    NOT_REACHABLE = 5
    CHANGES = 6
    PROBLEMS = 7


_BY_STATUS = {401: ExitCode.NOT_ALLOWED, 403: ExitCode.NOT_ALLOWED, 404: ExitCode.NOT_FOUND, 503: ExitCode.NOT_REACHABLE}


def exit_code_of(error: EverbeatError) -> int:
    """Return the exit code of a command that ended with this error."""
    given = getattr(error, "exit_code", None)
    if isinstance(given, int):
        return given
    if type(error).__name__ == "NotReachable":  # by name: importing the client would make --help slow
        return ExitCode.NOT_REACHABLE
    return _BY_STATUS.get(getattr(error, "status", 0), ExitCode.FAILED)
