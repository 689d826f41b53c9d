"""One run: executes a plan, heals everything, and waits until all ticks are recorded and all tasks have ended."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import apsw

from everbeat.core.errors import EverbeatError
from everbeat.core.schedules import DEFAULT_TENANT
from everbeat.services.audit import AuditReport
from everbeat.store.sqlite.conversions import from_microseconds
from tests.simulation import mutations
from tests.simulation.clients import QUEUES, User, Worker
from tests.simulation.database import Commit, Database
from tests.simulation.model import Model, Violation
from tests.simulation.nodes import Node, stretch_constants
from tests.simulation.plan import Entry, Plan
from tests.simulation.rules import SECOND
from tests.simulation.virtual_time import (
    ProcessState,
    VirtualLoop,
    begin_run,
    real_perf_counter,
    real_process_time,
)

_FAR = "2040-01-01T00:00:00Z"


class Outcome(NamedTuple):
    """The result of a run. `digest`: a hash of all commits, equal in every run of the same plan."""

    violation: str | None
    invariant: str | None
    at_seconds: float
    digest: str
    counts: dict[str, float]


def run_plan(plan: Plan) -> Outcome:
    """Run a plan. The caller must have called `virtual_time.install`."""
    with mutations.applied(plan.mutation) as change_schema:
        return Run(plan, change_schema).execute()


class Run:
    def __init__(self, plan: Plan, change_schema: Callable[[apsw.Connection], None]) -> None:
        self.plan = plan
        self._change_schema = change_schema
        self.scale = plan.scale
        self.model = Model()
        self.loop = VirtualLoop(plan.seed)
        self.database = Database(self.loop, self._on_commit)
        self.client_loss = 0.0
        self.client_delay_seconds = 0.0
        self.is_draining = False
        self._failure: Exception | None = None
        self._random = Random(f"{plan.seed}/run")
        self._slots: list[Node | None] = [None] * plan.nodes
        self._numbers = itertools.count()
        self._is_healed = False
        self._submitted: list[UUID] = []
        self._background: set[asyncio.Task[None]] = set()
        self._digest = hashlib.sha256()
        self._verbs: Counter[str] = Counter()
        self._up_seconds = 0.0
        self._restored: dict[bytes, Any] = {}

    def nodes(self) -> list[Node]:
        return [node for node in self._slots if node is not None and node.is_up]

    # Life of the run

    def execute(self) -> Outcome:
        began, cpu = real_perf_counter(), real_process_time()
        begin_run(self.plan.seed, self.loop, self.database.now)
        stretch_constants(self.scale)
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        self.loop.set_exception_handler(self._on_unhandled)
        asyncio.set_event_loop(None)
        main = self.loop.create_task(self._main())
        main.add_done_callback(self._on_main_done)
        self.loop.run_forever()
        elapsed = self.loop.time()
        self._discard()
        counts = {
            "node_hours": self._up_seconds / 3600,
            "virtual_seconds": elapsed,
            "real_seconds": real_perf_counter() - began,
            "cpu_seconds": real_process_time() - cpu,
            "store_calls": self.database.calls,
            "steps": self.loop.step_count,
            "commits": self.model.commits,
            "fired": self.model.fired,
            "skipped": self.model.skipped,
            "tasks": len(self.model.ended),
        }
        failure = self._failure
        invariant = failure.invariant if isinstance(failure, Violation) else None if failure is None else "error"
        text = None if failure is None else str(failure) if isinstance(failure, Violation) else repr(failure)
        return Outcome(text, invariant, elapsed, self._digest.hexdigest()[:16], counts)

    def fail(self, failure: Exception) -> None:
        """Note the first failure, and end the run."""
        if self._failure is None:
            self._failure = failure
        self.loop.stop()

    def _on_main_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and isinstance(error, Exception):
            self.fail(error)
        self.loop.stop()

    def _on_unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, EverbeatError | TimeoutError):
            self.fail(error)

    def _on_commit(self, commit: Commit) -> None:
        self._digest.update(f"{commit.verb} {commit.process} {commit.at} {len(commit.changes)}\n".encode())
        try:
            self.model.on_commit(commit)
        except Violation as violation:
            self.fail(violation)

    def _discard(self) -> None:
        """End all tasks, also those of dead processes, without executing anything on the database."""
        self.database.is_down = True
        self.loop.set_exception_handler(lambda _loop, _context: None)
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.loop.close()
        self.database.connection.preupdate_hook(None)
        self.database.connection.close()

    async def _main(self) -> None:
        await self.database.create(self._change_schema)
        self.model.read_columns(self.database)
        for slot in range(self.plan.nodes):
            self._start(slot)
        for entry in self.plan.entries:
            await self._sleep_until(entry.at)
            self._execute(entry)
        await self._sleep_until(self.plan.seconds)
        await self._heal()
        await self._wait_until_caught_up()
        await self._drain()
        await self._audit()

    async def _sleep_until(self, at: float) -> None:
        if at > self.loop.time():
            await self._sleep(at - self.loop.time())

    async def _sleep(self, seconds: float) -> None:
        before = self.loop.time()
        await asyncio.sleep(seconds)
        up = sum(node.process.state is not ProcessState.DEAD for node in self._slots if node is not None)
        self._up_seconds += (self.loop.time() - before) * up

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        self.loop.call_later(seconds, self._unless_healed, do)

    def _unless_healed(self, do: Callable[[], None]) -> None:
        if not self._is_healed:
            do()

    def _spawn(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._on_background_done)

    def _on_background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    # Entries of the plan

    def _execute(self, entry: Entry) -> None:
        if entry.kind == "worker":
            name = entry.data["name"]
            worker = Worker(self, Random(f"{self.plan.seed}/{name}"), name, entry.data["mood"])
            self._spawn(worker.run())
        elif entry.is_fault:
            getattr(self, f"_{entry.kind}")(entry)
        else:
            user = User(self, Random(f"{self.plan.seed}/{entry.kind}/{entry.at}"), self._submitted)
            self._spawn(user.run(entry.kind, entry.data))

    def _targets(self, entry: Entry) -> list[Node]:
        slot = entry.data.get("node")
        return self.nodes() if slot is None else [node for node in self.nodes() if node.slot == slot]

    def _start(self, slot: int) -> None:
        others = lambda: [node.notices for node in self.nodes()]  # noqa: E731
        node = Node(slot, next(self._numbers), self.database, self.plan.seed, self.scale, others, self.fail)
        node.process.clock_rate = 1 + self._random.uniform(-0.01, 0.01)
        self._slots[slot] = node
        node.start()

    def _restart(self, slot: int) -> None:
        node = self._slots[slot]
        if node is None or not node.is_up:
            self._start(slot)

    def _crash(self, entry: Entry) -> None:
        for node in self._targets(entry):
            node.kill()
            self._later(entry.seconds, lambda slot=node.slot: self._restart(slot))  # type: ignore[misc]

    def _stop(self, entry: Entry) -> None:
        for node in self._targets(entry):
            stopping = node.stop()
            stopping.add_done_callback(self._on_background_done)
            self._later(entry.seconds, lambda slot=node.slot: self._restart(slot))  # type: ignore[misc]

    def _freeze(self, entry: Entry) -> None:
        for node in self._targets(entry):
            node.freeze()
            self._later(entry.seconds, lambda node=node: node.thaw(self.loop))  # type: ignore[misc]

    def _cut(self, entry: Entry) -> None:
        self._change_links(entry, is_cut=True)

    def _slow(self, entry: Entry) -> None:
        self._change_links(entry, max_delay_seconds=entry.data["max_delay"])

    def _lossy(self, entry: Entry) -> None:
        self._change_links(entry, lost_requests=entry.data["requests"], lost_replies=entry.data["replies"])

    def _orphan(self, entry: Entry) -> None:
        self._change_links(entry, orphaned=entry.data["orphaned"], orphan_delay_seconds=entry.data["max_delay"])

    def _locked(self, entry: Entry) -> None:
        self._change_links(entry, locked=entry.data["locked"])

    def _change_links(self, entry: Entry, **fields: Any) -> None:
        for node in self._targets(entry):
            for field, value in fields.items():
                usual = type(value)()
                setattr(node.link, field, value)
                self._later(entry.seconds, lambda link=node.link, field=field, usual=usual: setattr(link, field, usual))  # type: ignore[misc]

    def _deaf(self, entry: Entry) -> None:
        for node in self._targets(entry):
            node.notices.lost = entry.data["lost"]
            self._later(entry.seconds, lambda notices=node.notices: setattr(notices, "lost", 0.0))  # type: ignore[misc]

    def _down(self, entry: Entry) -> None:
        self.database.is_down = True
        self._later(entry.seconds, lambda: setattr(self.database, "is_down", False))

    def _step(self, entry: Entry) -> None:
        self.database.offset_microseconds += round(entry.data["by"] * SECOND)

    def _skew(self, entry: Entry) -> None:
        for node in self._targets(entry):
            node.process.wall_skew_seconds = entry.data["by"]

    def _clients(self, entry: Entry) -> None:
        self.client_loss, self.client_delay_seconds = entry.data["lost"], entry.data["max_delay"]

        def restore() -> None:
            self.client_loss = self.client_delay_seconds = 0.0

        self._later(entry.seconds, restore)

    def _restore(self, entry: Entry) -> None:
        """Replace rows of `schedules` by older ones later on, as a restore of this table alone would do."""
        for row in self.model.schedules.values():
            if row.status == "active" and row.name in entry.data["names"]:
                self._restored[row.id] = (row.revision, row.cursor_at, row.next_tick_at, row.due_at)
                self._later(entry.seconds, lambda id_=row.id: self._write_restored(id_))  # type: ignore[misc]

    def _write_restored(self, id_: bytes) -> None:
        row = self.model.schedules.get(id_)
        revision, *position = self._restored[id_]
        if row is not None and row.status == "active" and row.revision == revision:
            self.model.restore(id_)
            sql = "UPDATE schedules SET cursor_at = ?, next_tick_at = ?, due_at = ? WHERE id = ?"
            self.database.write("restore", "administrator", lambda session: session.connection.execute(sql, (*position, id_)))

    # After the faults

    async def _heal(self) -> None:
        self._is_healed = True
        self.database.is_down = False
        self.client_loss = self.client_delay_seconds = 0.0
        for slot, node in enumerate(self._slots):
            if node is not None and node.is_up:
                node.thaw(self.loop)
                link = node.link
                link.is_cut, link.max_delay_seconds, link.lost_requests, link.lost_replies, link.locked = (
                    False,
                    0.0,
                    0.0,
                    0.0,
                    0.0,
                )
                node.notices.lost = 0.0
            else:
                self._start(slot)
        for number in range(2):
            mood = {"complete": 1.0}
            entry = Entry(self.loop.time(), "worker", data={"name": f"healthy-{number}", "mood": mood})
            self._execute(entry)

    async def _wait_until_caught_up(self) -> None:
        """Wait until every schedule has caught up. The longest grace is three leases, and catching up takes as long again."""
        lease = 10 * self.scale
        await self._sleep(8 * lease)
        allowed = round(3 * lease * SECOND)
        for id_, row in self.model.schedules.items():
            missing = self.model.missing_tick(id_)
            if missing is not None and missing + row.jitter_seconds * SECOND < self.database.now() - allowed:
                at = from_microseconds(missing)
                raise Violation("I3", f"{row.name} has not caught up after healing: its tick at {at} has no row")

    async def _drain(self) -> None:
        """End all schedules, and wait until every task has ended. Ending one records all ticks of its rule up to then."""
        self.is_draining = True
        user = User(self, Random(0), self._submitted)
        for queue in (None, *QUEUES):
            await user.resume_queue(queue)
        for row in list(self.model.schedules.values()):
            target = {"kind": "worker", "type": "work", "queue": QUEUES[0]}
            await user.put(row.name, {"at": _FAR, "target": target, "overlap": row.overlap})
            await user.resume(row.name)
        lease = 10 * self.scale
        for _ in range(300):
            await self._sleep(0.5 * lease)
            if not self.model.live:
                return
        live = [self.model.describe(row) for row in self.model.live.values()]
        raise Violation("I3", f"{len(live)} tasks have not ended after healing: {'; '.join(live[:5])}")

    async def _audit(self) -> None:
        """Compare the audit of the code itself with the model."""
        if self._restored:
            return
        start = from_microseconds(self.database.now()) - timedelta(seconds=self.loop.time() + 30 * 86_400)
        user = User(self, Random(0), self._submitted)
        report: AuditReport | None = await user.call_repeatedly(
            lambda engine: engine.audit.run(DEFAULT_TENANT, from_=start, to=None)
        )
        if report is None or report.total.missing or report.total.doubled:
            raise Violation("order", f"the audit disagrees with the model: {None if report is None else report.total}")
