"""The processes of a chaos run: database, nodes, workers, webhook receiver, load generator, and the proxies between them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.chaos.plan import NODES
from tests.chaos.rules import HELD_QUEUE, POISON_QUEUE, QUEUE
from tests.support.clockshim import ClockShim
from tests.support.diskshim import DiskShim
from tests.support.postgres import PostgresServer
from tests.support.processes import ServerProcess, free_port
from tests.support.proxy import ProxyThread

LEASE_SECONDS = 3.0
WORKER_LEASE_SECONDS = 5.0
CATCH_UP_RATE = 2.0
LATE_AFTER_SECONDS = 5.0
# Longer than a node needs, even while the database is disturbed too. A node that needs more is late, which the checker sees.
_READY_SECONDS = 15.0
_ROOT = Path(__file__).parents[2]


class Slot:
    """A place for a process that is killed and started again. The lock belongs to whoever disturbs it."""

    def __init__(self, process: ServerProcess, base: str | None = None) -> None:
        self.process = process
        self.lock = threading.Lock()
        self._base = base

    def start(self) -> None:
        """Start the process, and wait for some time until it serves: until then, the fault that ended it is not over."""
        self.process.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        if self._base is not None:
            with contextlib.suppress(AssertionError):
                self.process.wait_ready(f"{self._base}/readyz", _READY_SECONDS)


class ChaosCluster:
    """Everything that runs. A context manager that starts all of it and ends all of it."""

    def __init__(self, folder: Path, store: str, seed: int) -> None:
        self.folder = folder
        self.store = store
        self._seed = seed
        self._stack = contextlib.ExitStack()
        self.database_clock = ClockShim.create()
        self.node_clock = ClockShim.create()
        self.disk = DiskShim.create("/data/base/" if store == "postgres" else "everbeat.sqlite")
        self.postgres: PostgresServer | None = None
        self.url = f"sqlite:///{folder / 'database' / 'everbeat.sqlite'}"
        self.links: list[ProxyThread] = []
        self.nodes: list[Slot] = []
        self.workers: list[Slot] = []
        self.receiver_port = free_port()
        self._ports = [free_port() for _ in range(NODES[store])]
        self._load: subprocess.Popen[bytes] | None = None

    @property
    def bases(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self._ports]

    @property
    def receiver_url(self) -> str:
        return f"http://127.0.0.1:{self.receiver_port}/hook"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def _start(self) -> None:
        for shim in (self.database_clock, self.node_clock, self.disk):
            self._stack.enter_context(shim)
        (self.folder / "database").mkdir()
        (self.folder / "receiver-mode").write_text("ok")
        if self.store == "postgres":
            self._start_postgres()
        for number in range(len(self._ports)):
            self._start_node(number)
        for slot, base in zip(self.nodes, self.bases, strict=True):
            slot.process.wait_ready(f"{base}/readyz", 60)
        self.worker_link = self._stack.enter_context(ProxyThread("127.0.0.1", self._ports[-1]))
        self._write_processes()
        self._python("tests.chaos.machine", str(self.folder))
        self._python("tests.chaos.receiver", str(self.folder), str(self.receiver_port))
        self._start_workers()

    def _start_postgres(self) -> None:
        settings = {"log_min_messages": "fatal", "max_connections": "150"}
        env = self.database_clock.env() | self.disk.env()
        env["LD_PRELOAD"] = f"{self.database_clock.env()['LD_PRELOAD']}:{self.disk.env()['LD_PRELOAD']}"
        self.postgres = self._stack.enter_context(PostgresServer(env=env, settings=settings))
        self.url = self.postgres.url(self.postgres.create_database("chaos"))
        # The first node is not behind a proxy. The others have one each.
        self.links = [self._stack.enter_context(ProxyThread("127.0.0.1", self.postgres.port, seed=n)) for n in range(2)]

    def _start_node(self, number: int) -> None:
        url = self.links[number - 1].through(self.url) if number and self.links else self.url
        process = ServerProcess(
            "serve",
            *("--database-url", url, "--port", str(self._ports[number]), "--node-name", f"node{number}"),
            *("--lease-seconds", str(LEASE_SECONDS), "--database-timeout-seconds", "2"),
            *("--catch-up-rate", str(CATCH_UP_RATE), "--late-after-seconds", str(LATE_AFTER_SECONDS)),
            *("--webhook-allow", "127.0.0.0/8", "--webhook-timeout-seconds", "3"),
            folder=self.folder / "output",
            env=self._environment(number),
            name=f"node{number}",
        )
        self.nodes.append(Slot(process, self.bases[number]))
        self._stack.callback(process.kill9)
        process.start()
        if number == 0:
            # It creates the tables. Nodes that start together are a fault of their own.
            process.wait_ready(f"{self.bases[0]}/readyz", 60)

    def _environment(self, number: int) -> dict[str, str]:
        """The clock of the first node can be stepped. On SQLite, the disk of the nodes can fail."""
        if self.store == "sqlite":
            return self.disk.env()
        return self.node_clock.env() if number == 0 else {}

    def _start_workers(self) -> None:
        output = self.folder / "output"
        for number, base in enumerate((self.bases[0], self.worker_link.through(self.bases[-1]))):
            queues = ",".join((QUEUE, HELD_QUEUE, *((POISON_QUEUE,) if number else ())))
            process = ServerProcess(
                *("worker", "tests.chaos.worker_app:eb", "--url", ",".join((base, *self.bases)) if not number else base),
                *("--queues", queues, "--no-register", "--name", f"sdk{number}", "--concurrency", "20"),
                *("--lease-seconds", str(WORKER_LEASE_SECONDS), "--processes", str(1 + number), "--grace-seconds", "3"),
                folder=output,
                env=self._python_environment(CHAOS_WORKER_LOGS=str(self.folder / "workers"), CHAOS_WORKER_NAME=f"sdk{number}"),
                name=f"sdk{number}",
            )
            self._add_worker(process)
        for number in range(2):
            self._add_worker(self._process("tests.chaos.raw_worker", str(self.folder), f"raw{number}", name=f"raw{number}"))

    def _add_worker(self, process: ServerProcess) -> None:
        self.workers.append(Slot(process))
        self._stack.callback(process.kill9)
        process.start()

    def _write_processes(self) -> None:
        workers = [*self.bases[:-1], self.worker_link.through(self.bases[-1])]
        document: dict[str, Any] = {
            "seed": self._seed,
            "nodes": self.bases,
            "worker_nodes": workers,
            "receiver": self.receiver_url,
            "worker_lease_seconds": WORKER_LEASE_SECONDS,
        }
        (self.folder / "processes.json").write_text(json.dumps(document))

    def _python_environment(self, **more: str) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        return {"PYTHONPATH": path, **more}

    def _process(self, module: str, *args: str, name: str) -> ServerProcess:
        return ServerProcess(
            *args,
            folder=self.folder / "output",
            env=self._python_environment(),
            name=name,
            command=(sys.executable, "-m", module),
        )

    def _python(self, module: str, *args: str) -> ServerProcess:
        process = self._process(module, *args, name=module.rpartition(".")[2])
        self._stack.callback(process.kill9)
        process.start()
        return process

    def start_load(self) -> None:
        with (self.folder / "output" / "load.log").open("ab") as output:
            self._load = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.load", str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._python_environment()},
            )
        self._stack.callback(self._load.kill)

    def stop_load(self) -> None:
        """Let the load generator finish its last requests."""
        assert self._load is not None
        assert self._load.stdin is not None
        self._load.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._load.wait(90)

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Start what a fault has left dead, and wait until every node serves."""
        give_up_at = time.monotonic() + seconds
        for slot, base in zip(self.nodes, self.bases, strict=True):
            with slot.lock:
                if not slot.process.is_running():
                    slot.process.start()
            slot.process.wait_ready(f"{base}/readyz", max(1.0, give_up_at - time.monotonic()))
        for slot in self.workers:
            with slot.lock:
                if not slot.process.is_running():
                    slot.process.start()
