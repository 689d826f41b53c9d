"""`python -m tests.chaos [--seed N] [--seconds S] [--store postgres|sqlite] [--runs N]`: runs the chaos suite and judges it.

Writes a report of each run to build/chaos/. Exits with 0 if all verdicts are PASS, with 1 if one is FAIL, and with 2 otherwise.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.catalog import STORES
from tests.chaos.cluster import CATCH_UP_RATE, LATE_AFTER_SECONDS, LEASE_SECONDS, WORKER_LEASE_SECONDS, ChaosCluster
from tests.chaos.collect import Collector, window_of
from tests.chaos.faults import FaultRunner
from tests.chaos.plan import as_json, make_plan
from tests.chaos.records import Log
from tests.chaos.rules import HELD_QUEUE, make_rules

_LEAD_SECONDS = 4.0
_DRAIN_SECONDS = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Random faults on a cluster under load.")
    parser.add_argument("--seed", type=int, help="the seed of the first run (random)")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long each run disturbs the cluster (600)")
    parser.add_argument("--store", choices=STORES, default="postgres")
    parser.add_argument("--runs", type=int, default=1, help="how many runs, with a seed each")
    parser.add_argument("--folder", type=Path, default=Path("build/chaos"), help="where the reports are written")
    args = parser.parse_args()
    first = random.SystemRandom().randrange(100_000) if args.seed is None else args.seed
    codes = [run(args.folder, seed, args.seconds, args.store) for seed in range(first, first + args.runs)]
    return 1 if 1 in codes else max(codes)


def run(root: Path, seed: int, seconds: float, store: str) -> int:
    """Run once, and let the checker judge it in a process of its own. Returns its exit code."""
    folder = (root / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{store}-{seed}").resolve()
    (folder / "output").mkdir(parents=True)
    print(f"seed {seed}, {store}, {seconds:.0f} s: {folder}", flush=True)
    plan = make_plan(seed, seconds, store)
    (folder / "plan.json").write_text(json.dumps(as_json(plan), indent=1))
    with ChaosCluster(folder, store, seed) as cluster:
        _disturb(cluster, FaultRunner(cluster, plan, Log(folder / "faults" / "faults.jsonl")), folder, seed, seconds)
    return subprocess.run([sys.executable, "-m", "tests.chaos.checker", str(folder)], check=False).returncode


def _disturb(cluster: ChaosCluster, runner: FaultRunner, folder: Path, seed: int, seconds: float) -> None:
    from_ = math.ceil(time.time()) + _LEAD_SECONDS + 0.5
    to = from_ + math.ceil(seconds)
    _register(cluster, folder, from_, to)
    settings: dict[str, Any] = {
        "lease_seconds": LEASE_SECONDS,
        "worker_lease_seconds": WORKER_LEASE_SECONDS,
        "catch_up_rate": CATCH_UP_RATE,
        "late_after_seconds": LATE_AFTER_SECONDS,
        "slow_queues": [HELD_QUEUE],
    }
    document = {"seed": seed, "seconds": seconds, "store": cluster.store, "settings": settings}
    (folder / "run.json").write_text(json.dumps({**document, "window": {"from": from_, "to": to}}, indent=1))
    time.sleep(max(0.0, from_ - time.time()))
    cluster.start_load()
    faults = threading.Thread(target=runner.run)
    faults.start()
    _report_progress(to, folder)
    runner.stopping.set()
    faults.join()
    cluster.wait_ready()
    cluster.stop_load()
    _collect(cluster, folder, from_, to)


def _register(cluster: ChaosCluster, folder: Path, from_: float, to: float) -> None:
    rules = make_rules(from_, to, cluster.receiver_url)
    response = httpx.post(f"{cluster.bases[0]}/v1/schedules/batch", json={"schedules": rules}, timeout=30, trust_env=False)
    if not response.is_success:
        raise RuntimeError(f"the schedules were refused: {response.text}")
    (folder / "rules.json").write_text(json.dumps(rules, indent=1))


def _report_progress(to: float, folder: Path) -> None:
    while (left := to - time.time()) > 0:
        time.sleep(min(left, 30))
        started = (folder / "faults" / "faults.jsonl").read_text().count('"started"')
        print(f"  {max(0.0, to - time.time()):5.0f} s left, {started} faults", flush=True)


def _collect(cluster: ChaosCluster, folder: Path, from_: float, to: float) -> None:
    collector = Collector(cluster.bases)
    window = window_of(from_, to)
    began_at = time.monotonic()
    idle = collector.wait_until_idle(window, _DRAIN_SECONDS)
    print(f"  {'idle' if idle else 'not idle'} after {time.monotonic() - began_at:.1f} s", flush=True)
    collector.save(folder / "api", window)
    collector.close()


if __name__ == "__main__":
    raise SystemExit(main())
