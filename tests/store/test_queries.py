"""The loader of SQL blocks: fragments with prefixes and with parameters, declarations, and errors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from everbeat.store.queries import load_blocks, load_returns

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that makes a package with one SQL file, and returns the name of the package."""

    def write_package(text: str) -> str:
        package = tmp_path / "sql_of_a_test"
        (package / "sql").mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "sql" / "things.sql").write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, package.name, raising=False)
        return package.name

    return write_package


def test_a_prefix_is_added_to_each_column(write: Write) -> None:
    package = write(
        "-- fragment: pair\n-- Two columns.\na, b\n\n-- name: thing\n-- Insert.\nINSERT ({{pair}}) ({{t.pair}}, {{:pair}})"
    )
    assert load_blocks(package) == {"thing": "-- Insert.\nINSERT (a, b) (t.a, t.b, :a, :b)"}


def test_parameters_are_replaced_by_arguments(write: Write) -> None:
    package = write(
        "-- fragment: span(seconds)\n-- A duration.\nround(seconds)\n\n"
        "-- fragment: ending(at, seconds)\n-- The end.\nleast(at + {{span(seconds)}}, t.at, :seconds, lease_seconds)\n\n"
        "-- name: thing\n-- Select.\nSELECT {{ending(seconds, coalesce(x.at, at))}}"
    )
    # Names that only contain the name of a parameter, or have a prefix, are not parameters.
    ending = "least(seconds + round(coalesce(x.at, at)), t.at, :seconds, lease_seconds)"
    assert load_blocks(package)["thing"] == f"-- Select.\nSELECT {ending}"


def test_an_argument_can_include_a_fragment(write: Write) -> None:
    package = write(
        "-- fragment: lower(one, two)\n-- The lower.\nleast(one, two)\n\n"
        "-- name: thing\n-- Select.\nSELECT {{lower(a, {{lower(b, {{lower(c, d)}})}})}}"
    )
    assert load_blocks(package)["thing"] == "-- Select.\nSELECT least(a, least(b, least(c, d)))"


@pytest.mark.parametrize("use", ["{{lower}}", "{{lower(a)}}", "{{lower(a, b, c)}}", "{{lower(least(a, b))}}", "{{plain(a)}}"])
def test_a_wrong_number_of_arguments_is_refused(write: Write, use: str) -> None:
    package = write(
        "-- fragment: lower(one, two)\n-- The lower.\nleast(one, two)\n\n-- fragment: plain\n-- One column.\na\n\n"
        f"-- name: thing\n-- Select.\nSELECT {use}"
    )
    with pytest.raises(ValueError, match=r"the SQL fragment \w+ has \d parameters, not \d"):
        load_blocks(package)


def test_an_unknown_fragment_is_refused(write: Write) -> None:
    package = write("-- name: thing\n-- Select.\n-- returns: {{columns}}\nSELECT {{columns}}")
    for load in (load_blocks, load_returns):
        with pytest.raises(ValueError, match="no SQL fragment columns"):
            load(package)


@pytest.mark.parametrize(("kind", "plural"), [("name", "blocks"), ("fragment", "fragments")])
def test_a_name_that_is_used_twice_is_refused(write: Write, kind: str, plural: str) -> None:
    package = write(f"-- {kind}: thing\n-- One.\nSELECT 1\n\n-- {kind}: thing\n-- Two.\nSELECT 2")
    with pytest.raises(ValueError, match=f"two SQL {plural} are named thing"):
        load_blocks(package)


def test_a_block_includes_the_declarations_of_fragments(write: Write) -> None:
    package = write(
        "-- fragment: ids\n-- Two ids.\n-- returns: id uuid, tenant_id uuid\nid, tenant_id\n\n"
        "-- fragment: columns\n-- Columns.\n-- returns: {{ids}}, run_at time\n{{ids}}, name, run_at\n\n"
        "-- name: thing\n-- Select.\n-- returns: {{columns}}\n-- returns: is_new bool\nSELECT {{columns}}, is_new\n\n"
        "-- name: other\n-- Delete.\nDELETE FROM things"
    )
    assert load_returns(package) == {"thing": "id uuid, tenant_id uuid, run_at time, is_new bool"}
    assert load_blocks(package)["thing"] == "-- Select.\nSELECT id, tenant_id, name, run_at, is_new"
