"""Reads a crontab: its jobs, with the variables that apply to each, and the lines that are no jobs for Everbeat.

The format is that of crontab(5) as in Vixie cron, Debian's cron and cronie. A variable applies to the lines after it. The
first `%` of a command that is not escaped ends it; the rest is its standard input, with a new line for every other `%`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from everbeat.imports.base import NotCarriedOver
from everbeat.imports.crontab_times import NICKNAMES

_ASSIGNMENT = re.compile(r"""\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<plain>[^\s=#]+))\s*=(?P<value>.*)""")
_FIELDS = 5
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?(:[A-Za-z0-9_.-]+)?(/[A-Za-z0-9_.-]+)?")
_SHOWN_CHARACTERS = 200

# Variables that cron reads itself and does not only pass to the command.
ZONE, DELAY, MAIL, SHELL = "CRON_TZ", "RANDOM_DELAY", "MAILTO", "SHELL"
_MAIL_VARIABLES = frozenset({MAIL, "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING"})
_MAIL_REASON = (
    "Everbeat sends no mail; the output of a command is in the log of its task. To be notified, use a hook of the schedule"
)
_REBOOT_REASON = (
    "it runs when cron starts, which is not a time; start the command at boot with the service manager, "
    "for example a systemd unit with WantedBy=multi-user.target"
)


class Assignment(NamedTuple):
    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class CrontabJob:
    """A job. `variables` are those that apply to it, including the ones that cron itself reads. `user` None: not given."""

    source: str
    line: str
    expression: str
    command: str
    stdin: str
    user: str | None
    variables: Mapping[str, str]
    is_quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class Crontab:
    jobs: list[CrontabJob] = field(default_factory=list)
    not_carried_over: list[NotCarriedOver] = field(default_factory=list)


class _BadLine(ValueError):
    """A line that is not a job for Everbeat, with the reason."""


def read_crontab(text: str, source: str, *, is_system: bool) -> Crontab:
    """Read a crontab in the user form, or in the system form, in which a user is named before each command."""
    crontab = Crontab()
    variables: dict[str, str] = {}
    for number, line in _significant_lines(text):
        place = f"{source}:{number}"
        if (assignment := parse_assignment(line)) is not None:
            variables = {**variables, assignment.name: assignment.value}
            if assignment.name in _MAIL_VARIABLES and assignment.value:
                crontab.not_carried_over.append(NotCarriedOver(place, _shown(line), _MAIL_REASON))
            continue
        try:
            crontab.jobs.append(_parse_job(line, place, variables, is_system=is_system))
        except _BadLine as error:
            crontab.not_carried_over.append(NotCarriedOver(place, _shown(line), str(error)))
    return crontab


def _significant_lines(text: str) -> Iterator[tuple[int, str]]:
    # Only the newline ends a line. str.splitlines() would also split at a form feed within a command.
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.rstrip("\r").lstrip(" \t")
        if stripped and not stripped.startswith("#"):
            yield number, stripped


def parse_assignment(line: str) -> Assignment | None:
    """Return the variable that a line sets, or None if it sets none. Quotes keep blanks, and nothing is expanded."""
    match = _ASSIGNMENT.fullmatch(line)
    if match is None:
        return None
    name = next(text for text in (match["double"], match["single"], match["plain"]) if text is not None)
    value = match["value"].strip(" \t")
    if len(value) >= 2 and value[0] in "\"'" and value[-1] == value[0]:
        value = value[1:-1]
    return Assignment(name, value)


def split_command(text: str) -> tuple[str, str]:
    """Return the command and its standard input, which follows the first `%` that is not escaped."""
    command, _, stdin = _unescape(text, is_command=True).partition("\0")
    stdin = _unescape(stdin, is_command=False)
    return command, stdin if not stdin or stdin.endswith("\n") else f"{stdin}\n"


def _unescape(text: str, *, is_command: bool) -> str:
    r"""Replace `\%` by `%`. In a command, the first other `%` becomes NUL and the rest is kept; in input, each is a newline."""
    result: list[str] = []
    is_escaped = False
    for position, character in enumerate(text):
        if is_escaped and character != "%":
            result.append("\\")
        elif not is_escaped and character == "%":
            if is_command:
                return "".join([*result, "\0", text[position + 1 :]])
            character = "\n"
        is_escaped = character == "\\"
        if not is_escaped:
            result.append(character)
    return "".join(result) + ("\\" if is_escaped else "")


def _parse_job(line: str, source: str, variables: Mapping[str, str], *, is_system: bool) -> CrontabJob:
    text = line
    is_quiet = text.startswith("-")
    text = text.removeprefix("-")
    expression, rest = _split_times(text)
    user = None
    if is_system:
        user, rest = _split_user(rest)
    if not rest:
        raise _BadLine("it has no command after the time fields")
    command, stdin = split_command(rest)
    if "\0" in rest or not command.strip():
        raise _BadLine("it has no command that a shell can run")
    return CrontabJob(
        source=source,
        line=line,
        expression=expression,
        command=command.strip(" \t"),
        stdin=stdin,
        user=user,
        variables=dict(variables),
        is_quiet=is_quiet,
    )


def _split_times(text: str) -> tuple[str, str]:
    """Return the five fields, or those of a nickname, and the rest of the line."""
    if text.startswith("@"):
        nickname, rest = _split_words(text, 1)
        if nickname.lower() == "@reboot":
            raise _BadLine(_REBOOT_REASON)
        if nickname.lower() not in NICKNAMES:
            raise _BadLine(f"{nickname} is not a nickname of crontab(5); the known ones are {', '.join(NICKNAMES)}")
        return nickname.lower(), rest
    fields, rest = _split_words(text, _FIELDS)
    if len(fields.split()) < _FIELDS:
        raise _BadLine("it is neither a job, which begins with five time fields or a nickname, nor NAME=value")
    return " ".join(fields.split()), rest


def _split_words(text: str, count: int) -> tuple[str, str]:
    """Return the first words with the blanks between them, and the rest of the text."""
    match = re.match(rf"(?:[^ \t]+[ \t]*){{0,{count}}}", text)
    assert match is not None
    return match[0].rstrip(" \t"), text[match.end() :]


def _split_user(text: str) -> tuple[str, str]:
    user, rest = _split_words(text, 1)
    if not rest or not _USER.fullmatch(user):
        raise _BadLine(f"{_shown(user) or 'nothing'} is not a user; is this a crontab in the user form? Then use --user NAME")
    # FreeBSD allows a group and a login class, as in user:group/class. They are not carried over.
    return re.split("[:/]", user)[0], rest


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
