"""Fixtures shared by the client tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.scripted import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer().running() as running:
        yield running


@pytest.fixture(autouse=True)
def _remove_everbeat_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVERBEAT_URL", raising=False)
    monkeypatch.delenv("EVERBEAT_API_KEY", raising=False)
