"""Celery with everbeat.contrib.celery: a server sends tasks, and a real Celery worker reports what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.delivery.celery_worker import CeleryWorker
from tests.delivery.fleet import get, post
from tests.support.local_server import LocalServer
from tests.support.processes import ServerProcess, free_port, wait_until


class Shop:
    """A server, and a Celery worker of tests/delivery/celery_app.py."""

    def __init__(self, url: str, broker: str, server: ServerProcess, worker: CeleryWorker) -> None:
        self.url = url
        self.broker = broker
        self.server = server
        self.worker = worker

    def target(self, name: str, **fields: Any) -> dict[str, Any]:
        return {"kind": "celery", "broker": "shop", "task": f"tests.delivery.celery_app.{name}", **fields}

    def submit(self, name: str, payload: Any = None, *, options: dict[str, Any] | None = None, **fields: Any) -> str:
        target = self.target(name, **(options or {}))
        task = post(self.url, "/v1/tasks", {"type": name, "target": target, "payload": payload, "max_attempts": 1, **fields})
        return str(task["id"])

    def get(self, task_id: str) -> Any:
        return get(self.url, f"/v1/tasks/{task_id}")

    def attempts(self, task_id: str) -> Any:
        return get(self.url, f"/v1/tasks/{task_id}/attempts")["items"]

    def ended(self, task_id: str, seconds: float = 30) -> Any:
        ends = ("completed", "failed", "dead", "cancelled")
        wait_until(
            lambda: self.get(task_id)["state"] in ends, seconds, lambda: f"{self.get(task_id)}\n{self.worker.log()[-3000:]}"
        )
        return self.get(task_id)

    def lines(self, task_id: str) -> list[list[str]]:
        return [line for line in self.worker.effects() if line[1] == task_id]


@pytest.fixture(params=["redis_server", "rabbitmq"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    broker: LocalServer = request.getfixturevalue(request.param)
    broker_url = str(getattr(broker, "url")).removesuffix("/0")  # noqa: B009
    broker_url += "/5" if broker.name == "redis" else ""
    url = f"http://127.0.0.1:{free_port()}"
    (tmp_path / "everbeat.toml").write_text(f'[brokers.shop]\nkind = "celery"\nurl = "{broker_url}"\nmode = "callback"\n')
    arguments = ("--config", str(tmp_path / "everbeat.toml"), "--port", url.rpartition(":")[2])
    with (
        ServerProcess("serve", *arguments, "--database-url", f"sqlite:///{tmp_path}/e.db", folder=tmp_path) as server,
        CeleryWorker(broker_url, tmp_path, ACKS_LATE="yes", LEASE_SECONDS="2") as worker,
    ):
        server.wait_ready(f"{url}/readyz")
        yield Shop(url, broker.name, server, worker)


# One test for each broker, because each needs a server and a Celery worker, and tests run in several processes.
def test_a_celery_worker_reports_ends_retries_and_progress_and_its_death_is_noticed(shop: Shop) -> None:
    check_ends_retries_and_progress(shop)
    if shop.broker == "redis":  # this does not depend on the broker
        check_cancellation(shop)
        check_messages_that_do_not_run(shop)
        check_overlap(shop)
    check_death(shop)


def check_ends_retries_and_progress(shop: Shop) -> None:
    added, failed, flaky = shop.submit("add", [5, 6]), shop.submit("fail", ["no paper"]), shop.submit("flaky", [2])
    slow = shop.submit("slow", [1.0])
    wait_until(lambda: shop.get(slow)["state"] == "running", 10)
    assert (shop.ended(added)["state"], shop.ended(added)["result"]) == ("completed", 11)
    dead = shop.ended(failed)
    assert (dead["state"], dead["error"]["message"], dead["error"]["kind"]) == ("dead", "no paper", "ValueError")
    assert "raise ValueError(message)" in dead["error"]["trace"]
    repeated = shop.ended(flaky)
    assert (repeated["state"], repeated["result"], repeated["attempt"]) == ("completed", "after 2 retries", 1)
    assert len(shop.lines(flaky)) == 3
    done = shop.ended(slow)
    assert (done["result"], done["progress"]["message"]) == ("done", "half")


def check_cancellation(shop: Shop) -> None:
    task = shop.submit("slow", [60])
    wait_until(lambda: shop.lines(task), 20, shop.worker.log)
    post(shop.url, f"/v1/tasks/{task}/cancel", {})
    assert shop.ended(task)["state"] == "cancelled"
    wait_until(lambda: ["stopped", task] in shop.worker.effects(), 20, shop.worker.log)


def check_messages_that_do_not_run(shop: Shop) -> None:
    expired, lost = shop.submit("add", [1], options={"expires_seconds": 0.001}), shop.submit("die")
    found = shop.ended(expired)
    assert (found["state"], found["error"]["kind"]) == ("dead", "revoked")
    found = shop.ended(lost)
    # Celery notices the death of the process, unless the lease of two seconds expires before that.
    assert (found["state"], found["error"]["kind"]) in (("dead", "WorkerLostError"), ("dead", "lost"))


def check_overlap(shop: Shop) -> None:
    """A tick is skipped while the Celery task of an earlier tick runs."""
    schedule = {"name": "slow", "every_seconds": 1, "overlap": "skip", "target": shop.target("slow"), "payload": [30]}
    post(shop.url, "/v1/schedules", schedule)

    def reasons() -> set[str]:
        return {tick["reason"] for tick in get(shop.url, "/v1/schedules/slow/ticks")["items"] if tick["outcome"] == "skipped"}

    wait_until(lambda: "overlap" in reasons(), 20, shop.server.logs)
    post(shop.url, "/v1/schedules/slow/pause", {})
    (running,) = get(shop.url, "/v1/schedules/slow/executions")["items"]
    post(shop.url, f"/v1/tasks/{running['id']}/cancel", {})
    assert shop.ended(running["id"])["state"] == "cancelled"


def check_death(shop: Shop) -> None:
    task = shop.submit("slow", [0.8], max_attempts=5)
    wait_until(lambda: shop.lines(task), 20, shop.worker.log)
    shop.worker.kill9()
    shop.worker.start()
    done = shop.ended(task, 60)
    assert (done["state"], done["result"]) == ("completed", "done")
    assert len(shop.lines(task)) >= 2
