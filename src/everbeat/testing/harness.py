"""The test harness: advances an app through time and calls its handlers in the test."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import tempfile
from collections.abc import Coroutine, Generator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import UUID

import msgspec

from everbeat.app import Everbeat
from everbeat.client.connections import BackgroundNode
from everbeat.client.durations import Duration
from everbeat.client.tasks import Task
from everbeat.core.errors import EverbeatError
from everbeat.core.protocol import LeaseCompletion
from everbeat.core.responses import TaskResponse
from everbeat.core.tasks import ClaimedTask
from everbeat.testing.clock import FakeClock
from everbeat.testing.node import WORKER, RunState, SteppedNode
from everbeat.worker.calls import HandlerCaller, Outcome
from everbeat.worker.running_task import RunningTask
from everbeat.worker.telemetry import WorkerTelemetry

_MEMORY_DIRECTORY = Path("/dev/shm")


class TooManyRuns(EverbeatError):
    """The test ran too many tasks: a task submits itself, or a schedule fires too often for the time that passed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskRun:
    """One attempt of a task. `state` is the state of the task after the attempt, or `retry` if it will be retried."""

    type: str
    arguments: Any
    state: RunState
    result: Any
    error: BaseException | None
    attempt: int
    at: datetime
    schedule: str | None
    scheduled_for: datetime | None
    task_id: UUID


class _Await(NamedTuple):
    """A step: await a coroutine on the background event loop. The result is sent back."""

    work: Coroutine[Any, Any, Any]


class _CallHandler(NamedTuple):
    """A step: call the handler of a task in the test. The outcome is sent back."""

    running_task: RunningTask


_Steps = Generator[_Await | _CallHandler, Any, list[TaskRun]]


class Harness:
    """Runs an app in a test. `runs` lists all attempts so far; `completed` and `failed` are its two parts."""

    def __init__(self, app: Everbeat, *, now: datetime | str | None = None, max_runs: int = 10_000) -> None:
        self.app = app
        self.clock = FakeClock(now if now is not None else datetime.now(UTC).replace(microsecond=0))
        self.runs: list[TaskRun] = []
        self._max_runs = max_runs
        self._errors: list[BaseException] = []
        self._resources = contextlib.ExitStack()
        self._runner: asyncio.Runner | None = None

    # Start and stop

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="everbeat-test-", dir=_memory_directory()))
            registry = dataclasses.replace(self.app.registry, on_error=[*self.app.registry.on_error, self._record_error])
            self._node = SteppedNode(Path(directory) / "test.db", self.clock, registry)
            self._background = BackgroundNode(self._node.start)
            stack.callback(self._background.close)
            self._caller = HandlerCaller(registry, WORKER, WorkerTelemetry(WORKER), self._background.bound.loop)
            stack.enter_context(self.app.placed(self._background.bound))
            stack.callback(self._close_runner)
            self._resources = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._resources.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._resources.close)

    def _close_runner(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    # Running

    def run_due(self, *, raise_errors: bool = False) -> list[TaskRun]:
        """Run everything that is due, and return the runs. `raise_errors` raises the first error of a handler."""
        steps = self._steps()
        result: Any = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as done:
                return self._check_errors(done.value, raise_errors)
            if isinstance(step, _Await):
                result = asyncio.run_coroutine_threadsafe(step.work, self._background.bound.loop).result()
            elif step.running_task.definition.is_async:
                result = self._loop().run(self._caller.call(step.running_task))
            else:
                result = self._caller.call_in_thread(step.running_task)

    async def run_due_async(self, *, raise_errors: bool = False) -> list[TaskRun]:
        """Like `run_due`, with async handlers on the running event loop."""
        steps = self._steps()
        result: Any = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as done:
                return self._check_errors(done.value, raise_errors)
            if isinstance(step, _Await):
                result = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(step.work, self._background.bound.loop))
            elif step.running_task.definition.is_async:
                result = await self._caller.call(step.running_task)
            else:
                result = self._caller.call_in_thread(step.running_task)

    def advance(self, duration: Duration, *, raise_errors: bool = False) -> list[TaskRun]:
        """Advance the clock and run everything that becomes due, each at its own time."""
        self.clock.advance(duration)
        return self.run_due(raise_errors=raise_errors)

    async def advance_async(self, duration: Duration, *, raise_errors: bool = False) -> list[TaskRun]:
        self.clock.advance(duration)
        return await self.run_due_async(raise_errors=raise_errors)

    def outage(self, duration: Duration) -> None:
        """Advance the clock as if Everbeat were down: ticks due in the meantime are late, and the catch_up policies apply."""
        self.clock.advance(duration)
        self.clock.skip()

    # Results

    @property
    def completed(self) -> list[TaskRun]:
        return [run for run in self.runs if run.state == "completed"]

    @property
    def failed(self) -> list[TaskRun]:
        """The attempts that failed, including those that will be retried."""
        return [run for run in self.runs if run.state != "completed"]

    def runs_of(self, task: Task[..., ..., Any, Any] | str) -> list[TaskRun]:
        name = task if isinstance(task, str) else task.name
        return [run for run in self.runs if run.type == name]

    def waiting(self) -> list[TaskResponse]:
        """The tasks that have not started."""
        states = ("ready", "scheduled", "held")
        return [task for state in states for task in self.app.client.tasks.list(state=state, limit=None)]

    # Internals

    def _steps(self) -> _Steps:
        """Step the clock through the times at which something is due, and run everything due at each of them."""
        runs: list[TaskRun] = []
        until = self.clock.step_back()
        at: datetime | None = self.clock.now()
        while at is not None:
            self.clock.step_to(at)
            run_count = -1
            while run_count < len(runs):
                run_count = len(runs)
                yield _Await(self._node.make_ready())
                yield from self._run_ready(runs)
            at = yield _Await(self._node.next_at(until))
        self.clock.step_to(until)
        return runs

    def _run_ready(self, runs: list[TaskRun]) -> Generator[_Await | _CallHandler, Any, None]:
        while (task := (yield _Await(self._node.claim()))) is not None:
            running_task = RunningTask(task, self.app.registry.tasks[task.type], 0.0, 0.0)
            self._errors.clear()
            outcome = yield _CallHandler(running_task)
            state = yield _Await(self._node.report(running_task, outcome))
            runs.append(self._run_of(task, outcome, state))
            self.runs.append(runs[-1])
            self._check_run_count(runs)
            if self._errors and not isinstance(self._errors[0], Exception):
                raise self._errors[0]  # KeyboardInterrupt, or an exception of pytest

    def _run_of(self, task: ClaimedTask, outcome: Outcome, state: Any) -> TaskRun:
        return TaskRun(
            type=task.type,
            arguments=msgspec.json.decode(task.payload),
            state=state,
            result=msgspec.json.decode(msgspec.json.encode(outcome.result)) if isinstance(outcome, LeaseCompletion) else None,
            error=self._errors[0] if self._errors else None,
            attempt=task.attempt,
            at=self.clock.now(),
            schedule=task.schedule,
            scheduled_for=task.scheduled_for,
            task_id=task.id,
        )

    def _check_run_count(self, runs: list[TaskRun]) -> None:
        if len(runs) > self._max_runs:
            raise TooManyRuns(
                f"more than {self._max_runs} runs, the last one of {runs[-1].type}: does a task submit itself, or does a "
                "schedule fire too often for the time that passed? Harness(max_runs=…) raises the limit"
            )

    def _record_error(self, _ctx: Any, error: BaseException) -> None:
        self._errors.append(error)

    def _check_errors(self, runs: list[TaskRun], raise_errors: bool) -> list[TaskRun]:
        for run in runs:
            if raise_errors and run.error is not None:
                raise run.error
        return runs

    def _loop(self) -> asyncio.Runner:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner


def _memory_directory() -> str | None:
    """Return a directory in memory, if the system has one, because a test's database need not be durable."""
    return str(_MEMORY_DIRECTORY) if _MEMORY_DIRECTORY.is_dir() else None
