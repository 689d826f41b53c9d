"""examples/outbox: orders are confirmed if, and only if, they were placed, and in their order."""

from __future__ import annotations

import re

from tests.examples.conftest import ExampleRun
from tests.support.postgres import PostgresAdmin
from tests.support.processes import wait_until


def test_placed_orders_are_confirmed_in_order_and_others_are_not(example: ExampleRun, postgres_server: PostgresAdmin) -> None:
    name = postgres_server.create_database()
    example.env["EVERBEAT_OUTBOX_URL"] = postgres_server.url(name)
    try:
        assert example.run("outbox", "outbox", "install", name="install").wait_exit(20) == 0
        assert example.script("outbox", "orders.py").count("placed") == 2
        dev = example.dev("outbox", "orders:eb")
        relay = example.run("outbox", "relay", name="relay")
        wait_until(lambda: dev.logs().count("is confirmed") == 2, 20, lambda: dev.logs() + relay.logs())
        assert "rolled back: order 11" in example.script("outbox", "orders.py", "10")
        wait_until(lambda: dev.logs().count("is confirmed") == 4, 20, lambda: dev.logs() + relay.logs())
        assert sorted(map(int, re.findall(r"your order (\d+)", dev.logs()))) == [1, 3, 10, 12]
        assert relay.terminate() == 0
    finally:
        postgres_server.drop_database(name)
