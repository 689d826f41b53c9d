"""Real workers with a real server over HTTP: killed, paused, stopped, blocked, and several processes under one parent."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.processes import ServerProcess, free_port, is_alive, wait_until
from tests.support.seaweedfs import S3Server

APP = '''
import asyncio
import gc, os, time
from pathlib import Path
from everbeat import Everbeat

eb = Everbeat(name="shop")
FOLDER = Path(__file__).parent

def note(name):
    (FOLDER / name).touch()

@eb.task
async def greet(ctx, name: str):
    ctx.progress(0.5, "halfway")
    ctx.log(f"hello {name}")
    return {"name": name, "worker": ctx.worker, "pid": os.getpid()}

@eb.task
async def collector():
    return {"threshold": gc.get_threshold(), "frozen": gc.get_freeze_count() > 0}

@eb.task
async def hold(ctx, mark: str):
    """Run until the file of the attempt exists."""
    note(f"{mark}.began.{ctx.attempt}")
    while not (FOLDER / f"{mark}.go.{ctx.attempt}").exists():
        await asyncio.sleep(0.01)
    return {"attempt": ctx.attempt}

@eb.task
def hold_in_thread(mark: str):
    note(f"{mark}.began")
    while not (FOLDER / f"{mark}.go").exists():
        time.sleep(0.01)
    return "done"

@eb.task
async def block(seconds: float):
    time.sleep(seconds)
    return "done"

@eb.cron("0 0 1 1 *")
def yearly(ctx):
    return "done"
'''

LEASE = "5"


class Deployment:
    """A server and its workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        (folder / "shop.py").write_text(APP)
        self.env = {"PYTHONPATH": str(folder), "EVERBEAT_URL": self.url}
        database = f"sqlite:///{folder}/everbeat.db"
        self.server = ServerProcess("dev", "--port", str(self.port), "--database-url", database, folder=folder, name="server")
        self.client = httpx.Client(base_url=self.url, trust_env=False, timeout=10)
        self.workers: list[ServerProcess] = []

    def start_server(self) -> None:
        self.server.start()
        self.server.wait_ready(f"{self.url}/readyz", 30)

    def worker(self, name: str, *options: str) -> ServerProcess:
        arguments = ("worker", "shop:eb", "--name", name, "--lease-seconds", LEASE, *options)
        process = ServerProcess(*arguments, folder=self.folder, env=self.env, name=name)
        process.start()
        self.workers.append(process)
        return process

    def submit(self, type_: str, **payload: Any) -> str:
        response = self.client.post("/v1/tasks", json={"type": type_, "payload": payload})
        assert response.status_code == 201, response.text
        return str(response.json()["id"])

    def task(self, task_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/v1/tasks/{task_id}").json()
        return found

    def attempts(self, task_id: str) -> list[tuple[str, str]]:
        items = self.client.get(f"/v1/tasks/{task_id}/attempts").json()["items"]
        return sorted((one["worker"], one["outcome"]) for one in items)

    def wait_for(self, task_id: str, state: str = "completed", seconds: float = 20) -> dict[str, Any]:
        wait_until(
            lambda: self.task(task_id)["state"] == state, seconds, lambda: f"{state}: {self.task(task_id)} {self.logs()}"
        )
        return self.task(task_id)

    def wait_file(self, name: str) -> None:
        wait_until((self.folder / name).exists, 20, lambda: f"{name}: {self.logs()}")

    def touch(self, name: str) -> None:
        (self.folder / name).touch()

    def logs(self) -> str:
        return "\n".join(process.logs() for process in self.workers)

    def close(self) -> None:
        for process in self.workers:
            process.kill9()
        self.server.kill9()
        self.client.close()


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path)
    try:
        yield deployment
    finally:
        deployment.close()


def test_a_large_payload_is_stored_in_a_bucket(
    tmp_path: Path, s3_server: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERBEAT_BLOB_URL", s3_url)
    monkeypatch.setenv("EVERBEAT_BLOB_ENDPOINT", s3_server.endpoint)
    deployment = Deployment(tmp_path)
    try:
        deployment.start_server()
        deployment.worker("w1")
        task_id = deployment.submit("greet", name="x" * 3_000_000)
        assert deployment.wait_for(task_id)["result"]["bytes"] > 3_000_000
        assert len(deployment.task(task_id)["payload"]["name"]) == 3_000_000
        assert deployment.client.get("/v1/tasks").json()["items"][0]["payload_omitted"]
    finally:
        deployment.close()


def test_it_waits_for_its_server_registers_and_runs_a_task(deployment: Deployment) -> None:
    worker = deployment.worker("w1")
    wait_until(lambda: "cannot reach Everbeat" in worker.logs(), 20, worker.logs)
    deployment.start_server()
    task_id = deployment.submit("greet", name="Ada")
    task = deployment.wait_for(task_id)
    assert task["result"]["name"] == "Ada"
    assert (task["worker"], task["progress"]) == ("w1", {"fraction": 0.5, "message": "halfway"})
    assert "hello Ada" in deployment.client.get(f"/v1/tasks/{task_id}/log").text
    assert deployment.client.get("/v1/schedules/yearly").status_code == 200
    assert worker.logs().count("cannot reach Everbeat") == 1
    assert worker.terminate() == 0
    assert "Traceback" not in worker.logs()


def test_schedules_no_longer_declared_are_pruned_on_request(deployment: Deployment) -> None:
    deployment.start_server()
    other = {"name": "foreign", "cron": "0 0 1 1 *", "target": {"kind": "worker", "type": "greet"}}
    assert deployment.client.post("/v1/schedules", json=other).status_code == 201
    first = deployment.worker("w1")
    wait_until(lambda: "worker_started" in first.logs(), 30, first.logs)
    (deployment.folder / "shop.py").write_text(APP.partition("@eb.cron")[0] + '@eb.cron("0 0 2 1 *")\ndef later(ctx): ...\n')
    second = deployment.worker("w2", "--prune")
    wait_until(lambda: "worker_started" in second.logs(), 30, second.logs)
    found = {name: deployment.client.get(f"/v1/schedules/{name}").status_code for name in ("yearly", "later", "foreign")}
    assert found == {"yearly": 404, "later": 200, "foreign": 200}


def test_a_task_of_a_killed_worker_is_retried_after_its_lease(deployment: Deployment) -> None:
    deployment.start_server()
    first = deployment.worker("w1", "--no-register")
    task_id = deployment.submit("hold", mark="a")
    deployment.wait_file("a.began.1")
    first.kill9()
    deployment.worker("w2", "--no-register")
    deployment.touch("a.go.2")
    task = deployment.wait_for(task_id)
    assert (task["result"], task["attempt"], task["worker"]) == ({"attempt": 2}, 2, "w2")
    assert deployment.attempts(task_id) == [("w1", "lost"), ("w2", "completed")]


def test_a_worker_paused_past_its_lease_changes_nothing(deployment: Deployment) -> None:
    deployment.start_server()
    first = deployment.worker("w1", "--no-register")
    task_id = deployment.submit("hold", mark="a")
    deployment.wait_file("a.began.1")
    first.sigstop()
    deployment.worker("w2", "--no-register")
    deployment.wait_file("a.began.2")
    deployment.touch("a.go.1")
    first.sigcont()
    wait_until(lambda: "task_lost" in first.logs() or "report_stale" in first.logs(), 20, first.logs)
    assert deployment.task(task_id)["state"] == "running"
    deployment.touch("a.go.2")
    task = deployment.wait_for(task_id)
    assert (task["result"], task["worker"]) == ({"attempt": 2}, "w2")
    assert deployment.attempts(task_id) == [("w1", "lost"), ("w2", "completed")]
    assert first.is_running()


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_claims_and_running_tasks_finish(deployment: Deployment, signal_: signal.Signals) -> None:
    deployment.start_server()
    worker = deployment.worker("w1", "--no-register")
    first, second = deployment.submit("hold", mark="a"), deployment.submit("hold_in_thread", mark="b")
    deployment.wait_file("a.began.1")
    deployment.wait_file("b.began")
    worker.send_signal(signal_)
    wait_until(lambda: "worker_stopping" in worker.logs(), 10, worker.logs)
    late = deployment.submit("greet", name="late")
    deployment.touch("a.go.1")
    deployment.touch("b.go")
    assert worker.wait_exit(20) == 0
    assert [deployment.task(one)["state"] for one in (first, second)] == ["completed", "completed"]
    wait_until(lambda: deployment.task(late)["state"] == "ready", 5, lambda: str(deployment.task(late)))
    assert deployment.task(late)["attempt"] == 0
    assert "Traceback" not in worker.logs()


def test_after_the_grace_time_unfinished_tasks_are_released(deployment: Deployment) -> None:
    deployment.start_server()
    worker = deployment.worker("w1", "--no-register", "--grace-seconds", "0.1")
    tasks = [deployment.submit("hold", mark="a"), deployment.submit("hold_in_thread", mark="b")]
    deployment.wait_file("a.began.1")
    deployment.wait_file("b.began")
    assert worker.terminate() == 0
    assert [(deployment.task(one)["state"], deployment.task(one)["attempt"]) for one in tasks] == [("ready", 0), ("ready", 0)]


@pytest.mark.parametrize("type_", ["hold", "block"])
def test_a_second_signal_ends_the_worker_and_releases_all_tasks(deployment: Deployment, type_: str) -> None:
    """Also when a handler blocks the event loop."""
    deployment.start_server()
    worker = deployment.worker("w1", "--no-register")
    task_id = deployment.submit("hold", mark="a") if type_ == "hold" else deployment.submit("block", seconds=60)
    wait_until(lambda: deployment.task(task_id)["state"] == "running", 20, worker.logs)
    if type_ == "hold":
        deployment.wait_file("a.began.1")
    worker.send_signal(signal.SIGTERM)
    if type_ == "hold":
        wait_until(lambda: "worker_stopping" in worker.logs(), 10, worker.logs)

    # Several pending signals are delivered as one, so the signal is repeated.
    def has_ended() -> bool:
        worker.send_signal(signal.SIGTERM)
        return worker.returncode is not None

    wait_until(has_ended, 10, worker.logs)
    assert worker.returncode == 130
    task = deployment.task(task_id)
    assert (task["state"], task["attempt"]) == ("ready", 0)


def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(deployment: Deployment) -> None:
    deployment.start_server()
    worker = deployment.worker("w1", "--no-register")
    deployment.worker("w2", "--no-register")
    task_id = deployment.submit("block", seconds=7.5)
    task = deployment.wait_for(task_id, seconds=30)
    assert (task["result"], task["attempt"]) == ("done", 1)
    message = worker.logs() + deployment.logs()
    assert "event loop blocked for" in message
    assert "in block" in message


def test_several_processes_share_tasks_and_a_dead_process_is_replaced(deployment: Deployment) -> None:
    deployment.start_server()
    worker = deployment.worker("fleet", "--processes", "2", "--concurrency", "1")

    def pids() -> set[int]:
        tasks = [deployment.submit("greet", name=str(number)) for number in range(10)]
        return {deployment.wait_for(one)["result"]["pid"] for one in tasks}

    seen: set[int] = set()

    def both_have_worked() -> bool:
        seen.update(pids())
        return len(seen) == 2

    wait_until(lambda: worker.logs().count("worker_started") >= 2, 30, worker.logs)
    wait_until(both_have_worked, 20, worker.logs)
    assert worker.pid not in seen
    assert deployment.client.get("/v1/schedules/yearly").status_code == 200
    os.kill(min(seen), signal.SIGKILL)
    wait_until(lambda: "worker_process_died" in worker.logs(), 10, worker.logs)
    wait_until(lambda: worker.logs().count("worker_started") >= 3, 20, worker.logs)
    seen.update(pids())
    assert worker.terminate() == 0
    assert not any(is_alive(pid) for pid in seen)


def test_processes_end_when_their_parent_is_killed(deployment: Deployment) -> None:
    deployment.start_server()
    worker = deployment.worker("fleet", "--processes", "2", "--no-register")
    wait_until(lambda: worker.logs().count("worker_started") >= 2, 30, worker.logs)
    children = _children(worker.pid)
    assert len(children) == 2
    os.kill(worker.pid, signal.SIGKILL)
    wait_until(lambda: not any(is_alive(pid) for pid in children), 10, worker.logs)


def test_processes_end_when_their_parent_is_killed_before_they_start(deployment: Deployment) -> None:
    worker = deployment.worker("fleet", "--processes", "2", "--no-register")
    children = wait_until(lambda: found if len(found := _children(worker.pid)) == 2 else [], 20, worker.logs)
    os.kill(worker.pid, signal.SIGKILL)
    wait_until(lambda: not any(is_alive(pid) for pid in children), 20, worker.logs)


def test_dev_runs_an_app_in_its_own_process(deployment: Deployment) -> None:
    database = f"sqlite:///{deployment.folder}/dev.db"
    arguments = ("dev", "shop:eb", "--no-reload", "--port", str(deployment.port), "--database-url", database)
    deployment.server = ServerProcess(*arguments, folder=deployment.folder, env=deployment.env, name="dev")
    deployment.start_server()
    wait_until(lambda: "is running in this process" in deployment.server.logs(), 10, deployment.server.logs)
    task = deployment.wait_for(deployment.submit("greet", name="Ada"))
    assert task["result"]["pid"] == deployment.server.pid
    assert deployment.client.get("/v1/schedules/yearly").status_code == 200
    running_task = deployment.submit("hold", mark="a")
    deployment.wait_file("a.began.1")
    deployment.server.send_signal(signal.SIGTERM)
    deployment.touch("a.go.1")
    assert deployment.server.wait_exit(20) == 0
    assert "Traceback" not in deployment.server.logs()
    deployment.start_server()
    assert deployment.task(running_task)["state"] == "completed"


def test_a_worker_on_a_database_runs_the_server_in_its_process(deployment: Deployment) -> None:
    deployment.env["EVERBEAT_URL"] = f"sqlite:///{deployment.folder}/own.db"
    worker = deployment.worker("w1")
    wait_until(lambda: "worker_started" in worker.logs(), 30, worker.logs)
    assert worker.terminate() == 0
    assert "Traceback" not in worker.logs()


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_garbage_collector_of_a_worker_process_is_tuned(deployment: Deployment) -> None:
    deployment.start_server()
    deployment.worker("w1", "--no-register")
    task = deployment.wait_for(deployment.submit("collector"))
    assert task["result"] == {"threshold": [50_000, 20, 50], "frozen": True}
