"""A small loader of named SQL blocks: `-- name: task_claim`, a line saying what it does, and the statement.

Parameters are written `:name` in both dialects. For PostgreSQL they become $1, $2, … in order of appearance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

_BLOCK = re.compile(r"(?m)^-- name: (\w+)\n")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


class Query(NamedTuple):
    name: str
    sql: str
    parameters: tuple[str, ...]

    def arguments(self, values: Mapping[str, Any]) -> list[Any]:
        return [values[name] for name in self.parameters]


def load_blocks(package: str) -> dict[str, str]:
    """The text of every block in a package's sql folder, by name."""
    blocks: dict[str, str] = {}
    for path in sorted(files(package).joinpath("sql").iterdir(), key=lambda path: path.name):
        if not path.name.endswith(".sql"):
            continue
        _, *parts = _BLOCK.split(path.read_text(encoding="utf-8"))
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            if name in blocks:
                raise ValueError(f"two SQL blocks are named {name}")
            blocks[name] = text.strip()
    return blocks


def numbered(name: str, text: str) -> Query:
    """A block with :name parameters as a statement with $n parameters."""
    parameters: list[str] = []

    def number(match: re.Match[str]) -> str:
        parameter = match.group(1)
        if parameter not in parameters:
            parameters.append(parameter)
        return f"${parameters.index(parameter) + 1}"

    sql = _PARAMETER.sub(number, text)
    return Query(name, sql, tuple(parameters))


def load_numbered(package: str) -> dict[str, Query]:
    return {name: numbered(name, text) for name, text in load_blocks(package).items()}
