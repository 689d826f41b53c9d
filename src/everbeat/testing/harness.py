"""The harness: walks an app through time, and calls its handlers in the test."""

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
from everbeat.testing.node import WORKER, Ending, SteppedNode
from everbeat.worker.calls import HandlerCaller, Outcome
from everbeat.worker.running_task import RunningTask
from everbeat.worker.telemetry import WorkerTelemetry

_MEMORY_FOLDER = Path("/dev/shm")


class TooManyRuns(EverbeatError):
    """A test that never ends: a task that submits itself, or a dense schedule over a long time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskRun:
    """One attempt at one task. `state` is what became of the task: `retry` if it is to be tried again."""

    type: str
    arguments: Any
    state: Ending
    result: Any
    error: BaseException | None
    attempt: int
    at: datetime
    schedule: str | None
    scheduled_for: datetime | None
    task_id: UUID


class _Ask(NamedTuple):
    """To be awaited in the background."""

    work: Coroutine[Any, Any, Any]


class _Call(NamedTuple):
    """A handler to be called by the test; answered with its outcome."""

    running_task: RunningTask


_Walk = Generator[_Ask | _Call, Any, list[TaskRun]]


class Harness:
    """Runs an app in a test. `runs` is every attempt so far; `completed` and `failed` divide them."""

    def __init__(self, app: Everbeat, *, now: datetime | str | None = None, most_runs: int = 10_000) -> None:
        self.app = app
        self.clock = FakeClock(now if now is not None else datetime.now(UTC).replace(microsecond=0))
        self.runs: list[TaskRun] = []
        self._most_runs = most_runs
        self._errors: list[BaseException] = []
        self._resources = contextlib.ExitStack()
        self._runner: asyncio.Runner | None = None

    # Life

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="everbeat-test-", dir=_fast_folder()))
            registry = dataclasses.replace(self.app.registry, on_error=[*self.app.registry.on_error, self._note_error])
            self._node = SteppedNode(Path(folder) / "test.db", self.clock, registry)
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
        """Run all that is due by the clock, until nothing is left; what ran. `raise_errors`: the first error of a handler."""
        walk = self._walk()
        response: Any = None
        while True:
            try:
                step = walk.send(response)
            except StopIteration as done:
                return self._told(done.value, raise_errors)
            if isinstance(step, _Ask):
                response = asyncio.run_coroutine_threadsafe(step.work, self._background.bound.loop).result()
            elif step.running_task.definition.is_async:
                response = self._loop().run(self._caller.call(step.running_task))
            else:
                response = self._caller.call_in_thread(step.running_task)

    async def run_due_async(self, *, raise_errors: bool = False) -> list[TaskRun]:
        """As `run_due`, with async handlers in this event loop."""
        walk = self._walk()
        response: Any = None
        while True:
            try:
                step = walk.send(response)
            except StopIteration as done:
                return self._told(done.value, raise_errors)
            if isinstance(step, _Ask):
                response = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(step.work, self._background.bound.loop))
            elif step.running_task.definition.is_async:
                response = await self._caller.call(step.running_task)
            else:
                response = self._caller.call_in_thread(step.running_task)

    def advance(self, duration: Duration, *, raise_errors: bool = False) -> list[TaskRun]:
        """Let time pass, with all that is due in it."""
        self.clock.advance(duration)
        return self.run_due(raise_errors=raise_errors)

    async def advance_async(self, duration: Duration, *, raise_errors: bool = False) -> list[TaskRun]:
        self.clock.advance(duration)
        return await self.run_due_async(raise_errors=raise_errors)

    def outage(self, duration: Duration) -> None:
        """Let time pass while Everbeat is down: what is due meanwhile is late, and left to each schedule's catch_up."""
        self.clock.advance(duration)
        self.clock.skip()

    # Looking

    @property
    def completed(self) -> list[TaskRun]:
        return [run for run in self.runs if run.state == "completed"]

    @property
    def failed(self) -> list[TaskRun]:
        """Every attempt that failed, also those that are to be tried again."""
        return [run for run in self.runs if run.state != "completed"]

    def runs_of(self, task: Task[..., ..., Any] | str) -> list[TaskRun]:
        name = task if isinstance(task, str) else task.name
        return [run for run in self.runs if run.type == name]

    def waiting(self) -> list[TaskResponse]:
        """The tasks that have not started."""
        states = ("ready", "scheduled", "held")
        return [task for state in states for task in self.app.client.tasks.list(state=state, limit=None)]

    # Inside

    def _walk(self) -> _Walk:
        """From moment to moment, each until nothing more is due in it."""
        ran: list[TaskRun] = []
        until = self.clock.step_back()
        at: datetime | None = self.clock.now()
        while at is not None:
            self.clock.step_to(at)
            known = -1
            while known < len(ran):
                known = len(ran)
                yield _Ask(self._node.settle())
                yield from self._run_ready(ran)
            at = yield _Ask(self._node.next_at(until))
        self.clock.step_to(until)
        return ran

    def _run_ready(self, ran: list[TaskRun]) -> Generator[_Ask | _Call, Any, None]:
        while (task := (yield _Ask(self._node.claim()))) is not None:
            running_task = RunningTask(task, self.app.registry.tasks[task.type], 0.0, 0.0)
            self._errors.clear()
            outcome = yield _Call(running_task)
            state = yield _Ask(self._node.report(running_task, outcome))
            ran.append(self._run_of(task, outcome, state))
            self.runs.append(ran[-1])
            self._check_end(ran)
            if self._errors and not isinstance(self._errors[0], Exception):
                raise self._errors[0]  # Ctrl-C, or pytest's own

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

    def _check_end(self, ran: list[TaskRun]) -> None:
        if len(ran) > self._most_runs:
            raise TooManyRuns(
                f"{len(ran)} runs and no end, the last one of {ran[-1].type}: does a task submit itself, or is a schedule too "
                "dense for the time that passed? Harness(most_runs=…) allows more"
            )

    def _note_error(self, _ctx: Any, error: BaseException) -> None:
        self._errors.append(error)

    def _told(self, ran: list[TaskRun], raise_errors: bool) -> list[TaskRun]:
        for run in ran:
            if raise_errors and run.error is not None:
                raise run.error
        return ran

    def _loop(self) -> asyncio.Runner:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner


def _fast_folder() -> str | None:
    """Memory, where there is some to be had as a folder: a test's database need not survive it."""
    return str(_MEMORY_FOLDER) if _MEMORY_FOLDER.is_dir() else None
