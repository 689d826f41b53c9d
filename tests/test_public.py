"""What `import everbeat` costs: the SDK alone, without server, store or HTTP client."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("apsw", "asyncpg", "click", "granian", "httpx", "icalendar", "litestar", "prometheus_client", "structlog", "uvloop")


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_importing_the_sdk_loads_neither_server_nor_drivers() -> None:
    assert loaded_after("import everbeat").isdisjoint(HEAVY)


def test_declaring_loads_no_more() -> None:
    code = """
from everbeat import Everbeat
eb = Everbeat("sqlite:///app.db")
@eb.cron("0 2 * * *", tz="Europe/Berlin")
def nightly(): ...
"""
    assert loaded_after(code).isdisjoint(HEAVY)
