"""Writes the sections of docs/reference/cli.md on the commands that use a server, from their declarations.

Usage: python -m everbeat.cli.reference docs/reference/cli.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from everbeat.cli.main import cli

BEGIN, END = "<!-- generated: begin -->\n", "<!-- generated: end -->\n"
# The sections on these commands are written by hand.
_BY_HAND = frozenset({"dev", "import", "keys", "migrate", "outbox", "relay", "serve", "shell", "tenants", "worker"})
SHARED_OPTIONS = ("--output", "--context", "--url", "--api-key-file")
SHARED_NOTE = "It also accepts the [options of commands that use a server](#commands-that-use-a-server)."


def rendered(page: str) -> str:
    """Return the page with the generated part written again."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{''.join(_sections())}{END}{after}"


def _sections() -> Iterator[str]:
    for name in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), name)
        if command is not None and name not in _BY_HAND:
            yield from _section(name, command)


def _section(name: str, command: click.Command) -> Iterator[str]:
    depth = "##" + "#" * name.count(" ")
    context = click.Context(command, info_name=f"everbeat {name}")
    usage = " ".join(["everbeat", name, *command.collect_usage_pieces(context)])
    yield f"{depth} everbeat {name}\n\n{_text(command.help)}\n\n"
    if not isinstance(command, click.Group):
        yield f"```\n{usage}\n```\n\n"
        if arguments := [f"`{one.name}`" for one in command.params if isinstance(one, click.Argument)]:
            yield f"Arguments: {', '.join(arguments)}.\n\n"
        yield from _options(command)
        yield f"```\n{_examples(command)}\n```\n\n"
        return
    for child in command.list_commands(context):
        found = command.get_command(context, child)
        assert found is not None
        yield from _section(f"{name} {child}", found)


def _options(command: click.Command) -> Iterator[str]:
    options = [one for one in command.params if isinstance(one, click.Option)]
    has_shared = all(any(name in one.opts for one in options) for name in SHARED_OPTIONS)
    own = [one for one in options if not (has_shared and any(name in one.opts for name in SHARED_OPTIONS))]
    if own:
        yield "| option | meaning |\n|---|---|\n"
        yield from (_row(option) for option in own)
        yield "\n"
    if has_shared:
        yield f"{SHARED_NOTE}\n\n"


def _row(option: click.Option) -> str:
    names = sorted(
        (*option.opts, *option.secondary_opts), key=lambda name: (not name.startswith("--"), name.startswith("--no-"))
    )
    metavar = "" if option.is_flag else f" {option.name.upper() if option.name else ''}"
    shown = ", ".join(f"`{name}{metavar if index == 0 else ''}`" for index, name in enumerate(names))
    return f"| {shown} | {_cell(option)} |\n"


def _cell(option: click.Option) -> str:
    text = (option.help or "").replace("|", "\\|")
    if isinstance(option.type, click.Choice):
        text += f" One of {', '.join(f'`{choice}`' for choice in option.type.choices)}."
    if option.show_default and option.default not in (None, "") and not option.is_flag:
        text += f" Default: `{option.default}`."
    return text.strip()


def _text(help_: str | None) -> str:
    return re.sub(r"(?m)^\s+", "", (help_ or "").replace("\b", "")).strip()


def _examples(command: click.Command) -> str:
    lines = (command.epilog or "").splitlines()
    return "\n".join(line.strip() for line in lines[2:])


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(rendered(target.read_text(encoding="utf-8")), encoding="utf-8")
