"""Carries out the faults of the plan on nodes, workers and links. Faults of the database are in database_faults.py."""

from __future__ import annotations

import random
import resource
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from tests.chaos.api import Api, seconds
from tests.chaos.catalog import GROUPS
from tests.chaos.cluster import LEASE_SECONDS, ChaosCluster, Slot
from tests.chaos.database_faults import PostgresFaults, SqliteFaults
from tests.chaos.plan import PlannedFault
from tests.chaos.records import Log
from tests.chaos.rules import POISON_QUEUE
from tests.support.proxy import ProxyThread, RequestTest, postgres_executes

_STROBE_SECONDS = 0.1


class FaultRunner:
    """Runs the plan with one thread for each group, and logs when each fault really started and ended, and what it did."""

    def __init__(self, cluster: ChaosCluster, plan: list[PlannedFault], log: Log) -> None:
        self._plan = plan
        self._log = log
        self.stopping = threading.Event()
        self._faults: dict[str, Callable[[PlannedFault], Any]] = {}
        database = PostgresFaults(cluster) if cluster.store == "postgres" else SqliteFaults(cluster)
        for owner in (NodeFaults(cluster), WorkerFaults(cluster), LinkFaults(cluster), database):
            self._faults.update({name: getattr(owner, name) for name in dir(owner) if not name.startswith("_")})

    def run(self) -> None:
        began_at = time.monotonic()
        threads = [threading.Thread(target=self._group, args=(group, began_at)) for group in GROUPS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _group(self, group: str, began_at: float) -> None:
        for fault in self._plan:
            if fault.group != group:
                continue
            if self.stopping.wait(max(0.0, began_at + fault.at - time.monotonic())):
                return
            self._carry_out(fault)

    def _carry_out(self, fault: PlannedFault) -> None:
        self._log.write("started", number=fault.number, kind=fault.kind, group=fault.group, value=fault.value)
        try:
            effect = self._faults[fault.kind](fault)
        except Exception:
            self._log.write("ended", number=fault.number, effective=False, effect=traceback.format_exc())
            return
        self._log.write("ended", number=fault.number, effective=effect is not False, effect=effect)


class NodeFaults:
    """What happens to the processes of nodes."""

    def __init__(self, cluster: ChaosCluster) -> None:
        self._cluster = cluster

    def node_kill(self, fault: PlannedFault) -> Any:
        return _kill(self._victim(fault), fault.seconds)

    def node_stop(self, fault: PlannedFault) -> Any:
        return _stop(self._victim(fault), fault.seconds)

    def node_freeze_long(self, fault: PlannedFault) -> Any:
        return _freeze(self._victim(fault), fault.seconds)

    def node_freeze_short(self, fault: PlannedFault) -> Any:
        return _freeze(self._victim(fault), LEASE_SECONDS / 2)

    def node_starved(self, fault: PlannedFault) -> Any:
        """The node gets a fifth of the time, in slices."""
        slot = self._victim(fault)
        with slot.lock:
            until = time.monotonic() + fault.seconds
            while time.monotonic() < until:
                slot.process.sigstop()
                time.sleep(0.8 * _STROBE_SECONDS)
                slot.process.sigcont()
                time.sleep(0.2 * _STROBE_SECONDS)
        return {"pid": slot.process.pid}

    def node_files(self, fault: PlannedFault) -> Any:
        """The node cannot open another file or connection."""
        slot = self._victim(fault)
        with slot.lock:
            pid = slot.process.pid
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (4, before[1]))
            time.sleep(fault.seconds)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        return {"pid": pid}

    def node_clock(self, fault: PlannedFault) -> Any:
        """The clock of the first node is wrong, and strobes. On SQLite, its clock is that of the database."""
        if self._cluster.store == "sqlite":
            return False
        rng, until = random.Random(fault.number), time.monotonic() + fault.seconds
        while time.monotonic() < until:
            self._cluster.node_clock.set_offset(fault.value * rng.choice((1, 1, 0, 0.001)))
            time.sleep(0.2)
        self._cluster.node_clock.set_offset(0)
        return {"offset": fault.value}

    def nodes_rolling_kill(self, fault: PlannedFault) -> Any:
        slots = self._cluster.nodes
        return [_kill(slot, fault.seconds / len(slots)) for slot in slots]

    def nodes_all_kill(self, fault: PlannedFault) -> Any:
        slots = self._cluster.nodes
        for slot in slots:
            slot.lock.acquire()
        for slot in slots:
            slot.process.kill9()
        time.sleep(fault.seconds)
        for slot in slots:
            slot.process.start()
        for slot in slots:
            slot.wait_ready()
            slot.lock.release()
        return [slot.process.pid for slot in slots]

    def _victim(self, fault: PlannedFault) -> Slot:
        return self._cluster.nodes[fault.victim % len(self._cluster.nodes)]


class WorkerFaults:
    """What happens to the processes of workers."""

    def __init__(self, cluster: ChaosCluster) -> None:
        self._cluster = cluster
        self._log = Log(cluster.folder / "load" / "poison.jsonl")
        self._api = Api(cluster.bases, self._log)

    def worker_kill(self, fault: PlannedFault) -> Any:
        return _kill(self._victim(fault), fault.seconds)

    def worker_stop(self, fault: PlannedFault) -> Any:
        return _stop(self._victim(fault), fault.seconds)

    def worker_freeze(self, fault: PlannedFault) -> Any:
        return _freeze(self._victim(fault), fault.seconds)

    def worker_poison(self, fault: PlannedFault) -> Any:
        """Submit a task that kills the process that runs it, at its first attempt."""
        ticket = f"poison-{fault.number}"
        task = {"type": "work", "queue": POISON_QUEUE, "max_attempts": 50, "payload": {"ticket": ticket, "die_attempts": 1}}
        headers, line = {"Idempotency-Key": ticket}, {"ticket": ticket, "sent_at": time.time(), "ends_as": "completed"}
        made = self._api.until_answered("POST", "/v1/tasks", threading.Event(), json=task, headers=headers).json()
        self._log.write("submitted", task=made["id"], run_at=seconds(made["run_at"]), **line)
        time.sleep(fault.seconds)
        return {"submitted": ticket, "task": made["id"]}

    def _victim(self, fault: PlannedFault) -> Slot:
        return self._cluster.workers[fault.victim % len(self._cluster.workers)]


class LinkFaults:
    """What happens to the links between processes, and to the webhook receiver."""

    def __init__(self, cluster: ChaosCluster) -> None:
        self._cluster = cluster

    def link_cut(self, fault: PlannedFault) -> Any:
        return _cut(self._link(fault), fault.seconds)

    def link_freeze(self, fault: PlannedFault) -> Any:
        link = self._link(fault)
        link.freeze()
        time.sleep(fault.seconds)
        link.thaw()
        return {"connections": link.proxy.open_connections}

    def link_delay(self, fault: PlannedFault) -> Any:
        link = self._link(fault)
        link.proxy.delay_seconds = 0.1
        time.sleep(fault.seconds)
        link.proxy.delay_seconds = 0.0
        return {"round_trip_seconds": 0.2}

    def link_flap(self, fault: PlannedFault) -> Any:
        link, until, cuts = self._link(fault), time.monotonic() + fault.seconds, 0
        while time.monotonic() < until:
            cuts += 1
            _cut(link, 0.4)
            time.sleep(0.4)
        return {"cuts": cuts}

    def link_lost_replies(self, fault: PlannedFault) -> Any:
        return _lose(self._link(fault), fault.seconds, 0.2, postgres_executes)

    def worker_link_cut(self, fault: PlannedFault) -> Any:
        return _cut(self._cluster.worker_link, fault.seconds)

    def worker_link_lost_replies(self, fault: PlannedFault) -> Any:
        return _lose(self._cluster.worker_link, fault.seconds, 0.3, lambda request: b"POST /v1/worker/" in request)

    def receiver_errors(self, fault: PlannedFault) -> Any:
        return self._answer("errors", fault)

    def receiver_hangs(self, fault: PlannedFault) -> Any:
        return self._answer("hangs", fault)

    def receiver_resets(self, fault: PlannedFault) -> Any:
        return self._answer("resets", fault)

    def _answer(self, mode: str, fault: PlannedFault) -> Any:
        file = self._cluster.folder / "receiver-mode"
        file.write_text(mode)
        time.sleep(fault.seconds)
        file.write_text("ok")
        return {"mode": mode}

    def _link(self, fault: PlannedFault) -> ProxyThread:
        return self._cluster.links[fault.victim % len(self._cluster.links)]


def _kill(slot: Slot, seconds: float) -> Any:
    with slot.lock:
        if not slot.process.is_running():
            slot.start()
            return False
        pid = slot.process.pid
        slot.process.kill9()
        time.sleep(seconds)
        slot.start()
    return {"pid": pid}


def _stop(slot: Slot, seconds: float) -> Any:
    with slot.lock:
        if not slot.process.is_running():
            slot.start()
            return False
        code = slot.process.terminate(20)
        time.sleep(seconds)
        slot.start()
    return {"exit_code": code}


def _freeze(slot: Slot, seconds: float) -> Any:
    with slot.lock:
        slot.process.sigstop()
        time.sleep(seconds)
        slot.process.sigcont()
    return {"pid": slot.process.pid}


def _cut(link: ProxyThread, seconds: float) -> Any:
    connections = link.proxy.open_connections
    link.cut()
    time.sleep(seconds)
    link.heal()
    return {"connections": connections}


def _lose(link: ProxyThread, seconds: float, probability: float, losable: RequestTest) -> Any:
    before = link.proxy.lost_replies
    link.proxy.losable = losable
    link.proxy.lose_reply_probability = probability
    time.sleep(seconds)
    link.proxy.lose_reply_probability = 0.0
    lost = link.proxy.lost_replies - before
    return {"lost": lost} if lost else False
