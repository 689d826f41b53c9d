"""The load generator: submits tasks, cancels some, and pauses schedules, until its stdin closes.

`python -m tests.chaos.load FOLDER`

Each submit has a ticket. A request is repeated with the same idempotency key until a node answers it, as a careful client does.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.chaos.api import Api, NotAnswered, seconds
from tests.chaos.records import Log, log_of_process
from tests.chaos.rules import QUEUE

_RETRY = {"kind": "fixed", "base_seconds": 0.5, "jitter": False}
_SINGLE_CLIENTS = 3


class Load:
    def __init__(self, config: dict[str, Any], log: Log) -> None:
        self._config = config
        self._log = log
        self._stopping = threading.Event()
        self._tickets = itertools.count()

    def run(self) -> None:
        loops: list[Callable[[Api, random.Random], None]] = [self._single] * _SINGLE_CLIENTS
        loops += [self._batch, self._cancel, self._pause]
        threads = [threading.Thread(target=self._loop, args=(number, loop)) for number, loop in enumerate(loops)]
        threads.append(threading.Thread(target=self._beat))
        for thread in threads:
            thread.start()
        sys.stdin.read()
        self._stopping.set()
        for thread in threads:
            thread.join()

    def _loop(self, number: int, step: Callable[[Api, random.Random], None]) -> None:
        api = Api(self._config["nodes"], self._log, first=number)
        rng = random.Random(f"{self._config['seed']}/load/{number}")
        while not self._stopping.is_set():
            try:
                step(api, rng)
            except NotAnswered as error:
                self._log.write("not_answered", path=str(error))
        api.close()

    def _beat(self) -> None:
        while not self._stopping.wait(1.0):
            self._log.write("beat")

    def _single(self, api: Api, rng: random.Random) -> None:
        self._submit(api, self._task(rng))
        self._stopping.wait(rng.uniform(0.1, 0.5))

    def _submit(self, api: Api, task: dict[str, Any], **wanted: Any) -> str | None:
        ticket = task["payload"]["ticket"]
        line = {"ticket": ticket, "sent_at": time.time(), "ends_as": _end(task), **wanted}
        try:
            response = self._until_answered(api, "/v1/tasks", task, {"Idempotency-Key": f"single-{ticket}"})
        except NotAnswered:
            self._log.write("submitted", task=None, run_at=None, **line)
            raise
        made = response.json() if response.is_success else {"id": None}
        # The answer to a repeated submit shows the task as it is by then, perhaps with the time of its next attempt.
        run_at = seconds(made["run_at"]) if response.status_code == 201 else None
        self._log.write("submitted", task=made["id"], run_at=run_at, status=response.status_code, **line)
        return None if made["id"] is None else str(made["id"])

    def _batch(self, api: Api, rng: random.Random) -> None:
        tasks = [self._task(rng) for _ in range(8)]
        for task in tasks:
            task["idempotency_key"] = f"batch-{task['payload']['ticket']}"
        sent_at = time.time()
        ids: list[str | None] = [None] * len(tasks)
        try:
            response = self._until_answered(api, "/v1/tasks/batch", {"tasks": tasks})
            ids = response.json()["ids"] if response.is_success else ids
        finally:
            for task, id_ in zip(tasks, ids, strict=True):
                ticket = task["payload"]["ticket"]
                self._log.write("submitted", task=id_, ticket=ticket, run_at=None, sent_at=sent_at, ends_as=_end(task))
        self._stopping.wait(rng.uniform(1.5, 2.5))

    def _cancel(self, api: Api, rng: random.Random) -> None:
        """Submit a task for later, and cancel it before."""
        run_at = datetime.now(UTC) + timedelta(seconds=30)
        id_ = self._submit(api, {**self._task(rng, "plain"), "run_at": run_at.isoformat()})
        self._stopping.wait(rng.uniform(0.1, 2.0))
        if id_ is None:
            return
        response = self._until_answered(api, f"/v1/tasks/{id_}/cancel", {})
        if response.is_success:
            self._log.write("cancelled", task=id_, acknowledged_at=time.time(), state=response.json()["state"])
        self._stopping.wait(rng.uniform(1.0, 2.0))

    def _pause(self, api: Api, rng: random.Random) -> None:
        """Pause a schedule for some seconds, and resume it."""
        name = f"paused-{rng.randrange(2)}"
        if self._stopping.wait(rng.uniform(5, 9)):
            return
        line: dict[str, Any] = {"schedule": name, "sent_at": time.time(), "resume_sent_at": None, "resumed_at": None}
        self._until_answered(api, f"/v1/schedules/{name}/pause", {})
        line["acknowledged_at"] = time.time()
        self._stopping.wait(rng.uniform(3, 6))
        line["resume_sent_at"] = time.time()
        try:
            # Also when the run ends: a pause without an end would leave the last ticks without an explanation.
            api.until_answered("POST", f"/v1/schedules/{name}/resume", threading.Event(), json={})
            line["resumed_at"] = time.time()
        finally:
            self._log.write("paused", **line)

    def _until_answered(self, api: Api, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        return api.until_answered("POST", path, threading.Event(), give_up_seconds=60, json=body, headers=headers)

    def _task(self, rng: random.Random, kind: str | None = None) -> dict[str, Any]:
        kind = (
            kind or rng.choices(("plain", "delayed", "fails", "dead", "slow", "webhook"), weights=(60, 12, 8, 2, 4, 14), k=1)[0]
        )
        ticket = f"{self._config['seed']}-{next(self._tickets)}"
        task: dict[str, Any] = {"type": "work", "queue": QUEUE, "max_attempts": 100, "retry": _RETRY}
        payload: dict[str, Any] = {"ticket": ticket, "seconds": round(rng.uniform(0, 0.05), 3)}
        if kind == "delayed":
            task["delay_seconds"] = round(rng.uniform(1, 8), 2)
        elif kind == "fails":
            payload["fail_attempts"] = 1
        elif kind == "dead":
            payload["fail_attempts"], task["max_attempts"] = 1_000, 2
        elif kind == "slow":
            payload["seconds"] = 2.0
        elif kind == "webhook":
            del task["queue"]
            task["target"] = {"kind": "http", "url": self._config["receiver"]}
        return {**task, "payload": payload}


def _end(task: dict[str, Any]) -> str:
    return "dead" if task["max_attempts"] == 2 else "completed"


def main() -> None:
    folder = Path(sys.argv[1])
    Load(json.loads((folder / "processes.json").read_text()), log_of_process(folder / "load", "load")).run()


if __name__ == "__main__":
    main()
