"""Writers that fill an outbox, relays that are killed, and the check that exactly the committed rows became tasks, in order."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import apsw
import psycopg

from tests.support.processes import ServerProcess, wait_until

ROWS_PER_TRANSACTION = 5
INSERT = "INSERT INTO everbeat_outbox (order_key, task) VALUES (%s, %s)"


class Written(NamedTuple):
    """`committed`: the numbers of the committed rows by key, in the order in which they were committed."""

    committed: dict[str, list[str]]
    rolled_back: int


def write_rows(url: str, rows: int, *, writers: int = 8, keys: int = 200, seed: int = 1) -> Written:
    """Write rows with concurrent transactions, of which a third is rolled back. A few stay open for a while."""
    committed: dict[str, list[str]] = defaultdict(list)
    rolled_back = [0] * writers
    lock = threading.Lock()
    left = [rows]

    def write(writer: int) -> None:
        chosen = random.Random(seed * 1000 + writer)
        with psycopg.connect(url) as connection:
            for number in range(1_000_000):
                with lock:
                    count = min(ROWS_PER_TRANSACTION, left[0])
                    left[0] -= count
                if count <= 0:
                    return
                # Sorted, because transactions with the same keys in another order can deadlock.
                used = sorted(f"key-{chosen.randrange(keys)}" for _ in range(count))
                added = [(key, f"{writer}.{number}.{index}") for index, key in enumerate(used)]
                for key, name in added:
                    connection.execute(
                        INSERT, [key, f'{{"type": "t", "queue": "q", "payload": {{"n": "{name}", "key": "{key}"}}}}']
                    )
                if chosen.random() < 0.01:
                    time.sleep(0.05)
                if chosen.random() < 1 / 3:
                    connection.rollback()
                    rolled_back[writer] += count
                    with lock:
                        left[0] += count
                    continue
                # Under the locks of the keys, so the order of this list is that of the commits.
                with lock:
                    for key, name in added:
                        committed[key].append(name)
                connection.commit()

    with ThreadPoolExecutor(writers) as executor:
        for done in [executor.submit(write, writer) for writer in range(writers)]:
            done.result()
    return Written(dict(committed), sum(rolled_back))


def run_with_killed_relays(
    outbox_url: str,
    server_url: str,
    folder: Path,
    *,
    relays: int,
    kills: int,
    kill_after_seconds: float,
    batch_size: int,
    seed: int = 1,
) -> int:
    """Run relays until the outbox is empty, and kill one after the other while it works. Returns how many were killed."""
    chosen = random.Random(seed)
    arguments = ("relay", "--outbox-url", outbox_url, "--url", server_url, "--batch-size", str(batch_size))

    def start(number: int) -> ServerProcess:
        process = ServerProcess(*arguments, folder=folder, name=f"relay-{number}")
        process.start()
        return process

    running = [start(number) for number in range(relays)]
    killed = 0
    try:
        while killed < kills:
            victim = running.pop(chosen.randrange(len(running)))
            wait_until(lambda victim=victim: "outbox_rows_moved" in victim.logs(), 60, victim.logs)  # type: ignore[misc]
            time.sleep(kill_after_seconds * chosen.uniform(0.5, 1.5))
            assert victim.is_running(), victim.logs()[-2000:]
            victim.kill9()
            killed += 1
            running.append(start(relays + killed))
        wait_until(lambda: _waiting(outbox_url) == 0, 300, lambda: f"an empty outbox: {_waiting(outbox_url)} rows are left")
    finally:
        for process in running:
            process.kill9()
    return killed


def _waiting(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM everbeat_outbox").fetchone()
    assert row is not None
    return int(row[0])


def tasks_by_key(database: Path) -> dict[str, list[str]]:
    """Return the numbers of the server's tasks by key, in the order in which they were created."""
    with apsw.Connection(f"file:{database}?mode=ro", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI) as connection:
        sql = "SELECT payload ->> 'key', payload ->> 'n' FROM tasks ORDER BY created_at, id"
        found: dict[str, list[str]] = defaultdict(list)
        for key, name in connection.execute(sql):
            found[str(key)].append(str(name))
    return dict(found)
