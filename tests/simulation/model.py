"""The invariants, checked after every committed transaction from its changed rows, and after every acknowledgement.

The model knows the tables, and what users and workers were told. It knows nothing about how the code decides: ticks come from
`rules.py`, positions and leases from the rows that were committed before.

I1: one task per tick. I2: nothing acknowledged is lost. I3: every task reaches an end. I4: only one end. I5: a stale fence
changes nothing. I6: a stale epoch changes nothing. I11: a pause and a cancel request are honored. `ledger`: each tick of a rule
in force has exactly one row, in order. `position`: a schedule moves forward only. `overlap`: a schedule has no more unfinished
tasks than it may. `auditor`: a false alarm. `order`: other rules that the tables imply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from tests.simulation.database import Cells, Change, Commit, Database
from tests.simulation.rules import Rule, rule_of

_FINAL = frozenset({"completed", "failed", "dead", "cancelled"})
_TABLES = ("schedules", "ticks", "tasks", "task_history", "attempts", "dead_letters", "partitions", "audit_findings", "pauses")


class Violation(Exception):
    """An invariant does not hold."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


class _Position(msgspec.Struct):
    """Up to where the ledger of a schedule is complete, and under which rule it continues."""

    rule: Rule
    status: str
    name: str
    at: int
    # The row was replaced by an older one behind the back of Everbeat. From then on only I1 is checked.
    is_restored: bool = False


class _Row:
    """A row with its cells by name."""

    __slots__ = ("_cells", "_columns")

    def __init__(self, columns: dict[str, int], cells: Cells) -> None:
        self._columns, self._cells = columns, cells

    def __getattr__(self, name: str) -> Any:
        return self._cells[self._columns[name]]


class _Rows(NamedTuple):
    old: Any
    new: Any


class Model:
    def __init__(self) -> None:
        self._columns: dict[str, dict[str, int]] = {}
        self._handlers: dict[str, Callable[[list[_Rows], Commit], None]] = {
            "partitions": self._on_partitions,
            "pauses": self._on_pauses,
            "tasks": self._on_tasks,
            "task_history": self._on_history,
            "attempts": self._on_attempts,
            "audit_findings": self._on_findings,
        }
        self.schedules: dict[bytes, Any] = {}
        self._positions: dict[bytes, _Position] = {}
        self._partitions: dict[int, Any] = {}
        # Where owner, epoch and number are among the cells of a partition.
        self._owner_cells = (0, 0, 0)
        self._tick_tasks: dict[tuple[bytes, int], bytes] = {}
        self.live: dict[bytes, Any] = {}
        self.ended: dict[bytes, Any] = {}
        self._attempts: dict[tuple[bytes, int], str] = {}
        self._leases: dict[tuple[bytes, int], str] = {}
        self._keys: dict[str, bytes] = {}
        self._pauses: dict[bytes, Any] = {}
        # The live tasks of each schedule that count against its concurrency.
        self._counted: dict[bytes, set[bytes]] = {}
        self._deletable: set[str] = set()
        self.fired = self.skipped = self.commits = 0

    def read_columns(self, database: Database) -> None:
        self._columns = {table: database.columns(table) for table in _TABLES}
        partitions = self._columns["partitions"]
        self._owner_cells = (partitions["owner"], partitions["epoch"], partitions["partition"])
        for cells in database.connection.execute("SELECT * FROM partitions"):
            row = _Row(self._columns["partitions"], cells)
            self._partitions[row.partition] = row

    # Commits

    def on_commit(self, commit: Commit) -> None:
        self.commits += 1
        by_table: dict[str, list[_Rows]] = {}
        for change in commit.changes:
            if change.table == "partitions" and self._is_renewal(change):
                self._note_partition(change)
            elif change.table in self._columns:
                by_table.setdefault(change.table, []).append(self._rows(change))
        for table, handler in self._handlers.items():
            if table in by_table:
                handler(by_table[table], commit)
        if "ticks" in by_table or "schedules" in by_table:
            self._on_ticks(by_table.get("ticks", []), by_table.get("schedules", []), commit)
        self._check_moves(by_table, commit)

    def _rows(self, change: Change) -> _Rows:
        columns = self._columns[change.table]
        return _Rows(
            None if change.old is None else _Row(columns, change.old), None if change.new is None else _Row(columns, change.new)
        )

    # Ownership

    def _is_renewal(self, change: Change) -> bool:
        """Whether a partition keeps its owner and epoch, as almost all that are written do."""
        old, new, (owner, epoch, _) = change.old, change.new, self._owner_cells
        return old is not None and new is not None and old[owner] == new[owner] and old[epoch] == new[epoch]

    def _note_partition(self, change: Change) -> None:
        assert change.new is not None
        self._partitions[change.new[self._owner_cells[2]]] = _Row(self._columns["partitions"], change.new)

    def _on_partitions(self, rows: list[_Rows], commit: Commit) -> None:
        for old, new in rows:
            self._partitions[new.partition] = new
            if old.owner == new.owner:
                if new.epoch != old.epoch:
                    raise Violation("I6", f"partition {new.partition} has a new epoch and the same owner")
                continue
            if new.owner is None:
                if new.epoch < old.epoch:
                    raise Violation("I6", f"the epoch of partition {new.partition} decreased")
                continue
            if new.epoch <= old.epoch:
                raise Violation("I6", f"partition {new.partition} has a new owner without a new epoch")
            is_free = old.owner is None or old.lease_until is None or old.lease_until <= commit.at
            was_set_back = not is_free and old.lease_until > commit.at + old.lease_seconds * 1_000_000
            if not is_free and not was_set_back:
                raise Violation("I6", f"partition {new.partition} was taken during the lease of its owner")

    # Pauses

    def _on_pauses(self, rows: list[_Rows], _commit: Commit) -> None:
        for old, new in rows:
            if new is None:
                del self._pauses[old.id]
            else:
                self._pauses[new.id] = new

    def _is_paused(self, row: Any, at: int) -> bool:
        """Whether the queue of a task or schedule is paused, or its tenant, or everything."""
        return any(
            one.ended_at is None
            and (one.until_at is None or one.until_at > at)
            and one.tenant_id in (None, row.tenant_id)
            and one.queue in (None, row.queue)
            for one in self._pauses.values()
        )

    # Schedules and their ledger

    def _on_ticks(self, ticks: list[_Rows], schedules: list[_Rows], commit: Commit) -> None:
        if any(old is not None for old, _ in ticks):
            raise Violation("I2", f"{commit.verb} changed or deleted rows of the ledger")
        rows: dict[bytes, list[Any]] = {}
        for _, new in ticks:
            rows.setdefault(new.schedule_id, []).append(new)
        changed = {(new or old).id: (old, new) for old, new in schedules}
        if len(changed) < len(schedules):  # several changes of a row in one transaction: its first and its last state count
            changed = _merged(schedules)
        for id_, (old, new) in changed.items():
            if old is None:
                self._positions[id_] = _Position(_rule(new), new.status, new.name, new.created_at)
        for id_, added in rows.items():
            self._check_ledger(id_, sorted(added, key=lambda row: row.scheduled_for), commit)
        for id_, (old, new) in changed.items():
            if new is None:
                if old.name not in self._deletable:
                    raise Violation("I2", f"{commit.verb} deleted schedule {old.name}, which nobody deleted")
                del self._positions[id_], self.schedules[id_]
                continue
            if old is not None:
                self._check_schedule(id_, old, new)
            self.schedules[id_] = new

    def _check_ledger(self, id_: bytes, rows: list[Any], commit: Commit) -> None:
        position = self._positions.get(id_)
        if position is None:
            raise Violation("ledger", f"{commit.verb} wrote a tick of a schedule that does not exist")
        for row in rows:
            self.fired += row.outcome == "fired"
            self.skipped += row.outcome != "fired"
            if not position.is_restored:
                self._check_tick(position, row, commit)
                position.at = row.scheduled_for if row.until is None else row.until
            if row.node is not None:
                self._check_owner(id_, row, commit, position.name)

    def _check_tick(self, position: _Position, row: Any, commit: Commit) -> None:
        rule = position.rule

        def where() -> str:
            return f"{position.name} at {_time(row.scheduled_for)} ({row.outcome} {row.reason or ''})"

        last = row.scheduled_for if row.until is None else row.until
        expected = rule.next_after(position.at)
        if row.scheduled_for != expected:
            kind = "is recorded again" if row.scheduled_for <= position.at else "is not the next tick"
            raise Violation("ledger", f"{where()} {kind}: expected {_time(expected)} after {_time(position.at)}")
        if not rule.is_tick(last):
            raise Violation("ledger", f"{where()} ends at {_time(last)}, which is no tick")
        count = rule.count_between(position.at, last)
        if row.count != count:
            raise Violation("ledger", f"{where()} counts {row.count} instead of {count} ticks until {_time(last)}")
        if last > commit.at:
            raise Violation("ledger", f"{where()} is in the future of the database, at {_time(commit.at)}")
        if row.outcome == "fired":
            if position.status != "active":
                raise Violation("ledger", f"{where()} fired while the schedule was {position.status}")
            task = self.live.get(row.task_id)
            if task is not None and self._is_paused(task, commit.at):
                raise Violation("I11", f"{where()} fired while its queue was paused")
            if task is None:
                raise Violation("I1", f"{where()} has no task in the transaction that fired it")
            same = task.schedule_id == row.schedule_id and task.scheduled_for == row.scheduled_for
            if not same:
                raise Violation("I1", f"{where()} names a task of another tick")

    def _check_owner(self, id_: bytes, row: Any, commit: Commit, name: str) -> None:
        schedule = self.schedules.get(id_)
        if schedule is None:
            return
        owned = self._partitions[schedule.partition]

        def where() -> str:
            return f"{name} at {_time(row.scheduled_for)}, written by {commit.process} with epoch {row.epoch}"

        is_owner = owned.owner == row.node and owned.epoch == row.epoch
        if not is_owner:
            kind = "another" if owned.owner else "no"
            raise Violation("I6", f"{where()}: the partition has {kind} owner and epoch {owned.epoch}")
        if owned.lease_until <= commit.at:
            raise Violation("I6", f"{where()}: the lease had expired at {_time(owned.lease_until)}")

    def _check_schedule(self, id_: bytes, old: Any, new: Any) -> None:
        position = self._positions[id_]
        rule = _rule(new)
        if new.revision == old.revision:
            is_backward = old.next_tick_at is not None and new.next_tick_at is not None and new.next_tick_at < old.next_tick_at
            if (is_backward or new.cursor_at < old.cursor_at) and not position.is_restored:
                moved = f"from {_time(old.next_tick_at)} to {_time(new.next_tick_at)}"
                raise Violation("position", f"{new.name} moved back {moved}")
        elif rule != position.rule or new.status != position.status:
            # Everything up to the change belongs to the former rule, and is recorded in the transaction of the change.
            if position.status != "finished" and not position.is_restored:
                missing = position.rule.next_after(position.at)
                is_complete = missing is None or missing > new.updated_at
                if not is_complete:
                    raise Violation("ledger", f"{new.name} was changed, and its tick {_time(missing)} is not recorded")
            position.at = max(position.at, new.updated_at)
            position.rule = rule
        position.status = new.status

    def restore(self, id_: bytes) -> None:
        """Stop checking the ledger of a schedule whose row is being replaced by an older one."""
        self._positions[id_].is_restored = True

    def missing_tick(self, id_: bytes) -> int | None:
        """The oldest tick of an active schedule without a ledger row."""
        position = self._positions[id_]
        if position.status != "active" or position.is_restored:
            return None
        return position.rule.next_after(position.at)

    # Tasks

    def _on_tasks(self, rows: list[_Rows], commit: Commit) -> None:
        released: set[bytes] = set()
        for old, new in rows:
            if old is None:
                self._check_new_task(new)
            elif new is not None:
                self._check_task(old, new, commit)
            if new is not None and new.state == "running" and (old is None or old.state != "running"):
                self._check_start(new, commit)
            if new is None:
                del self.live[old.id]
            else:
                self.live[new.id] = new
            if self._count(old, new):
                released.add(new.schedule_id)
        for id_ in released:
            self._check_concurrency(id_, commit)

    def _count(self, old: Any, new: Any) -> bool:
        """Note whether a task counts against the concurrency of its schedule. Returns whether a tick has begun to count."""
        row = new or old
        if row.schedule_id is None or row.origin == "backfill":
            return False
        counted = self._counted.setdefault(row.schedule_id, set())
        if new is None or new.state == "held":
            counted.discard(row.id)
            return False
        is_new = new.id not in counted
        counted.add(new.id)
        return is_new and new.origin == "tick"

    def _check_concurrency(self, id_: bytes, commit: Commit) -> None:
        schedule, count = self.schedules.get(id_), len(self._counted[id_])
        if schedule is not None and count > schedule.concurrency:
            limit = f"{schedule.name} has {count} unfinished tasks, and may have {schedule.concurrency}"
            raise Violation("overlap", f"{limit}: {commit.verb} at {_time(commit.at)}")

    def _check_start(self, new: Any, commit: Commit) -> None:
        """Nothing starts after a pause, except what was triggered by hand. Attempts that had started continue with retries."""
        if new.origin != "trigger" and self._is_paused(new, commit.at):
            raise Violation("I11", f"{_task(new)} was claimed at {_time(commit.at)}, while the queue {new.queue} was paused")
        schedule = self.schedules.get(new.schedule_id)
        if schedule is not None and schedule.status == "paused" and new.origin == "tick" and new.fence == 1:
            raise Violation("I11", f"{_task(new)} was claimed at {_time(commit.at)}, while {schedule.name} was paused")

    def _check_new_task(self, new: Any) -> None:
        is_new = new.id not in self.live and new.id not in self.ended
        if not is_new:
            raise Violation("I4", f"{_task(new)} was written again")
        if new.origin == "tick":
            key = (new.schedule_id, new.scheduled_for)
            if key in self._tick_tasks:
                raise Violation("I1", f"{_task(new)} is the second task of the tick {_time(new.scheduled_for)}")
            self._tick_tasks[key] = new.id

    def _check_task(self, old: Any, new: Any, commit: Commit) -> None:
        def where() -> str:
            return f"{_task(new)}, {commit.verb} at {_time(commit.at)}"

        was_leased = old.state == "running" and old.lease_until > commit.at
        if old.state == "running" and new.state == "running":
            same = (old.fence, old.lease_owner, old.attempt) == (new.fence, new.lease_owner, new.attempt)
            if not same:
                raise Violation("I5", f"{where()}: a running task was claimed again")
            if not was_leased and old.lease_until != new.lease_until:
                raise Violation("I5", f"{where()}: an expired lease was renewed")
            if new.lease_until < min(old.lease_until, commit.at + round(new.lease_seconds * 1_000_000)):
                raise Violation("I5", f"{where()}: a lease that holds was shortened to {_time(new.lease_until)}")
            if new.progress_message != old.progress_message:
                named = _fence_in(new.progress_message)
                if named != new.fence:
                    raise Violation("I5", f"{where()}: a heartbeat with fence {named} changed fence {new.fence}")
        elif new.state == "running":
            if new.fence != old.fence + 1:
                raise Violation("I5", f"{where()}: the fence of the claim is {new.fence} after {old.fence}")
            if old.state != "ready":
                raise Violation("order", f"{where()}: it was claimed while it was {old.state}")
            if new.attempt > new.max_attempts:
                raise Violation("order", f"{where()}: attempt {new.attempt} of {new.max_attempts}")
        else:
            if new.fence != old.fence:
                raise Violation("I5", f"{where()}: the fence changed without a claim")

    def _on_history(self, rows: list[_Rows], commit: Commit) -> None:
        for old, new in rows:
            if new is None:
                raise Violation("I2", f"{commit.verb} deleted a finished task")
            if old is not None:
                raise Violation("I4", f"{_task(new)} was changed after its end")
            if new.id in self.ended:
                raise Violation("I4", f"{_task(new)} ended twice")
            if new.state not in _FINAL:
                raise Violation("I4", f"{_task(new)} ended as {new.state}")
            if new.state == "completed":
                named = _fence_in(new.result)
                if named != new.fence:
                    raise Violation("I5", f"{_task(new)} was completed with fence {named} instead of {new.fence}")
            self.ended[new.id] = new

    def _on_attempts(self, rows: list[_Rows], commit: Commit) -> None:
        for old, new in rows:
            if new is None or old is not None:
                raise Violation("I2", f"{commit.verb} changed or deleted an attempt")
            key = (new.task_id, new.fence)
            if key in self._attempts:
                raise Violation("I4", f"attempt {new.attempt} of {UUID(bytes=new.task_id)} ended twice")
            self._attempts[key] = new.outcome
            named = _fence_in(new.error) if new.outcome == "failed" else None
            if named not in (None, new.fence):
                raise Violation("I5", f"an attempt with fence {new.fence} ended by a report with fence {named}")

    def _on_findings(self, rows: list[_Rows], commit: Commit) -> None:
        """The auditor must not report a tick that is not missing or doubled, whatever happens at the same time."""
        for old, new in rows:
            if old is None and new.kind in ("missing", "doubled"):
                position = self._positions.get(new.schedule_id)
                if position is not None and not position.is_restored:
                    at = _time(new.scheduled_for)
                    raise Violation("auditor", f"a false alarm at {_time(commit.at)}: {position.name} at {at} is {new.kind}")

    def _check_moves(self, by_table: dict[str, list[_Rows]], commit: Commit) -> None:
        """A task leaves the live tasks and enters the history in one transaction, with its dead letter."""
        ended = {new.id: new for _, new in by_table.get("task_history", [])}
        dead = {new.task_id for old, new in by_table.get("dead_letters", []) if old is None}
        for old, new in by_table.get("tasks", []):
            if new is None:
                history = ended.get(old.id)
                if history is None:
                    raise Violation("I2", f"{commit.verb} deleted {_task(old)} without a row in the history")
                if history.fence != old.fence:
                    raise Violation("I5", f"{_task(old)} ended with fence {history.fence} instead of {old.fence}")
                if history.state == "completed" and old.lease_until <= commit.at:
                    raise Violation("I5", f"{_task(old)} was completed after the end of its lease at {_time(old.lease_until)}")
                if (history.state == "dead") != (old.id in dead):
                    raise Violation("I2", f"{_task(old)}: {history.state}, dead letter: {old.id in dead}")
            elif new.id in ended:
                raise Violation("I4", f"{_task(new)} is live and finished")
            elif old is not None and old.state == "running" and new.state != "running":
                self._check_put_back(old, commit)
        for id_ in ended:
            if id_ in self.live:
                raise Violation("I4", f"{UUID(bytes=id_)} is live and finished")

    def _check_put_back(self, old: Any, commit: Commit) -> None:
        outcome = self._attempts.get((old.id, old.fence))
        if outcome is None:
            raise Violation("I2", f"{_task(old)} was put back, and its attempt is not recorded")
        if old.cancel_requested:
            raise Violation("I11", f"{_task(old)} was put back after a cancel request")
        if outcome == "lost" and old.lease_until > commit.at:
            until = _time(old.lease_until)
            raise Violation("I5", f"{_task(old)} is lost at {_time(commit.at)}, but its lease ends at {until}")

    # What users and workers were told

    def deleting(self, name: str) -> None:
        """Somebody requests the deletion of this schedule; it may happen at any time from now on."""
        self._deletable.add(name)

    def acknowledged_schedule(self, id_: UUID, name: str, revision: int, status: str) -> None:
        row = self.schedules.get(id_.bytes)
        if row is None:
            if name not in self._deletable:
                raise Violation("I2", f"the acknowledged schedule {name} is not in the database")
            return
        if row.revision < revision:
            raise Violation("I2", f"revision {revision} of {name} was acknowledged; the database has {row.revision}")
        if row.revision == revision:
            same = row.status == status or {row.status, status} == {"active", "finished"}
            if not same:
                raise Violation("I2", f"{name} was acknowledged as {status}, and is {row.status}")

    def acknowledged_submit(self, id_: UUID, key: str | None) -> None:
        known = id_.bytes in self.live or id_.bytes in self.ended
        if not known:
            raise Violation("I2", f"the acknowledged task {id_} is not in the database")
        if key is not None:
            first = self._keys.setdefault(key, id_.bytes)
            if first != id_.bytes:
                raise Violation("I1", f"the key {key} has two tasks: {UUID(bytes=first)} and {id_}")

    def acknowledged_claim(self, id_: UUID, fence: int, worker: str) -> None:
        holder = self._leases.setdefault((id_.bytes, fence), worker)
        if holder != worker:
            raise Violation("I5", f"fence {fence} of task {id_} was given to {holder} and to {worker}")

    def acknowledged_completion(self, id_: UUID, fence: int) -> None:
        row = self.ended.get(id_.bytes)
        done = row is not None and row.state == "completed" and row.fence == fence
        if not done:
            raise Violation("I2", f"the acknowledged completion of {id_} with fence {fence} is not in the database")

    def acknowledged_failure(self, id_: UUID, fence: int) -> None:
        row = self.ended.get(id_.bytes)
        done = (id_.bytes, fence) in self._attempts or (row is not None and row.fence == fence)
        if not done:
            raise Violation("I2", f"the acknowledged failure of {id_} with fence {fence} is not in the database")

    def acknowledged_cancel(self, id_: UUID) -> None:
        row = self.live.get(id_.bytes)
        if row is not None:
            if not bool(row.cancel_requested):
                raise Violation("I2", f"the acknowledged cancel request of {id_} is not in the database")
            return
        if id_.bytes not in self.ended:
            raise Violation("I2", f"the cancelled task {id_} is not in the database")

    def describe(self, task: Any) -> str:
        """A live task with its schedule, for messages."""
        schedule = self.schedules.get(task.schedule_id)
        if schedule is None:
            return f"{_task(task)}{'' if task.schedule_id is None else ' of a deleted schedule'}"
        return f"{_task(task)} of {schedule.name} ({schedule.status}, {schedule.overlap}, at most {schedule.concurrency})"


def _merged(rows: list[_Rows]) -> dict[bytes, tuple[Any, Any]]:
    merged: dict[bytes, tuple[Any, Any]] = {}
    for old, new in rows:
        id_ = (new or old).id
        merged[id_] = (merged[id_][0] if id_ in merged else old, new)
    return merged


def _rule(row: Any) -> Rule:
    return rule_of(row.trigger_kind, row.trigger_text, row.timezone, row.anchor, row.starts_at, row.ends_at)


def _fence_in(text: str | None) -> int | None:
    """The fence that a simulated worker has written into its result, error or progress as `fence=N`."""
    if text is None or "fence=" not in text:
        return None
    digits = text.split("fence=", 1)[1]
    end = next((index for index, character in enumerate(digits) if not character.isdigit()), len(digits))
    return int(digits[:end])


def _task(row: Any) -> str:
    return f"task {UUID(bytes=row.id)} ({row.origin}, {row.state}, fence {row.fence})"


def _time(microseconds: int | None) -> str:
    if microseconds is None:
        return "never"
    from datetime import UTC, datetime, timedelta

    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)).isoformat()
