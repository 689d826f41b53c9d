from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from tests.support import postgres
from tests.support.postgres import PostgresAdmin, PostgresServer
from tests.support.processes import is_alive, open_to_all, public_temp, wait_until


async def test_each_test_gets_a_new_database(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute("CREATE TABLE only_once (id int)")
        assert await connection.fetchval("SHOW timezone") == "UTC"
    finally:
        await connection.close()


async def test_the_database_is_dropped_even_when_a_connection_is_left_open(
    postgres_server: PostgresAdmin, postgres_template: str
) -> None:
    name = postgres_server.create_database(template=postgres_template)
    connection = await asyncpg.connect(postgres_server.url(name))
    postgres_server.drop_database(name)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await connection.fetchval("SELECT 1")
    connection.terminate()


def test_data_survives_both_stop_modes(private_postgres: PostgresServer) -> None:
    private_postgres.execute("CREATE TABLE kept (id int)")
    private_postgres.restart("fast")
    private_postgres.execute("INSERT INTO kept VALUES (1)")
    private_postgres.restart("immediate")
    assert private_postgres.fetch_value("SELECT count(*) FROM kept") == 1
    assert "database system was not properly shut down" in private_postgres.logs()


def test_nothing_is_left_when_the_test_process_is_killed(postgres_binaries: Path) -> None:
    program = (
        "import time\n"
        "from tests.support.postgres import PostgresServer\n"
        "server = PostgresServer(); server.start()\n"
        "print(server.pid, server.folder, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        pid, folder = victim.stdout.readline().split()
        assert Path(folder).is_dir()
        victim.send_signal(signal.SIGKILL)
    wait_until(lambda: not Path(folder).exists(), 10, "data folder removed")
    assert not is_alive(int(pid))


def test_binaries_in_a_private_folder_are_copied_to_a_readable_one(
    postgres_binaries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root runs PostgreSQL as another user")
    package = next(parent for parent in postgres_binaries.parents if parent.name == postgres.PACKAGE)
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    shutil.copytree(package / "pginstall18", private / postgres.PACKAGE / "pginstall18", symlinks=True)
    if (libraries := package.with_name(f"{postgres.PACKAGE}.libs")).exists():
        shutil.copytree(libraries, private / libraries.name)
    cache = public_temp() / f"everbeat-tests-copy-{os.getpid()}"
    cache.mkdir(mode=0o755)
    monkeypatch.setattr(postgres, "cache_folder", lambda: cache)
    try:
        copy = postgres._public_copy(private / postgres.PACKAGE / "pginstall18")
        assert open_to_all(copy / "bin" / "initdb")
        assert postgres._public_copy(private / postgres.PACKAGE / "pginstall18") == copy
        monkeypatch.setattr(postgres, "find_binaries", lambda: copy / "bin")
        with PostgresServer() as server:
            assert re.match(r"18\.", server.fetch_value("SHOW server_version"))
        assert [path.name.startswith(postgres.PACKAGE) for path in cache.iterdir()] == [True]
    finally:
        shutil.rmtree(cache)
