"""What the targets at brokers share: errors without secrets, and connections that are opened once and again after a failure."""

from __future__ import annotations

import asyncio

import pytest

from everbeat.core.brokers import Broker
from everbeat.delivery.brokers import Connections, error_text, secrets_of
from tests.delivery.messages import broker_of


def test_the_secrets_of_a_connection_are_removed_from_errors() -> None:
    broker = broker_of(
        "any",
        url="amqp://user:p%40ss@host/",
        sasl_password="hunter2",
        secret_access_key="abcdef",
        access_key_id="AKIA",
        ssl_key_location="/etc/key.pem",
        servers=["nats://token@host"],
    )
    assert set(secrets_of(broker)) == {
        *("amqp://user:p%40ss@host/", "user:p%40ss", "p%40ss", "p@ss", "hunter2", "abcdef", "nats://token@host", "token")
    }
    text = error_text(broker, "amqp://user:p%40ss@host/ refused p@ss, hunter2 and AKIA with /etc/key.pem")
    assert text == "broker main: *** refused ***, *** and AKIA with /etc/key.pem"


async def test_concurrent_deliveries_share_a_connection_attempt_and_a_failed_one_is_repeated() -> None:
    opened: list[str] = []
    closed: list[str] = []
    fails = True

    async def open_(broker: Broker) -> str:
        await asyncio.sleep(0)
        opened.append(broker.name)
        if fails:
            raise ConnectionError("refused")
        return f"connection {len(opened)}"

    async def close(connection: str) -> None:
        closed.append(connection)

    broker, connections = broker_of("any"), Connections(open_, close)
    results = await asyncio.gather(*(connections.get(broker) for _ in range(3)), return_exceptions=True)
    assert [type(one) for one in results] == [ConnectionError] * 3
    assert len(opened) == 1
    fails = False
    assert await asyncio.gather(*(connections.get(broker) for _ in range(3))) == ["connection 2"] * 3
    await connections.drop(broker, "connection 1")  # another delivery has already replaced it
    assert closed == []
    await connections.drop(broker, await connections.get(broker))
    assert await connections.get(broker) == "connection 3"
    await connections.close()
    assert closed == ["connection 2", "connection 3"]


async def test_a_cancelled_delivery_does_not_cancel_the_connection_attempt_of_the_others() -> None:
    released = asyncio.Event()

    async def open_(_broker: Broker) -> str:
        await released.wait()
        return "connection"

    async def close(_connection: str) -> None: ...

    broker, connections = broker_of("any"), Connections(open_, close)
    first, second = asyncio.create_task(connections.get(broker)), asyncio.create_task(connections.get(broker))
    await asyncio.sleep(0)
    first.cancel()
    released.set()
    assert await second == "connection"
    with pytest.raises(asyncio.CancelledError):
        await first
