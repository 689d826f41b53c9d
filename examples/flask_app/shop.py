"""A sync web app that only submits tasks. Separate worker processes run them."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from flask import Flask, jsonify, request
from flask.typing import ResponseReturnValue

from everbeat import Context, Everbeat, NonRetryable, NotReachable, ServerProblem

ORDERS = Path(os.environ.get("ORDERS", "orders.db"))

eb = Everbeat(name="flask-shop")
app = Flask(__name__)


@contextlib.contextmanager
def orders() -> Iterator[sqlite3.Connection]:
    """A transaction on the database of the shop."""
    with contextlib.closing(sqlite3.connect(ORDERS)) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL, receipt TEXT)")
        yield connection


@eb.task(queue="mail", max_attempts=5)
def send_receipt(ctx: Context, order: int) -> str:
    """A plain function. The worker runs it in a thread, so it may block and use the database of the app."""
    with orders() as database:
        row = database.execute("SELECT item FROM orders WHERE id = ?", (order,)).fetchone()
        if row is None:
            raise NonRetryable(f"there is no order {order}")
        receipt = f"1 × {row[0]}"
        # Idempotent: if the task runs again, it writes the same value.
        database.execute("UPDATE orders SET receipt = ? WHERE id = ?", (receipt, order))
    ctx.log(f"receipt for order {order}")
    return receipt


@app.post("/orders")
def create_order() -> ResponseReturnValue:
    item = request.get_json()["item"]
    with orders() as database:
        order = database.execute("INSERT INTO orders (item) VALUES (?)", (item,)).lastrowid
    # After the commit, because a worker may start the task immediately and has to find the order.
    handle = send_receipt.options(key=f"receipt-{order}").submit(order=order)
    return jsonify(order=order, task=str(handle.id)), 202


@app.get("/orders")
def list_orders() -> ResponseReturnValue:
    with orders() as database:
        rows = database.execute("SELECT id, item, receipt FROM orders ORDER BY id").fetchall()
    return jsonify([{"order": order, "item": item, "receipt": receipt} for order, item, receipt in rows])


@app.get("/orders/<int:order>")
def show_order(order: int) -> ResponseReturnValue:
    with orders() as database:
        row = database.execute("SELECT item, receipt FROM orders WHERE id = ?", (order,)).fetchone()
    return (jsonify(item=row[0], receipt=row[1]), 200) if row else (jsonify(error=f"there is no order {order}"), 404)


@app.get("/tasks/<uuid:task_id>")
def show_task(task_id: Any) -> ResponseReturnValue:
    task = msgspec.to_builtins(eb.client.tasks.get(task_id))
    return jsonify({name: task[name] for name in ("id", "type", "state", "attempt", "result", "error")})


@app.errorhandler(ServerProblem)
def show_problem(problem: ServerProblem) -> ResponseReturnValue:
    return jsonify(error=str(problem)), problem.status


@app.errorhandler(NotReachable)
def show_outage(error: NotReachable) -> ResponseReturnValue:
    return jsonify(error=str(error)), 503
