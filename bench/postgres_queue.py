"""The raw queue on PostgreSQL: asyncpg with one connection and FOR UPDATE SKIP LOCKED."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import asyncpg

from bench.queues import CLAIM_BATCH, INSERT_BATCH, RawRates, payloads

_TABLE = """
DROP TABLE IF EXISTS raw_queue;
CREATE TABLE raw_queue (
  id bigserial PRIMARY KEY,
  state smallint NOT NULL DEFAULT 0,
  payload jsonb NOT NULL,
  created timestamptz DEFAULT now(),
  started timestamptz,
  done timestamptz
);
CREATE INDEX raw_queue_ready ON raw_queue (id) WHERE state = 0;
"""
_INSERT = "INSERT INTO raw_queue (payload) SELECT unnest($1::jsonb[])"
_CLAIM = """
UPDATE raw_queue SET state = 1, started = now() WHERE id IN (
  SELECT id FROM raw_queue WHERE state = 0 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)
RETURNING id, payload
"""
_FINISH = """
UPDATE raw_queue SET state = 2, done = now() FROM unnest($1::bigint[]) AS given(id) WHERE raw_queue.id = given.id
"""

Connect = Callable[[], Awaitable[asyncpg.Connection]]


class PostgresQueue:
    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    async def measure(self, count: int) -> RawRates:
        connection = await self._connect()
        try:
            await connection.execute(_TABLE)
            await connection.execute("CHECKPOINT")
            inserted = await self._insert(connection, count)
            await connection.execute("ANALYZE raw_queue")
            started = time.perf_counter()
            batches = []
            while rows := await connection.fetch(_CLAIM, CLAIM_BATCH):
                batches.append([row[0] for row in rows])
            claimed = time.perf_counter() - started
            started = time.perf_counter()
            for batch in batches:
                await connection.execute(_FINISH, batch)
            finished = time.perf_counter() - started
            await connection.execute("DROP TABLE raw_queue")
            return RawRates(count / inserted, count / claimed, count / finished)
        finally:
            await connection.close()

    async def _insert(self, connection: asyncpg.Connection, count: int) -> float:
        batch = payloads()
        started = time.perf_counter()
        for _ in range(count // INSERT_BATCH):
            await connection.execute(_INSERT, batch)
        return time.perf_counter() - started
