"""The API against its own document: schemathesis makes up thousands of requests from it, and holds every answer against it.

The short form is part of every run of the tests, the long one is `make fuzz`. All checks are on. Two are narrowed:
positive_data_acceptance is replaced by one that knows what no schema can foretell (fuzz_hooks.py); /v1/events is left out,
because it never ends, and has tests of its own.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from everbeat.core.keys import SECRET_BYTES, make_key
from tests.support.processes import ServerProcess, free_port

ROOT = Path(__file__).parents[2]
SEED = 20261118
LONG_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))
FEWEST_CASES = 5000
SHORT = ("--phases", "examples,coverage,stateful", "--no-shrink", "--workers", "2")


@pytest.fixture
def key(tmp_path: Path) -> str:
    text = make_key(secrets.token_bytes(SECRET_BYTES))
    (tmp_path / "admin.key").write_text(text, encoding="utf-8")
    (tmp_path / "admin.key").chmod(0o600)
    return text


@pytest.fixture
def address(tmp_path: Path, key: str) -> Iterator[str]:
    """A server with keys, and without limits on how often they may ask."""
    port = free_port()
    limits = ("key", "address")
    flags = [flag for one in limits for flag in (f"--{one}-requests-per-second", "0")] + ["--bad-keys-per-second", "0"]
    database = f"sqlite:///{tmp_path / 'fuzz.sqlite'}"
    with ServerProcess(
        *("serve", "--port", str(port), "--database-url", database, "--auth", "keys"),
        *("--admin-key-file", str(tmp_path / "admin.key"), *flags),
        folder=tmp_path,
        name="fuzzed",
    ) as server:
        server.wait_ready(f"http://127.0.0.1:{port}/readyz", 40)
        make_dead_letter(f"http://127.0.0.1:{port}", key)
        yield f"http://127.0.0.1:{port}"
        assert "Traceback" not in server.logs(), server.logs()[-5000:]


def make_dead_letter(address: str, key: str) -> None:
    """A dead letter: requests that are made up do not get that far."""
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}) as client:
        client.post("/v1/tasks", json={"type": "work", "queue": "graves"}).raise_for_status()
        claimed = client.post("/v1/worker/claim", json={"worker": "w", "queues": ["graves"]}).json()["tasks"]
        failures = [
            {"id": task["id"], "fence": task["fence"], "error": {"message": "no"}, "retryable": False} for task in claimed
        ]
        client.post("/v1/worker/fail", json={"worker": "w", "failures": failures}).raise_for_status()


def run(address: str, key: str, folder: Path, *options: str) -> int:
    """How many cases there were; fails with what schemathesis says if any failed."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{address}/v1/openapi.json"),
        *("--header", f"Authorization: Bearer {key}", "--exclude-path", "/v1/events"),
        *("--checks", "all", "--exclude-checks", "positive_data_acceptance", "--no-color"),
        *options,
    ]
    paths = os.pathsep.join([str(ROOT), *sys.path])
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.api.fuzz_hooks", "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-3000:]}"
    print(done.stdout[-1500:])
    found = re.search(r"(\d+) generated", done.stdout)
    assert found is not None, done.stdout[-2000:]
    return int(found[1])


def test_the_document_and_the_server_agree(address: str, key: str, tmp_path: Path) -> None:
    """The short form: the same requests each time, those that examples and edges of the schemas make, and chains of links."""
    cases = run(address, key, tmp_path, "--seed", str(SEED), "--generation-deterministic", "--max-examples", "3", *SHORT)
    assert cases > 1000


@pytest.mark.fuzz
@pytest.mark.timeout(1800)
def test_the_document_and_the_server_agree_on_many_made_up_requests(address: str, key: str, tmp_path: Path) -> None:
    cases = run(address, key, tmp_path, "--max-examples", str(LONG_EXAMPLES))
    print(f"{cases} cases")
    assert cases >= FEWEST_CASES
