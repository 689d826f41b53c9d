"""The outbox in the transactions of every supported driver: committed rows exist, rolled back rows do not."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from everbeat import Everbeat
from everbeat.client.errors import InvalidArguments
from everbeat.core.errors import InvalidInput
from everbeat.outbox import Outbox
from everbeat.outbox.statements import UnknownConnection

OUTBOX = Outbox()


def rows_of(url: str) -> list[tuple[str, dict[str, Any], str | None]]:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT id, task, order_key FROM everbeat_outbox ORDER BY position").fetchall()
    return [(str(id_), task, key) for id_, task, key in found]


def check(url: str, id_: UUID) -> None:
    assert [(row, task["type"], task["payload"], key) for row, task, key in rows_of(url)] == [
        (str(id_), "receipt", {"order": 1, "note": "100% :x"}, "customer-7")
    ]


PAYLOAD = {"order": 1, "note": "100% :x"}


@pytest.mark.parametrize("use_cursor", [False, True])
def test_psycopg(outbox_url: str, use_cursor: bool) -> None:
    with psycopg.connect(outbox_url) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")
        target = connection.cursor() if use_cursor else connection
        id_ = OUTBOX.submit(target, "receipt", PAYLOAD, order_key="customer-7")
        assert rows_of(outbox_url) == []
        connection.commit()
        OUTBOX.submit(target, "receipt")
        connection.rollback()
    check(outbox_url, id_)


async def test_async_psycopg(outbox_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(outbox_url) as connection:
        id_ = await OUTBOX.submit_async(connection, "receipt", PAYLOAD, order_key="customer-7")
        await connection.commit()
        await OUTBOX.submit_async(connection, "receipt")
        await connection.rollback()
    check(outbox_url, id_)


@pytest.mark.parametrize("use_pool", [False, True])
async def test_asyncpg(outbox_url: str, use_pool: bool) -> None:
    async with asyncpg.create_pool(outbox_url, min_size=1, max_size=1) as pool, pool.acquire() as acquired:
        connection = acquired if use_pool else await asyncpg.connect(outbox_url)
        async with connection.transaction():
            id_ = await OUTBOX.submit_async(connection, "receipt", PAYLOAD, order_key="customer-7")
        transaction = connection.transaction()
        await transaction.start()
        await OUTBOX.submit_async(connection, "receipt")
        await transaction.rollback()
        if not use_pool:
            await connection.close()
    check(outbox_url, id_)


def test_sqlalchemy(outbox_url: str) -> None:
    engine = create_engine(outbox_url.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session, session.begin():
        session.execute(text("INSERT INTO orders VALUES (1)"))
        id_ = OUTBOX.submit(session, "receipt", PAYLOAD, order_key="customer-7")
        assert rows_of(outbox_url) == []
    with engine.connect() as connection:
        OUTBOX.submit(connection, "receipt")
        connection.rollback()
    engine.dispose()
    check(outbox_url, id_)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_async_sqlalchemy(outbox_url: str, driver: str) -> None:
    engine = create_async_engine(outbox_url.replace("postgresql://", f"postgresql+{driver}://"))
    async with AsyncSession(engine) as session, session.begin():
        id_ = await OUTBOX.submit_async(session, "receipt", PAYLOAD, order_key="customer-7")
    async with engine.connect() as connection:
        await OUTBOX.submit_async(connection, "receipt")
        await connection.rollback()
    await engine.dispose()
    check(outbox_url, id_)


DJANGO = """
import json, sys
import django
from django.conf import settings
from urllib.parse import urlsplit

url = urlsplit(sys.argv[1])
database = {"NAME": url.path[1:], "USER": url.username, "HOST": url.hostname, "PORT": url.port}
settings.configure(USE_TZ=True, DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **database}})
django.setup()
from django.db import connection, connections, transaction
from everbeat.outbox import Outbox

with transaction.atomic():
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (1)")
    id_ = Outbox().submit(connection, "receipt", json.loads(sys.argv[2]), order_key="customer-7")
try:
    with transaction.atomic():
        Outbox().submit(connections["default"], "receipt")
        raise ZeroDivisionError
except ZeroDivisionError:
    print(id_)
"""


def test_django(outbox_url: str) -> None:
    command = [sys.executable, "-c", DJANGO, outbox_url, json.dumps(PAYLOAD)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    check(outbox_url, UUID(done.stdout.strip()))


async def test_the_wrong_kind_of_connection_is_a_clear_error(outbox_url: str) -> None:
    connection = await asyncpg.connect(outbox_url)
    with pytest.raises(UnknownConnection, match="await"):
        OUTBOX.submit(connection, "receipt")
    await connection.close()
    with psycopg.connect(outbox_url) as sync, pytest.raises(UnknownConnection, match="without _async"):
        await OUTBOX.submit_async(sync, "receipt")
    with pytest.raises(UnknownConnection, match="a str is not supported; pass a connection or cursor of psycopg 3"):
        OUTBOX.submit("postgresql://x", "receipt")
    async with await psycopg.AsyncConnection.connect(outbox_url) as other:
        with pytest.raises(UnknownConnection, match="await"):
            OUTBOX.submit(other, "receipt")


def test_the_options_of_a_declared_task_apply(outbox_url: str) -> None:
    eb = Everbeat("http://127.0.0.1:1", name="shop")

    @eb.task(queue="mail", max_attempts=9, timeout="2m")
    def receipt(order: int) -> None: ...

    with psycopg.connect(outbox_url) as connection:
        Outbox().submit(connection, receipt, {"order": 1}, delay=timedelta(minutes=1))
        Outbox(eb).submit(connection, "receipt", {"order": 2}, priority=5)
        with pytest.raises(InvalidArguments, match="order"):
            Outbox().submit(connection, receipt, {})
    tasks = [task for _, task, _ in rows_of(outbox_url)]
    assert [(task["queue"], task["max_attempts"], task["timeout_seconds"]) for task in tasks] == [("mail", 9, 120)] * 2
    assert tasks[0]["delay_seconds"] == 60
    assert tasks[1]["priority"] == 5


def test_invalid_tasks_are_refused_before_they_are_written(outbox_url: str) -> None:
    with psycopg.connect(outbox_url) as connection:
        for task, options, message in [
            ("a b", {}, "type"),
            ("t", {"queue": "everbeat:http"}, "reserved"),
            ("t", {"key": "k"}, "the id of the row is the idempotency key"),
            ("t", {"order_key": ""}, "order_key"),
            ("t", {"color": "red"}, "is not an option"),
        ]:
            with pytest.raises(InvalidInput, match=message):
                OUTBOX.submit(connection, task, **options)  # type: ignore[arg-type]
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert rows_of(outbox_url) == []
