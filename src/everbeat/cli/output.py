"""What commands print: tables for people, JSON and YAML for programs. Results go to stdout, everything else to stderr.

Rich is used if it is installed and stdout is a terminal. Otherwise the columns are aligned with spaces. Text of others, such
as error messages, can contain control characters; tables show them escaped, so that they cannot change the terminal.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import click

from everbeat.core.errors import EverbeatError

F = TypeVar("F", bound=Callable[..., Any])
Item = Mapping[str, Any]

FORMATS = ("table", "json", "yaml")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?Z")
_MAX_CELL = 80
_MAX_UNWRAPPED = 40
_STATE_STYLES = {
    **dict.fromkeys(("active", "completed", "fired", "live", "done", "ok"), "green"),
    **dict.fromkeys(("failed", "dead", "missing", "gone", "faulty", "error"), "red"),
    **dict.fromkeys(("paused", "skipped", "held", "stopping", "cancelled", "warning"), "yellow"),
    **dict.fromkeys(("running", "ready", "scheduled", "upcoming"), "cyan"),
}


class Column(NamedTuple):
    """A column of a table: the name of a field, or a function of the item."""

    title: str
    value: str | Callable[[Item], Any]

    def of(self, item: Item) -> str:
        return shown(item.get(self.value) if isinstance(self.value, str) else self.value(item))


def shown(value: Any) -> str:
    """Return a value as one line of text."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case str():
            return printable(_TIME.sub(r"\1 \2Z", value) if _TIME.fullmatch(value) else value)
        case Mapping() | list() | tuple():
            return printable(json.dumps(value, ensure_ascii=False, default=str)) if value else "-"
        case _:
            return printable(str(value))


def printable(text: str) -> str:
    """Return the text with control characters escaped."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text.replace("\n", " "))


class Printer:
    """Prints the results of a command in the chosen format."""

    def __init__(self, format_: str) -> None:
        self.format = format_

    @property
    def is_table(self) -> bool:
        return self.format == "table"

    def items(self, items: Sequence[Item], columns: Sequence[Column], *, empty: str) -> None:
        if not self.is_table:
            self.data(list(items))
        elif items:
            print_columns([column.title for column in columns], ([column.of(item) for column in columns] for item in items))
        else:
            click.echo(empty, err=True)

    def item(self, item: Item, fields: Sequence[str] | None = None) -> None:
        """Print one item: in a table, a line per field."""
        if not self.is_table:
            self.data(item)
            return
        names = [name for name in (fields or item) if name in item]
        width = max((len(name) for name in names), default=0)
        for name in names:
            click.echo(f"{name.replace('_', ' '):{width}}  {styled(shown(item[name]))}")

    def data(self, value: Any) -> None:
        """Print a value as JSON, or as YAML."""
        if self.format == "yaml":
            click.echo(load_yaml().safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)
        else:
            click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))

    def note(self, text: str) -> None:
        click.echo(printable(text), err=True)


def load_yaml() -> Any:
    """Return the yaml module, which the extra `cli` installs."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise EverbeatError("YAML needs PyYAML; install it with: pip install 'everbeat[cli]', or use JSON") from None
    return yaml


def has_colors() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def styled(text: str) -> str:
    """Return the name of a state in its color."""
    style = _STATE_STYLES.get(text)
    return click.style(text, fg=style) if style and has_colors() else text


def print_columns(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        _print_rich(titles, rows)
        return
    lines = [list(titles), *([cell[:_MAX_CELL] for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    for line in lines:
        cells = (f"{styled(cell)}{' ' * (width - len(cell))}" for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _print_rich(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    lines = list(rows)
    widths = [max(len(line[column]) for line in (titles, *lines)) for column in range(len(titles))]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, width in zip(titles, widths, strict=True):
        table.add_column(title, overflow="fold", no_wrap=width <= _MAX_UNWRAPPED)  # ids and times stay in one line
    for line in lines:
        # Text, not markup: a name may contain brackets.
        table.add_row(*(Text(cell, style=_STATE_STYLES.get(cell, "")) for cell in line))
    # A table that is wider than the terminal is not cropped: the terminal wraps its lines.
    needed = sum(min(width, _MAX_UNWRAPPED) + 1 for width in widths)
    Console(width=max(Console().width, needed)).print(table)


OUTPUT = click.option(
    "-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True, help="How to print: table, json or yaml."
)


def output_option(command: F) -> F:
    """Add -o. The command receives a Printer as its first argument."""

    @functools.wraps(command)
    def run(*args: Any, output: str, **options: Any) -> Any:
        return command(Printer(output), *args, **options)

    return OUTPUT(run)  # type: ignore[return-value]
