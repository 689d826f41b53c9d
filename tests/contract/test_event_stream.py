"""event_stream_listen and event_stream_send: messages between processes, where the database supports them."""

from __future__ import annotations

from everbeat.services.event_stream import MAX_MESSAGE_BYTES
from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.values import Notice
from tests.contract.test_notices import until


async def test_event_stream_send_reaches_every_listening_process(postgres_url: str) -> None:
    sender, listener = PostgresStore(postgres_url, listen=False), PostgresStore(postgres_url)
    received: list[str] = []
    notices: list[Notice] = []
    listener.subscribe(notices.append)
    assert listener.event_stream_listen(received.append)
    await listener.open()
    await until(lambda: set(notices) == set(Notice))
    notices.clear()
    longest = "ü" + "x" * (MAX_MESSAGE_BYTES - 2)
    await sender.event_stream_send("hello")
    await sender.event_stream_send(longest)
    await until(lambda: len(received) == 2)
    assert (received, notices) == (["hello", longest], [])
    await sender.close()
    await listener.close()


async def test_event_stream_listen_returns_false_without_messages_between_processes(store: Store) -> None:
    """SQLite, and PostgreSQL without a listening connection."""
    received: list[str] = []
    assert not store.event_stream_listen(received.append)
    await store.event_stream_send("not received")
    assert received == []
