"""The SQLite file is private from its creation on."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import apsw
import pytest

from everbeat.store.sqlite.store import SqliteStore


async def test_the_file_is_private_before_sqlite_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    connect = apsw.Connection

    def open_connection(path: str, *more: Any) -> apsw.Connection:
        modes.append(stat.S_IMODE(Path(path).stat().st_mode))
        return connect(path, *more)

    monkeypatch.setattr("everbeat.store.sqlite.connections.apsw.Connection", open_connection)
    store = SqliteStore(tmp_path / "everbeat.db")
    await store.migrate()
    assert set(modes) == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("everbeat.db*")} == {0o600}
    await store.close()


async def test_the_mode_of_an_existing_file_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "everbeat.db"
    file.touch(0o640)
    file.chmod(0o640)
    store = SqliteStore(file)
    await store.migrate()
    await store.close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
