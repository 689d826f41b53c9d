"""The server under attack: a real process that requires keys, with a tenant of the attacker and a tenant of the neighbor."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from everbeat.core.keys import make_key
from tests.attack.probe import ProbeFile
from tests.support.processes import ServerProcess, free_port

SCOPES = ("manage", "submit", "read", "work")
SCHEDULES = 25
_TICK_SECONDS = 1.0
MAX_CONNECTIONS = 2_000

Headers = dict[str, str]


class Target:
    """The server. `keys` are those of the attacker by scope; `neighbor_keys` those of the neighbor."""

    def __init__(self, url: str, folder: Path, *, is_long: bool) -> None:
        self.is_long = is_long
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.admin_key = make_key(secrets.token_bytes(32))
        self.keys: dict[str, str] = {}
        self.neighbor_keys: dict[str, str] = {}
        key_file = folder / "admin.key"
        key_file.touch(0o600)
        key_file.write_text(self.admin_key)
        self.probe = ProbeFile(folder / "probe")
        self.process = ServerProcess(
            *(str(folder / "probe"), "serve", "--database-url", url, "--port", str(self.port), "--auth", "keys"),
            *("--admin-key-file", str(key_file), "--max-connections", str(MAX_CONNECTIONS), "--log-format", "console"),
            *("--blob-url", (folder / "blobs").as_uri(), "--header-deadline-seconds", "5", "--body-deadline-seconds", "5"),
            folder=folder,
            env={"EVERBEAT_ADDRESS_REQUESTS_PER_SECOND": "0"},
            command=(sys.executable, "-m", "tests.attack.probe"),
        )

    def start(self) -> None:
        self.process.start()
        self.process.wait_ready(f"{self.base}/readyz", 40)
        with httpx.Client(base_url=self.base, headers=bearer(self.admin_key), trust_env=False, timeout=15) as client:
            for tenant, keys in (("attacker", self.keys), ("neighbor", self.neighbor_keys)):
                _checked(client.post("/v1/tenants", json={"name": tenant}))
                for scope in SCOPES:
                    made = _checked(client.post(f"/v1/tenants/{tenant}/keys", json={"scopes": [scope], "name": scope}))
                    keys[scope] = made["key"]
        self._register_neighbor()

    def close(self) -> None:
        self.process.kill9()

    def _register_neighbor(self) -> None:
        """Register schedules that tick every second, spread over the second."""
        anchor = datetime(2026, 1, 1, tzinfo=UTC)
        items = [
            {
                "name": f"tick-{number}",
                "every_seconds": _TICK_SECONDS,
                "anchor": (anchor + timedelta(seconds=number / SCHEDULES)).isoformat(),
                "target": {"kind": "worker", "type": "tick"},
                "overlap": "allow",
                "catch_up": "all",
            }
            for number in range(SCHEDULES)
        ]
        headers = bearer(self.neighbor_keys["manage"])
        with httpx.Client(base_url=self.base, headers=headers, trust_env=False, timeout=15) as client:
            _checked(client.post("/v1/schedules/batch", json={"schedules": items}))

    # For attacks

    def client(self, scope: str | None = None, **options: Any) -> httpx.AsyncClient:
        """Return a client of the attacker with the key of this scope, or without a key."""
        headers = {} if scope is None else bearer(self.keys[scope])
        return httpx.AsyncClient(base_url=self.base, headers=headers, trust_env=False, timeout=30, **options)

    def head(self, method: str, path: str, scope: str | None = None, headers: Mapping[str, str] | None = None) -> bytes:
        """Return the head of a request, for `connect`, with the empty line at its end."""
        lines = {"Host": "localhost", **({} if scope is None else bearer(self.keys[scope])), **(headers or {})}
        return f"{method} {path} HTTP/1.1\r\n".encode() + b"".join(f"{k}: {v}\r\n".encode() for k, v in lines.items()) + b"\r\n"

    @contextlib.asynccontextmanager
    async def connect(self, *, read_limit: int = 65_536) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Open a connection for raw bytes. It is aborted at the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=read_limit)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    # What the attacks must not affect

    async def health_seconds(self) -> float:
        """Return how long a request for /healthz takes on a new connection."""
        started = time.monotonic()
        async with self.client() as client:
            response = await client.get("/healthz")
        assert response.status_code == 200, response.text
        return time.monotonic() - started

    async def neighbor_lags(self, begins: datetime, ends: datetime) -> list[float]:
        """Return the lags, in milliseconds, of the neighbor's ticks in a window. Every tick of it must have fired."""
        window: dict[str, str | int] = {"from": begins.isoformat(), "to": ends.isoformat(), "limit": 1000}
        headers = bearer(self.neighbor_keys["read"])
        lags: list[float] = []
        async with httpx.AsyncClient(base_url=self.base, headers=headers, trust_env=False, timeout=30) as client:
            for number in range(SCHEDULES):
                ticks = _checked(await client.get(f"/v1/schedules/tick-{number}/ticks", params=window))["items"]
                assert {tick["outcome"] for tick in ticks} <= {"fired"}, ticks
                lags += [tick["lag_ms"] for tick in ticks]
        return lags

    def megabytes(self) -> float:
        """Return the memory of the server and its child processes."""
        return sum(_resident_megabytes(pid) for pid in _with_children(self.process.pid))


def bearer(key: str) -> Headers:
    return {"Authorization": f"Bearer {key}"}


def _checked(response: httpx.Response) -> Any:
    assert response.is_success, f"{response.request.url}: {response.status_code} {response.text}"
    return response.json()


def _with_children(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                found += _with_children(int(child))
    return found


def _resident_megabytes(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS:")), 0.0)
