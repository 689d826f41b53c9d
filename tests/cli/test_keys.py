"""`everbeat keys` as an operator types it, and a server on a public address: its first key, TLS, and a revoked key."""

from __future__ import annotations

import asyncio
import re
import ssl
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from everbeat.cli.main import cli
from everbeat.core.errors import EverbeatError
from everbeat.core.keys import is_well_formed
from everbeat.store.sqlite.store import SqliteStore
from everbeat.store.values import AuditLogFilter
from tests.support.certificates import make_certificate
from tests.support.processes import ServerProcess, free_port, wait_until


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/keys.db"


def keys(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["keys", *arguments, "--database-url", url])


def make(url: str, *arguments: str) -> str:
    result = keys(url, "create", *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def listed(url: str, *arguments: str) -> list[list[str]]:
    rows = keys(url, "list", *arguments).stdout.splitlines()
    assert rows[0].split()[:3] == ["ID", "TENANT", "KEY"]
    return [re.split(r"  +", row) for row in rows[1:]]


def test_create_works_on_a_new_database_and_prints_only_the_key(url: str) -> None:
    result = keys(url, "create", "--tenant", "billing", "--scope", "manage")
    assert is_well_formed(result.stdout.strip())
    assert result.stdout.count("\n") == 1
    assert "created the tenant billing" in result.stderr
    assert "shown only once" in result.stderr
    assert result.stdout.strip() not in result.stderr
    again = keys(
        url, "create", "--tenant", "billing", "--scope", "read", "--scope", "work:mail", "--name", "mail", "--expires-in", "30d"
    )
    assert "created the tenant" not in again.stderr
    assert [row[1] for row in listed(url)] == ["billing", "billing"]
    assert listed(url)[1][3:5] == ["mail", "read work:mail"]
    assert re.fullmatch(r"eb_..….{4}", listed(url)[0][2])


def test_each_change_is_in_the_audit_log_without_the_key(url: str, tmp_path: Path) -> None:
    text = make(url, "--tenant", "billing", "--scope", "submit")
    keys(url, "revoke", listed(url)[0][0])

    async def audit_log() -> list[tuple[str, str, str]]:
        store = SqliteStore(tmp_path / "keys.db")
        entries = await store.audit_log_list(None, AuditLogFilter(), before=None, limit=10)
        await store.close()
        return [(entry.action, entry.actor, entry.detail) for entry in entries]

    entries = asyncio.run(audit_log())
    assert [action for action, _, _ in entries] == ["key.revoke", "key.create", "tenant.create"]
    assert all(actor.startswith("cli") for _, actor, _ in entries)
    assert text not in str(entries)
    assert text.encode() not in (tmp_path / "keys.db").read_bytes()


def test_revoke_refuses_the_last_admin_key(url: str) -> None:
    make(url, "--scope", "admin")
    make(url, "--scope", "read")
    admin, reader = listed(url)
    assert keys(url, "revoke", reader[0]).exit_code == 0
    assert [row[0] for row in listed(url)] == [admin[0]]
    assert [row[-1] for row in listed(url, "--all")] == ["valid", "revoked"]
    refused = keys(url, "revoke", admin[0])
    assert "last key with the scope admin" in str(refused.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tenant", "a b", "--scope", "read"], "tenant: must be"),
        (["--tenant", "new", "--scope", "root"], "scope[0]: must be one of admin, manage"),
        (["--all-tenants", "--scope", "manage"], "fleet key"),
        (["--scope", "read", "--expires-in", "30"], "30s"),
    ],
)
def test_an_invalid_key_is_refused_with_a_clear_error(url: str, arguments: list[str], message: str) -> None:
    result = keys(url, "create", *arguments)
    assert isinstance(result.exception, EverbeatError)
    assert message in str(result.exception)
    assert listed(url) == []
    assert "no tenant new" in str(keys(url, "list", "--tenant", "new").exception)


def test_a_fleet_key_is_for_all_tenants(url: str) -> None:
    make(url, "--all-tenants", "--scope", "work")
    assert listed(url)[0][1] == "(all)"


# A server


def test_a_public_server_has_a_first_key_and_tls_and_ends_polls_of_a_revoked_key(tmp_path: Path, url: str) -> None:
    pem, secret = make_certificate(tmp_path)
    port = free_port()
    arguments = ("serve", "--auth", "keys", "--host", "0.0.0.0", "--port", str(port), "--database-url", url)
    with ServerProcess(*arguments, "--tls-certificate", str(pem), "--tls-key", str(secret), folder=tmp_path) as process:
        client = httpx.Client(
            base_url=f"https://127.0.0.1:{port}", verify=ssl.create_default_context(cafile=pem), trust_env=False, timeout=30
        )
        with client:
            _wait_ready(client, process)
            (first,) = re.findall(r"(?m)^(eb_\S{49})$", process.logs())
            assert client.get("/v1/schedules").status_code == 401
            assert client.get("/v1/schedules", headers={"Authorization": f"Bearer {first}"}).status_code == 200
            with pytest.raises(httpx.HTTPError):
                httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False)

            worker = {"Authorization": f"Bearer {make(url, '--scope', 'work')}"}
            (id_,) = [row[0] for row in listed(url) if row[4] == "work"]
            response = asyncio.run(_poll_and_revoke(client, pem, worker, url, id_))
        assert process.terminate() == 0
    assert response.status_code == 401
    assert response.json()["type"].endswith(":unauthenticated")
    assert process.logs().count(first) == 1, "it is shown once, and not logged"
    assert "listening_without_tls" not in process.logs()
    assert worker["Authorization"].split()[1] not in process.logs()


def _wait_ready(client: httpx.Client, process: ServerProcess) -> None:
    def is_ready() -> bool:
        try:
            return client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    wait_until(is_ready, 30, process.logs)


async def _poll_and_revoke(client: httpx.Client, pem: Path, headers: dict[str, str], url: str, id_: str) -> httpx.Response:
    body = {"worker": "w", "queues": ["default"], "wait_seconds": 30}
    context = ssl.create_default_context(cafile=pem)
    async with httpx.AsyncClient(base_url=client.base_url, verify=context, trust_env=False, timeout=40) as poller:
        poll = asyncio.create_task(poller.post("/v1/worker/claim", json=body, headers=headers))
        await asyncio.sleep(0.5)
        result = await asyncio.to_thread(keys, url, "revoke", id_)
        assert result.exit_code == 0, result.output
        async with asyncio.timeout(15):
            return await poll


def test_an_invalid_certificate_is_a_clear_error(tmp_path: Path, url: str) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("not a certificate")
    arguments = ("serve", "--database-url", url, "--tls-certificate", str(bad), "--tls-key", str(bad))
    with ServerProcess(*arguments, "--port", str(free_port()), folder=tmp_path) as process:
        assert process.wait_exit(20) == 1
    assert "tls_certificate" in process.logs()
    assert "Traceback" not in process.logs()
