"""Loads named SQL blocks. A block is `-- name: task_claim`, a comment that says what it does, and the statement.

Parameters are written `:name` in both dialects. For PostgreSQL they become $1, $2, … in order of appearance. The text
`:name` must therefore not occur in a comment.

A fragment is `-- fragment: task_columns`, a comment, and a list of columns. Blocks and other fragments of the package include
it as `{{task_columns}}`. A prefix is added to each column: `{{t.task_columns}}` becomes `t.id, t.queue`, and
`{{:task_columns}}` becomes `:id, :queue`.

A fragment can also be an expression with parameters: `-- fragment: lease_end(at, seconds)`. It is included as
`{{lease_end(m.at, t.lease_seconds)}}`, and each argument is inserted as it is written. An argument can include a fragment.

`-- returns: id uuid, run_at time` declares the types of columns that a block returns; there can be several such lines. After a
fragment, the line declares the columns of the fragment, and blocks include the declaration: `-- returns: {{task_columns}}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

_BLOCK = re.compile(r"(?m)^-- (name|fragment): (\w+)(?:\(([\w, ]+)\))?\n")
_RETURNS = re.compile(r"(?m)^-- returns: (.+)\n")
_USE = re.compile(r"\{\{(:|\w+\.)?(\w+)(?:\(([^{}]+)\))?\}\}")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


class Query(NamedTuple):
    name: str
    sql: str
    parameters: tuple[str, ...]

    def arguments(self, values: Mapping[str, Any]) -> list[Any]:
        return [values[name] for name in self.parameters]


class _Fragment(NamedTuple):
    text: str
    parameters: tuple[str, ...] = ()


class _Sources(NamedTuple):
    """Blocks and fragments as written in the files, without their declarations."""

    blocks: dict[str, str]
    fragments: dict[str, _Fragment]
    block_returns: dict[str, str]
    fragment_returns: dict[str, _Fragment]


def load_blocks(package: str) -> dict[str, str]:
    """The text of every block in a package's sql directory, by name, with its fragments expanded."""
    sources = _load(package)
    return {name: _expand(text, sources.fragments) for name, text in sources.blocks.items()}


def load_returns(package: str) -> dict[str, str]:
    """The declared columns of every block that declares any, by name, with the declarations of fragments expanded."""
    sources = _load(package)
    return {name: _expand(text, sources.fragment_returns) for name, text in sources.block_returns.items()}


def _load(package: str) -> _Sources:
    sources = _Sources({}, {}, {}, {})
    for path in sorted(files(package).joinpath("sql").iterdir(), key=lambda path: path.name):
        if not path.name.endswith(".sql"):
            continue
        _, *parts = _BLOCK.split(path.read_text(encoding="utf-8"))
        for kind, name, parameters, text in zip(*(parts[start::4] for start in range(4)), strict=True):
            if name in (sources.blocks if kind == "name" else sources.fragments):
                raise ValueError(f"two SQL {'blocks' if kind == 'name' else 'fragments'} are named {name}")
            returns = ", ".join(_RETURNS.findall(text))
            body = _RETURNS.sub("", text).strip()
            if kind == "name":
                sources.blocks[name] = body
                if returns:
                    sources.block_returns[name] = returns
            else:
                sources.fragments[name] = _Fragment(_without_comments(body), tuple(re.findall(r"\w+", parameters or "")))
                if returns:
                    sources.fragment_returns[name] = _Fragment(returns)
    return sources


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))


def _expand(text: str, fragments: Mapping[str, _Fragment]) -> str:
    def use(match: re.Match[str]) -> str:
        prefix, name, arguments = match.groups()
        if name not in fragments:
            raise ValueError(f"there is no SQL fragment {name}")
        expanded = _expand(_with_arguments(name, fragments[name], arguments), fragments)
        return ", ".join(f"{prefix}{column.strip()}" for column in expanded.split(",")) if prefix else expanded

    while _USE.search(text):  # the pattern matches a use without a use in its arguments, so the inner ones are expanded first
        text = _USE.sub(use, text)
    return text


def _with_arguments(name: str, fragment: _Fragment, text: str | None) -> str:
    """The text of a fragment with its parameters replaced by the arguments."""
    arguments = _split_arguments(text) if text else []
    if len(arguments) != len(fragment.parameters):
        raise ValueError(f"the SQL fragment {name} has {len(fragment.parameters)} parameters, not {len(arguments)}")
    if not arguments:
        return fragment.text
    values = dict(zip(fragment.parameters, arguments, strict=True))
    return re.sub(rf"(?<![\w.:])(?:{'|'.join(values)})\b", lambda match: values[match[0]], fragment.text)


def _split_arguments(text: str) -> list[str]:
    """Split at the commas that are not inside parentheses."""
    arguments, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            arguments.append("")
        else:
            arguments[-1] += character
    return [argument.strip() for argument in arguments]


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
