"""A worker that speaks the worker protocol itself and logs every answer. `python -m tests.chaos.raw_worker FOLDER NAME`.

Now and then it sends no heartbeat, outlives its lease and reports all the same: this report must be refused.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.chaos.api import Api, NotAnswered, seconds
from tests.chaos.records import Log, log_of_process
from tests.chaos.rules import QUEUE

_ZOMBIE_SHARE = 0.02


class RawWorker:
    def __init__(self, name: str, config: dict[str, Any], log: Log) -> None:
        self._name = name
        self._log = log
        self._api = Api(config["worker_nodes"], log, first=int(name[-1]), timeout_seconds=5.0)
        self._lease_seconds = float(config["worker_lease_seconds"])
        self._rng = random.Random(f"{config['seed']}/{name}")
        self._forever = threading.Event()

    def step(self) -> None:
        is_zombie = self._rng.random() < _ZOMBIE_SHARE
        body = {"worker": self._name, "queues": [QUEUE], "max": 1 if is_zombie else 3, "wait_seconds": 1}
        response = self._api.once("POST", "/v1/worker/claim", json={**body, "lease_seconds": self._lease_seconds})
        if response is None or not response.is_success:
            self._api.next_node()
            time.sleep(0.2)
            return
        tasks, claimed_at = response.json()["tasks"], time.time()
        for task in tasks:
            tick = seconds(task["scheduled_for"])
            shown = {"schedule": task["schedule"], "tick": tick, "ticket": (task["payload"] or {}).get("ticket")}
            self._log.write("claimed", **_claim(task), **shown, attempt=task["attempt"], planned=is_zombie)
        for task in tasks:
            self._work(task, claimed_at, is_zombie=is_zombie)

    def _work(self, task: dict[str, Any], claimed_at: float, *, is_zombie: bool) -> None:
        payload = task["payload"] or {}
        fails = task["attempt"] <= payload.get("fail_attempts", 0)
        tick = seconds(task["scheduled_for"])
        self._log.write("started", **_claim(task), schedule=task["schedule"], tick=tick, planned=fails or is_zombie)
        heartbeats = 0
        time.sleep(self._lease_seconds + 1.5 if is_zombie else min(payload.get("seconds", 0.0), 0.5))
        if not is_zombie and payload.get("seconds", 0.0) > 1.0:
            heartbeats = 1
            self._report("heartbeat", "leases", task, {}, claimed_at, heartbeats)
        if fails:
            self._log.write("failed", **_claim(task))
            self._report("fail", "failures", task, {"error": {"message": "failed on request"}}, claimed_at, heartbeats)
        else:
            self._report("complete", "results", task, {"result": {"fence": task["fence"]}}, claimed_at, heartbeats)

    def _report(
        self, verb: str, field: str, task: dict[str, Any], body: dict[str, Any], claimed_at: float, heartbeats: int
    ) -> None:
        sent_at = time.time()
        report = {"worker": self._name, field: [{"id": task["id"], "fence": task["fence"], **body}]}
        answer = self._api.until_answered("POST", f"/v1/worker/{verb}", self._forever, json=report)
        if not answer.is_success:
            return
        status = answer.json()["leases" if verb == "heartbeat" else "results"][0]["status"]
        held = {"claimed_at": claimed_at, "heartbeats": heartbeats, "lease_seconds": task["lease_seconds"]}
        self._log.write("answered", **_claim(task), verb=verb, sent_at=sent_at, status=status, **held)


def _claim(task: dict[str, Any]) -> dict[str, Any]:
    return {"task": task["id"], "fence": task["fence"]}


def main() -> None:
    folder, name = Path(sys.argv[1]), sys.argv[2]
    log = log_of_process(folder / "workers", name)
    worker = RawWorker(name, json.loads((folder / "processes.json").read_text()), log)
    while True:
        try:
            worker.step()
        except NotAnswered:
            log.write("gave_up")


if __name__ == "__main__":
    main()
