"""Each word of docs/concepts/vocabulary.md has one meaning, and names in the code use these words."""

from __future__ import annotations

import ast
import importlib
import io
import re
import tokenize
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "everbeat"
PAGE = ROOT / "docs" / "concepts" / "vocabulary.md"
PYTHON_FILES = sorted([*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")])
SQL_FILES = sorted(SOURCE.rglob("*.sql"))
PACKAGE_FILES = [path for path in PYTHON_FILES if path.is_relative_to(SOURCE)]

NO_ENTRY = "—"
BANNED = {
    "bell", "chore", "crew", "dealer", "door", "gate", "heart", "room", "seat", "settle", "trail", "turn", "turnstile",
}  # fmt: skip
ALLOWED_NAMES = ("startup_gate", "StartupGate", "STARTUP_GATE")

_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_CREATE_TABLE = re.compile(r"(?i)\bCREATE TABLE (?:IF NOT EXISTS )?(\w+)")
_DROP_TABLE = re.compile(r"(?i)\bDROP TABLE (?:IF EXISTS )?(\w+)")
_RENAME_TABLE = re.compile(r"(?i)\bALTER TABLE (\w+)\s+RENAME TO (\w+)")


class Entry(NamedTuple):
    word: str
    meaning: str
    class_path: str
    table: str


def read_entries() -> list[Entry]:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert rows[0] == "| word | meaning | class | table |"
    return [Entry(*(cell.strip() for cell in row.strip("|").split("|"))) for row in rows[2:]]


ENTRIES = read_entries()


def tables_of(dialect: str) -> set[str]:
    """Return the tables that exist after all migrations of a dialect, read from their SQL."""
    tables: set[str] = set()
    for path in sorted((SOURCE / "store" / dialect / "migrations").glob("*.sql")):
        for statement in path.read_text(encoding="utf-8").split(";"):
            tables |= set(_CREATE_TABLE.findall(statement))
            tables -= set(_DROP_TABLE.findall(statement))
            for old, new in _RENAME_TABLE.findall(statement):
                tables = tables - {old} | {new}
    return tables


def identifiers_of(path: Path) -> set[str]:
    """Return every identifier in a Python or SQL file, and the file's name without the extension."""
    names = {path.stem}
    if path.suffix == ".sql":
        return names | set(re.findall(r"[A-Za-z_]\w*", re.sub(r"--.*", "", path.read_text(encoding="utf-8"))))
    with tokenize.open(path) as file:
        tokens = tokenize.generate_tokens(io.StringIO(file.read()).readline)
        names |= {token.string for token in tokens if token.type == tokenize.NAME}
    return names


def words_of(identifier: str) -> list[str]:
    """Return the words of a snake_case or CamelCase identifier, in lower case."""
    return [part.lower() for part in _PART.findall(identifier)]


def is_banned(identifier: str) -> bool:
    for name in ALLOWED_NAMES:
        identifier = identifier.replace(name, "")
    return any(word in BANNED or word.removesuffix("s") in BANNED for word in words_of(identifier))


@pytest.mark.parametrize(
    "name", ["Room", "api_rooms", "DOOR", "make_room", "SeatMap", "HTTPGate", "heart", "_bell2", "open_gates"]
)
def test_a_banned_word_in_a_name_is_found(name: str) -> None:
    assert is_banned(name)


@pytest.mark.parametrize(
    "name", ["startup_gate", "StartupGate", "heartbeat", "LeaseHeartbeat", "trailing", "aggregate", "search"]
)
def test_a_word_that_only_contains_a_banned_word_is_allowed(name: str) -> None:
    assert not is_banned(name)


def test_no_word_is_listed_twice() -> None:
    words = Counter(word.strip().lower() for entry in ENTRIES for word in entry.word.split(","))
    assert len(words) > 50
    assert [word for word, count in words.items() if count > 1] == []


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.word for entry in ENTRIES])
def test_the_class_and_the_table_of_a_word_exist(entry: Entry) -> None:
    assert entry.meaning
    if entry.class_path != NO_ENTRY:
        found = re.fullmatch(r"`(everbeat[\w.]*)\.(\w+)`", entry.class_path)
        assert found, entry.class_path
        module_name, class_name = found.groups()
        assert hasattr(importlib.import_module(module_name), class_name)
    if entry.table != NO_ENTRY:
        found = re.fullmatch(r"`(\w+)`", entry.table)
        assert found, entry.table
        for dialect in ("sqlite", "postgres"):
            assert found[1] in tables_of(dialect), dialect


def test_no_two_public_classes_have_the_same_name() -> None:
    classes = Counter(
        node.name
        for path in PACKAGE_FILES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert len(classes) > 100
    assert [name for name, count in classes.items() if count > 1] == []


def test_limits_begin_with_max() -> None:
    names = {name for path in PACKAGE_FILES for name in identifiers_of(path)}
    assert [name for name in names if re.match(r"_?(MOST|LARGEST|LONGEST)_", name)] == []


def test_no_name_contains_a_banned_word() -> None:
    files = [*PYTHON_FILES, *SQL_FILES]
    found = {f"{path.relative_to(ROOT)}: {name}" for path in files for name in identifiers_of(path) if is_banned(name)}
    folders = {path.parent for path in files if is_banned(path.parent.name)}
    assert (sorted(found), sorted(folders)) == ([], [])
