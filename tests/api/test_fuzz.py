"""Fuzzing of the API: schemathesis generates requests from the OpenAPI document and validates every response against it.

A short form is part of every test run; the long form is `make fuzz`. All checks are enabled, with two exceptions:
positive_data_acceptance is replaced by a variant that excludes what a schema cannot predict (fuzz_hooks.py), and /v1/events is
excluded, because it never ends. It has separate tests.
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
MIN_CASES = 5000
# One thread: hypothesis parses lambdas, and ast.parse of Python 3.11 fails if another thread parses too (gh-106905).
SHORT = ("--phases", "examples,coverage,stateful", "--no-shrink", "--workers", "1")


@pytest.fixture
def key(tmp_path: Path) -> str:
    text = make_key(secrets.token_bytes(SECRET_BYTES))
    (tmp_path / "admin.key").write_text(text, encoding="utf-8")
    (tmp_path / "admin.key").chmod(0o600)
    return text


@pytest.fixture
def address(tmp_path: Path, key: str) -> Iterator[str]:
    """The URL of a server that requires keys and has no request limits."""
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
    """Create a dead letter, because generated requests do not."""
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}) as client:
        client.post("/v1/tasks", json={"type": "work", "queue": "failing"}).raise_for_status()
        claimed = client.post("/v1/worker/claim", json={"worker": "w", "queues": ["failing"]}).json()["tasks"]
        failures = [
            {"id": task["id"], "fence": task["fence"], "error": {"message": "no"}, "retryable": False} for task in claimed
        ]
        client.post("/v1/worker/fail", json={"worker": "w", "failures": failures}).raise_for_status()


def run(address: str, key: str, folder: Path, *options: str) -> int:
    """Run schemathesis and return the number of cases. Fail with its output if a case fails."""
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


@pytest.mark.timeout(400)
def test_the_server_conforms_to_its_document(address: str, key: str, tmp_path: Path) -> None:
    """The short form: the same requests in each run, from examples, edge cases of the schemas, and chains of links."""
    cases = run(address, key, tmp_path, "--seed", str(SEED), "--generation-deterministic", "--max-examples", "3", *SHORT)
    assert cases > 1000


@pytest.mark.fuzz
@pytest.mark.timeout(1800)
def test_the_server_conforms_to_its_document_for_many_generated_requests(address: str, key: str, tmp_path: Path) -> None:
    cases = run(address, key, tmp_path, "--max-examples", str(LONG_EXAMPLES))
    print(f"{cases} cases")
    assert cases >= MIN_CASES
