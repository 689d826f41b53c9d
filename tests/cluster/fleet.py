"""Worker processes for the cluster tests, the journal of their handlers, and the final checks of each test."""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import apsw
import asyncpg
import httpx

from tests.support.postgres import run_outside_loop
from tests.support.processes import ServerProcess, wait_until
from tests.support.proxy import FaultyProxy, ProxyThread, RequestTest

WORKER_LEASE_SECONDS = 5.0
# The worker processes import the apps from this repository.
PYTHON_PATH = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
APP = "tests.cluster.worker_app:eb"


class HistoryRow(NamedTuple):
    """A row of the history."""

    id: UUID
    state: str
    attempt: int
    fence: int
    worker: str | None


class EndedAttempt(NamedTuple):
    """An attempt that did not end its task."""

    id: UUID
    fence: int
    attempt: int
    outcome: str
    worker: str | None


class DatabaseReader:
    """Reads the database directly, without the server: SQLite or PostgreSQL, with the same statements."""

    def __init__(self, url: str) -> None:
        self._url = url

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        if self._url.startswith("sqlite:///"):
            connection = apsw.Connection(self._url.removeprefix("sqlite:///"), flags=apsw.SQLITE_OPEN_READONLY)
            try:
                connection.set_busy_timeout(10_000)
                return [tuple(map(_plain, row)) for row in connection.execute(sql)]
            finally:
                connection.close()

        async def fetch() -> list[tuple[Any, ...]]:
            connection = await asyncpg.connect(self._url)
            try:
                return [tuple(map(_plain, row.values())) for row in await connection.fetch(sql)]
            finally:
                await connection.close()

        return run_outside_loop(fetch())

    def value(self, sql: str) -> Any:
        return self.rows(sql)[0][0]

    def history(self, where: str = "true") -> list[HistoryRow]:
        return [
            HistoryRow(*row) for row in self.rows(f"SELECT id, state, attempt, fence, worker FROM task_history WHERE {where}")
        ]

    def ended_attempts(self) -> list[EndedAttempt]:
        return [EndedAttempt(*row) for row in self.rows("SELECT task_id, fence, attempt, outcome, worker FROM attempts")]

    def assert_explained(self, ids: Iterable[UUID], *, outcomes: frozenset[str], state: str = "completed") -> Counter[str]:
        """Verify that each task finished once and every claim is recorded. Return how often each outcome occurred.

        The fence grows by one with each claim, so the fences of the attempts and of the history together have no gap.
        """
        wanted = set(ids)
        finished: dict[UUID, list[HistoryRow]] = defaultdict(list)
        ended_attempts: dict[UUID, list[EndedAttempt]] = defaultdict(list)
        for row in self.history():
            finished[row.id].append(row)
        for attempt in self.ended_attempts():
            ended_attempts[attempt.id].append(attempt)
        counts: Counter[str] = Counter()
        for id_ in wanted:
            assert len(finished[id_]) == 1, f"{id_} has {len(finished[id_])} rows of history: {finished[id_]}"
            end, before = finished[id_][0], sorted(ended_attempts[id_], key=lambda one: one.fence)
            assert end.state == state, (end, before)
            fences = [*(one.fence for one in before), end.fence]
            assert fences == list(range(1, end.fence + 1)), f"claims without a record: {end}, {before}"
            counted = [one for one in before if one.outcome != "released"]
            assert end.attempt == len(counted) + 1, f"the count of attempts is not explained: {end}, {before}"
            assert {one.outcome for one in before} <= outcomes, (end, before)
            counts.update(one.outcome for one in before)
        return counts


def _plain(value: Any) -> Any:
    """Convert ids to UUID and instants to seconds, for both dialects."""
    if isinstance(value, bytes) and len(value) == 16:
        return UUID(bytes=value)
    if isinstance(value, UUID):
        return UUID(int=value.int)
    return value.timestamp() if isinstance(value, datetime) else value


class Journal:
    """The events recorded by handlers, in the order of writing."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.jsonl"

    def events(self, task: UUID | None = None, event: str | None = None) -> list[dict[str, Any]]:
        text = self.path.read_text() if self.path.exists() else ""
        # The last line may be incomplete.
        found = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [one for one in found if (task is None or one["task"] == str(task)) and (event is None or one["event"] == event)]

    def wait(self, task: UUID, event: str, count: int = 1, deadline_seconds: float = 20.0) -> list[dict[str, Any]]:
        return wait_until(
            lambda: found if len(found := self.events(task, event)) >= count else [],
            deadline_seconds,
            lambda: f"{count} × {event} of {task}: {self.events(task)}",
        )


class RawWorker:
    """Uses the worker protocol directly, to simulate workers with faults."""

    def __init__(self, client: httpx.Client, queue: str, name: str = "raw") -> None:
        self._client = client
        self._queue = queue
        self.name = name

    def call(self, verb: str, **body: Any) -> Any:
        response = self._client.post(f"/v1/worker/{verb}", json={"worker": self.name, **body})
        assert response.status_code == 200, f"{verb}: {response.status_code} {response.text}"
        return response.json()

    def claim(self, limit: int = 1, **fields: Any) -> list[dict[str, Any]]:
        fields = {"lease_seconds": WORKER_LEASE_SECONDS, "max": limit, **fields}
        tasks: list[dict[str, Any]] = self.call("claim", queues=[self._queue], **fields)["tasks"]
        return tasks

    def claim_within(self, seconds: float) -> dict[str, Any]:
        return wait_until(lambda: self.claim(wait_seconds=0.5), seconds, f"a task on {self._queue}")[0]

    def heartbeat(self, task: Mapping[str, Any]) -> str:
        return str(self.call("heartbeat", leases=[_lease(task)])["leases"][0]["status"])

    def complete(self, *tasks: Mapping[str, Any], result: Any = None) -> list[str]:
        results = [{**_lease(task), "result": result} for task in tasks]
        return [one["status"] for one in self.call("complete", results=results)["results"]]

    def fail(self, task: Mapping[str, Any], message: str = "it broke", **more: Any) -> dict[str, Any]:
        failure = {**_lease(task), "error": {"message": message}, **more}
        response: dict[str, Any] = self.call("fail", failures=[failure])["results"][0]
        return response


def _lease(task: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": task["id"], "fence": task["fence"]}


class Site:
    """A server, its database, a queue for the test, and the workers that the test starts."""

    def __init__(self, url: str, base: str, folder: Path) -> None:
        self.base = base
        self.reader = DatabaseReader(url)
        self.folder = folder
        self.journal = Journal(folder)
        self.queue = f"q-{secrets.token_hex(4)}"
        self.client = httpx.Client(base_url=base, trust_env=False, timeout=30.0)
        self.workers: list[ServerProcess] = []

    def close(self) -> None:
        for worker in self.workers:
            worker.kill9()
        self.client.close()

    # Workers

    def worker(self, *flags: str, url: str | None = None, queue: str | None = None, name: str = "") -> ServerProcess:
        """Start a worker process with the shortest possible lease and the given additional flags."""
        name = name or f"w{len(self.workers)}"
        process = ServerProcess(
            *("worker", APP, "--url", url or self.base, "--queues", queue or self.queue, "--no-register"),
            *("--name", name, "--lease-seconds", str(WORKER_LEASE_SECONDS), "--log-level", "debug", *flags),
            folder=self.folder,
            env={"EVERBEAT_TEST_JOURNAL": str(self.journal.path), "PYTHONPATH": PYTHON_PATH},
            name=name,
        )
        self.workers.append(process)
        process.start()
        return process

    def raw(self, queue: str | None = None, name: str = "raw") -> RawWorker:
        return RawWorker(self.client, queue or self.queue, name)

    # Tasks

    def submit(self, type_: str, queue: str | None = None, *, payload: Any = None, **fields: Any) -> UUID:
        body = {"type": type_, "queue": queue or self.queue, "payload": payload or {}, **fields}
        response = self.client.post("/v1/tasks", json=body)
        assert response.status_code == 201, response.text
        return UUID(response.json()["id"])

    def submit_many(self, type_: str, count: int, **fields: Any) -> list[UUID]:
        tasks = [{"type": type_, "queue": self.queue, **fields} for _ in range(count)]
        response = self.client.post("/v1/tasks/batch", json={"tasks": tasks})
        assert response.status_code in (200, 201), response.text
        return [UUID(id_) for id_ in response.json()["ids"]]

    def task(self, id_: UUID) -> Any:
        response = self.client.get(f"/v1/tasks/{id_}")
        assert response.status_code == 200, response.text
        return response.json()

    def attempts(self, id_: UUID) -> list[tuple[int, str, str]]:
        """Return the number, outcome and worker of each attempt."""
        response = self.client.get(f"/v1/tasks/{id_}/attempts")
        assert response.status_code == 200, response.text
        return [(one["attempt"], one["outcome"], one["worker"]) for one in response.json()["items"]]

    def outcomes(self, id_: UUID) -> list[str]:
        return [outcome for _, outcome, _ in self.attempts(id_)]

    def wait_state(self, id_: UUID, state: str = "completed", deadline_seconds: float = 25.0) -> Any:
        def in_state() -> Any:
            task = self.task(id_)
            return task if task["state"] == state else None

        return wait_until(in_state, deadline_seconds, lambda: f"{state}: {self.task(id_)} {self.attempts(id_)}{self.logs()}")

    def wait_end(self, id_: UUID, deadline_seconds: float = 25.0) -> Any:
        def has_finished() -> Any:
            task = self.task(id_)
            return task if task["finished_at"] is not None else None

        return wait_until(has_finished, deadline_seconds, lambda: f"{self.task(id_)} {self.attempts(id_)}{self.logs()}")

    def logs(self) -> str:
        return "".join(f"\n--- {worker.name}\n{worker.logs()[-1500:]}" for worker in self.workers)


class DelayingProxy(FaultyProxy):
    """Forwards a request, but delays its response."""

    delays: RequestTest | None = None
    delayed = 0

    def _should_lose_reply(self, request: bytes) -> bool:
        if self.delays is not None and self.delays(request):
            self.freeze()
            self.delayed += 1
        return super()._should_lose_reply(request)


def delaying_proxy(port: int) -> ProxyThread:
    thread = ProxyThread("127.0.0.1", port)
    thread.proxy = DelayingProxy("127.0.0.1", port)
    return thread


def is_request_to(*verbs: str) -> RequestTest:
    """Return a test for requests to these paths, such as /v1/worker/complete."""
    lines = [f"POST {verb} ".encode() for verb in verbs]
    return lambda request: any(line in request for line in lines)
