"""The raw queue on SQLite: apsw with one connection and a transaction for each batch."""

from __future__ import annotations

import time
from collections.abc import Callable

import apsw

from bench.queues import CLAIM_BATCH, INSERT_BATCH, RawRates, payloads

_TABLE = """
DROP TABLE IF EXISTS raw_queue;
CREATE TABLE raw_queue (
  id INTEGER PRIMARY KEY,
  state INTEGER NOT NULL DEFAULT 0,
  payload TEXT NOT NULL,
  created INTEGER,
  started INTEGER,
  done INTEGER
);
CREATE INDEX raw_queue_ready ON raw_queue (id) WHERE state = 0;
"""
_INSERT = "INSERT INTO raw_queue (payload, created) VALUES (?, unixepoch())"
_CLAIM = """
UPDATE raw_queue SET state = 1, started = unixepoch() WHERE id IN (
  SELECT id FROM raw_queue WHERE state = 0 ORDER BY id LIMIT ?)
RETURNING id, payload
"""
_FINISH = "UPDATE raw_queue SET state = 2, done = unixepoch() WHERE id = ?"


class SqliteQueue:
    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        self._connect = connect

    async def measure(self, count: int) -> RawRates:
        connection = self._connect()
        try:
            connection.execute(_TABLE)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            inserted = self._insert(connection, count)
            connection.execute("ANALYZE raw_queue")
            started = time.perf_counter()
            batches = []
            while rows := connection.execute(_CLAIM, (CLAIM_BATCH,)).fetchall():
                batches.append([(row[0],) for row in rows])
            claimed = time.perf_counter() - started
            started = time.perf_counter()
            for batch in batches:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(_FINISH, batch)
                connection.execute("COMMIT")
            finished = time.perf_counter() - started
            connection.execute("DROP TABLE raw_queue")
            return RawRates(count / inserted, count / claimed, count / finished)
        finally:
            connection.close()

    def _insert(self, connection: apsw.Connection, count: int) -> float:
        batch = [(text,) for text in payloads()]
        started = time.perf_counter()
        for _ in range(count // INSERT_BATCH):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_INSERT, batch)
            connection.execute("COMMIT")
        return time.perf_counter() - started
