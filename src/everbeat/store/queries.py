"""Loads named SQL blocks. A block is `-- name: task_claim`, a comment that says what it does, and the statement.

Parameters are written `:name` in both dialects. For PostgreSQL they become $1, $2, … in order of appearance. The text
`:name` must therefore not occur in a comment.

A fragment is `-- fragment: task_columns`, a comment, and a list of columns. Blocks and other fragments of the package include
it as `{{task_columns}}`. A prefix is added to each column: `{{t.task_columns}}` becomes `t.id, t.queue`, and
`{{:task_columns}}` becomes `:id, :queue`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

_BLOCK = re.compile(r"(?m)^-- (name|fragment): (\w+)\n")
_USE = re.compile(r"\{\{(:|\w+\.)?(\w+)\}\}")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


class Query(NamedTuple):
    name: str
    sql: str
    parameters: tuple[str, ...]

    def arguments(self, values: Mapping[str, Any]) -> list[Any]:
        return [values[name] for name in self.parameters]


def load_blocks(package: str) -> dict[str, str]:
    """The text of every block in a package's sql directory, by name, with its fragments expanded."""
    blocks, fragments = _load(package)
    return {name: _expand(text, fragments) for name, text in blocks.items()}


def load_fragments(package: str) -> dict[str, str]:
    fragments = _load(package)[1]
    return {name: _expand(text, fragments) for name, text in fragments.items()}


def _load(package: str) -> tuple[dict[str, str], dict[str, str]]:
    """Blocks and fragments as written in the files."""
    found: dict[str, dict[str, str]] = {"name": {}, "fragment": {}}
    for path in sorted(files(package).joinpath("sql").iterdir(), key=lambda path: path.name):
        if not path.name.endswith(".sql"):
            continue
        _, *parts = _BLOCK.split(path.read_text(encoding="utf-8"))
        for kind, name, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            if name in found[kind]:
                raise ValueError(f"two SQL blocks are named {name}")
            found[kind][name] = text.strip()
    return found["name"], {name: _without_comments(text) for name, text in found["fragment"].items()}


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))


def _expand(text: str, fragments: Mapping[str, str]) -> str:
    def use(match: re.Match[str]) -> str:
        prefix, name = match.groups()
        if name not in fragments:
            raise ValueError(f"there is no SQL fragment {name}")
        expanded = _expand(fragments[name], fragments)
        return ", ".join(f"{prefix}{column.strip()}" for column in expanded.split(",")) if prefix else expanded

    return _USE.sub(use, text)


def numbered(name: str, text: str) -> Query:
    """Convert a block with :name parameters to a statement with $n parameters."""
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
