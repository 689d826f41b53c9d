"""feed_listen and feed_send: words between processes, where they can hear each other."""

from __future__ import annotations

from everbeat.services.feed import LONGEST_MESSAGE
from everbeat.store.base import Store
from everbeat.store.postgres.store import PostgresStore
from everbeat.store.values import Notice
from tests.contract.test_notices import until


async def test_feed_send_reaches_every_process_that_listens(postgres_url: str) -> None:
    speaker, listener = PostgresStore(postgres_url, listen=False), PostgresStore(postgres_url)
    heard: list[str] = []
    notices: list[Notice] = []
    listener.subscribe(notices.append)
    assert listener.feed_listen(heard.append)
    await listener.open()
    await until(lambda: set(notices) == set(Notice))
    notices.clear()
    longest = "ü" + "x" * (LONGEST_MESSAGE - 2)
    await speaker.feed_send("hello")
    await speaker.feed_send(longest)
    await until(lambda: len(heard) == 2)
    assert (heard, notices) == (["hello", longest], [])
    await speaker.close()
    await listener.close()


async def test_feed_listen_says_where_nothing_can_be_heard(store: Store) -> None:
    """SQLite, and PostgreSQL without a connection that listens."""
    heard: list[str] = []
    assert not store.feed_listen(heard.append)
    await store.feed_send("nobody hears it")
    assert heard == []
