"""What `import everbeat` and `everbeat --help` load, and how long they take."""

from __future__ import annotations

import resource
import subprocess
import sys

import click
import pytest

import everbeat
from everbeat.cli.main import COMMANDS, cli

HEAVY = frozenset(
    {
        "aiohttp",
        "apsw",
        "asyncpg",
        "dateutil",
        "httptools",
        "httpx",
        "icalendar",
        "litestar",
        "obstore",
        "prometheus_client",
        "starlette",
        "structlog",
        "uuid_utils",
        "uvicorn",
        "uvloop",
    }
)
HELP = """
import sys
from everbeat.cli.main import main
sys.argv, stdout, sys.stdout = ["everbeat", "--help"], sys.stdout, sys.stderr
try:
    main()
except SystemExit:
    pass
sys.stdout = stdout
"""
DECLARE = """
from everbeat import Everbeat
eb = Everbeat("sqlite:///app.db")
@eb.cron("0 2 * * *", tz="Europe/Berlin")
def nightly(): ...
"""


# The processor time of `import asyncio` in a new process, on a machine on which the targets hold.
_IMPORT_ASYNCIO_SECONDS = 0.05


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def cpu_seconds_of(code: str) -> float:
    """Return the shortest processor time of five runs, each in a new process."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


@pytest.mark.parametrize("code", ["import everbeat", "from everbeat import *", DECLARE], ids=["import", "names", "declare"])
def test_the_sdk_loads_neither_the_server_nor_an_http_client(code: str) -> None:
    assert loaded_after(code) & (HEAVY | {"click"}) == set()


def test_help_loads_no_command() -> None:
    assert loaded_after(HELP) & (HEAVY | {"asyncio", "msgspec"}) == set()


@pytest.mark.parametrize(
    ("code", "target_seconds"),
    [("import everbeat", 0.08), ("from everbeat import Everbeat", 0.08), (HELP, 0.15)],
    ids=["import", "app", "help"],
)
def test_start_up_time(code: str, target_seconds: float) -> None:
    """The limit is four times the target, because the tests share the machine. It is higher on a machine on which
    `import asyncio` takes longer, because it is slow or busy."""
    slowness = max(1.0, cpu_seconds_of("import asyncio") / _IMPORT_ASYNCIO_SECONDS)
    assert cpu_seconds_of(code) <= 4 * target_seconds * slowness


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_list_shows_the_first_sentence_of_each_command(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert COMMANDS[name].summary.removesuffix(".") == command.get_short_help_str(200).removesuffix(".")


@pytest.mark.parametrize("name", everbeat.__all__)
def test_each_public_name_is_listed_and_imported_on_use(name: str) -> None:
    assert name in dir(everbeat)
    assert getattr(everbeat, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        everbeat.Nothing  # type: ignore[attr-defined]  # noqa: B018
