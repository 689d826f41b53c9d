"""Exactly the committed rows become tasks, once each and in the order of their keys, while relays are killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.outbox.deliveries import run_with_killed_relays, tasks_by_key, write_rows


def deliver(
    outbox_url: str, server_url: str, folder: Path, *, rows: int, kills: int, kill_after_seconds: float, batch_size: int
) -> Callable[[], str]:
    """Write and move rows at the same time, check the tasks, and return the figures."""
    started = time.monotonic()
    with ThreadPoolExecutor(1) as executor:
        writing = executor.submit(write_rows, outbox_url, rows)
        killed = run_with_killed_relays(
            outbox_url,
            server_url,
            folder,
            relays=2,
            kills=kills,
            kill_after_seconds=kill_after_seconds,
            batch_size=batch_size,
        )
        written = writing.result()
        # The relays may have been stopped between two inserts.
        run_with_killed_relays(outbox_url, server_url, folder, relays=1, kills=0, kill_after_seconds=0, batch_size=batch_size)
    seconds = time.monotonic() - started
    tasks = tasks_by_key(folder / "server.db")
    committed = sum(map(len, written.committed.values()))
    assert killed == kills
    assert sum(map(len, tasks.values())) == committed == rows
    assert tasks == written.committed
    return lambda: (
        f"{committed} rows committed and {written.rolled_back} rolled back by 8 writers, {killed} relays killed, "
        f"{len(tasks)} keys, {seconds:.1f} s"
    )


def test_exactly_the_committed_rows_become_tasks_in_order(outbox_url: str, real_server: str, tmp_path: Path) -> None:
    deliver(outbox_url, real_server, tmp_path, rows=4000, kills=3, kill_after_seconds=0.05, batch_size=20)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_100_000_rows_become_tasks_while_relays_are_killed(outbox_url: str, real_server: str, tmp_path: Path) -> None:
    figures = deliver(outbox_url, real_server, tmp_path, rows=100_000, kills=10, kill_after_seconds=2.0, batch_size=500)
    print(figures())
