"""Orders in a PostgreSQL database, and the task that confirms each of them, written in the same transaction."""

from __future__ import annotations

import os
import sys

import psycopg

from everbeat import Everbeat
from everbeat.outbox import Outbox

eb = Everbeat(name="orders")
outbox = Outbox(eb)

MAX_TOTAL = 1000


@eb.task(queue="mail")
def confirm(order: int, customer: str) -> str:
    print(f"→ {customer}: your order {order} is confirmed", flush=True)
    return f"order {order}"


def place(connection: psycopg.Connection, order: int, customer: str, total: int) -> bool:
    """Place an order. An order that is too large is rolled back, and with it the task that would confirm it."""
    try:
        with connection.transaction():
            connection.execute("INSERT INTO orders (id, customer, total) VALUES (%s, %s, %s)", [order, customer, total])
            outbox.submit(connection, confirm, {"order": order, "customer": customer}, order_key=customer)
            if total > MAX_TOTAL:
                raise ValueError(f"order {order} is above the limit of {MAX_TOTAL}")
    except ValueError as error:
        print(f"rolled back: {error}")
        return False
    print(f"placed order {order} of {customer}")
    return True


def main() -> None:
    with psycopg.connect(os.environ["EVERBEAT_OUTBOX_URL"], autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id integer PRIMARY KEY, customer text, total integer)")
        first = int(sys.argv[1]) if len(sys.argv) > 1 else 1
        place(connection, first, "ann", 100)
        place(connection, first + 1, "ann", 5000)
        place(connection, first + 2, "ann", 200)


if __name__ == "__main__":
    main()
