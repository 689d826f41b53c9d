"""examples/worker_fleet: killing a worker while it runs tasks delays tasks and loses none."""

from __future__ import annotations

from everbeat.core.responses import AttemptResponse
from tests.examples.conftest import ExampleRun
from tests.support.processes import wait_until

SHORT_LEASE = ("--concurrency", "4", "--lease-seconds", "5")


def test_every_task_is_completed_although_a_worker_is_killed(example: ExampleRun) -> None:
    example.serve()
    workers = example.workers("worker_fleet", "fleet:eb", *SHORT_LEASE, count=3)
    fleet = example.load("worker_fleet", "fleet")
    handles = fleet.resize.submit_many({"picture": number, "seconds": 0.5} for number in range(30))

    tasks = fleet.eb.client.tasks
    wait_until(lambda: [one for one in tasks.list(state="running") if one.worker == "worker-2"], 10)
    workers[1].kill9()

    results = [handle.wait("60s") for handle in handles]
    assert sorted(results) == sorted(f"picture-{number}-small.jpg" for number in range(30))
    ended = [handle.get() for handle in handles]
    assert {task.state for task in ended} == {"completed"}
    again = [counted_attempts(tasks.attempts(task.id)) for task in ended if task.attempt > 1]
    assert {outcome for attempts in again for _, outcome in attempts[:-1]} == {"lost"}
    assert ("worker-2", "lost") in {attempt for attempts in again for attempt in attempts}
    assert {outcome for attempts in again for _, outcome in attempts[-1:]} == {"completed"}
    assert [workers[0].terminate(), workers[2].terminate()] == [0, 0]


def counted_attempts(attempts: list[AttemptResponse]) -> list[tuple[str | None, str | None]]:
    """Return the worker and the outcome of each attempt. Released attempts do not count."""
    return [(one.worker, one.outcome) for one in attempts if one.outcome != "released"]


def test_the_script_lists_the_tasks_of_each_worker(example: ExampleRun) -> None:
    example.serve()
    example.workers("worker_fleet", "fleet:eb")
    output = example.script("worker_fleet", "fleet.py", "10", "0.1")
    assert "completed 10" in output
    assert "worker-1: 10" in output
