"""Runs the Python code of the docs: the blocks of a page in order, on a private database."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everbeat import Everbeat

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(?ms)^```python\n(.*?)^```")
TESTED_BY_PYTEST = ROOT / "docs/howto/test-your-tasks.md"
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if _BLOCK.search(page.read_text(encoding="utf-8")) and page != TESTED_BY_PYTEST
]


def code_of(page: Path) -> str:
    return "\n\n".join(_BLOCK.findall(page.read_text(encoding="utf-8")))


def run(page: Path) -> dict[str, Any]:
    """Run the blocks of a page and return the names that they define."""
    names: dict[str, Any] = {"__name__": page.stem}
    try:
        exec(compile(code_of(page), str(page), "exec", dont_inherit=True), names)
    finally:
        for made in names.values():
            if isinstance(made, Everbeat):
                made.close()
    return names


@pytest.fixture(autouse=True)
def _use_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERBEAT_URL", f"sqlite:///{tmp_path}/everbeat.db")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_code_of_a_page_runs(page: Path) -> None:
    run(page)


def test_the_example_tests_of_the_docs_pass(tmp_path: Path) -> None:
    (tmp_path / "test_page.py").write_text(code_of(TESTED_BY_PYTEST), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "test_page.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout


def test_the_examples_of_exactly_once_effects_are_correct() -> None:
    names = run(ROOT / "docs/howto/idempotency-and-exactly-once-effects.md")
    credit, write_statement = names["credit"], names["write_statement"]
    once = SimpleNamespace(task_id="task-1", fence=1)
    assert credit(once, account="ann", amount=10) == "credited"
    assert credit(once, account="ann", amount=10) == "done by an earlier attempt"
    assert credit(SimpleNamespace(task_id="task-2", fence=1), account="ann", amount=5) == "credited"
    assert query("SELECT balance FROM accounts") == 15

    write_statement(SimpleNamespace(task_id="task-3", fence=2), account="ann")
    credit(SimpleNamespace(task_id="task-4", fence=1), account="ann", amount=1)
    write_statement(SimpleNamespace(task_id="task-3", fence=1), account="ann")
    assert query("SELECT text FROM statements") == "ann: 15"
    write_statement(SimpleNamespace(task_id="task-3", fence=3), account="ann")
    assert query("SELECT text FROM statements") == "ann: 16"


def query(statement: str) -> Any:
    with closing(sqlite3.connect("bank.db")) as bank:
        return bank.execute(statement).fetchone()[0]


def test_the_example_of_tests_passes_outside_the_repository_and_without_plugins(tmp_path: Path) -> None:
    for path in (ROOT / "examples" / "testing").glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
