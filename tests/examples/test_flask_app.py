"""examples/flask_app: a synchronous web app submits tasks, and a separate worker runs them."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import httpx

from tests.examples.conftest import ExampleRun
from tests.support.processes import free_port, wait_until


def test_an_order_gets_its_receipt_from_a_worker(example: ExampleRun) -> None:
    example.env["ORDERS"] = str(example.folder / "orders.db")
    example.serve()
    port = free_port()
    web = example.run("flask_app", "--app", "shop", "run", "--port", str(port), name="web", module="flask")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as shop:
        web.wait_ready(f"http://127.0.0.1:{port}/orders")
        made = shop.post("/orders", json={"item": "teapot"})
        assert made.status_code == 202
        order, task = made.json()["order"], made.json()["task"]
        assert shop.get(f"/tasks/{task}").json()["state"] == "ready"

        (worker,) = example.workers("flask_app", "shop:eb")

        def completed() -> Any:
            found = shop.get(f"/tasks/{task}").json()
            return found if found["state"] == "completed" else None

        assert wait_until(completed, 10, worker.logs)["result"] == "1 × teapot"
        assert shop.get(f"/orders/{order}").json() == {"item": "teapot", "receipt": "1 × teapot"}
        assert shop.get(f"/tasks/{uuid4()}").status_code == 404
        assert worker.terminate() == 0
