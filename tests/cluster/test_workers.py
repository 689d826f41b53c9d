"""Workers that are killed, freeze, hang or lose their connection: every task is done once, and every attempt is explained."""

from __future__ import annotations

import time
from uuid import UUID

from everbeat import Everbeat
from tests.cluster.fleet import WORKER_LEASE_SECONDS, Site, delaying_proxy, is_request_to
from tests.support.processes import ServerProcess, wait_until
from tests.support.proxy import ProxyThread

LOST = frozenset({"lost"})


def _port(site: Site) -> int:
    return int(site.base.rpartition(":")[2])


def _ended(worker: ServerProcess) -> None:
    wait_until(lambda: not worker.is_running(), 25, lambda: f"{worker.name} dead\n{worker.logs()[-2000:]}")


def test_a_killed_worker_loses_one_attempt(site: Site) -> None:
    """Killed before the effect, after it, and after the completion was sent but before the response was read."""
    before, after, sent = (f"{site.queue}-{point}" for point in ("before", "after", "sent"))
    with delaying_proxy(_port(site)) as proxy:
        proxy.proxy.delays = is_request_to("/v1/worker/complete")  # type: ignore[attr-defined]
        killed = [site.worker(queue=queue, name=queue) for queue in (before, after)]
        disconnected = site.worker(queue=sent, name=sent, url=proxy.through(site.base))
        first = site.submit("die", before, payload={"before": 1})
        second = site.submit("die", after, payload={"after": 1})
        third = site.submit("effect", sent)
        site.wait_state(third)
        wait_until(lambda: proxy.proxy.delayed == 1, 10, "a response is delayed")  # type: ignore[attr-defined]
        disconnected.kill9()
        for worker in killed:
            _ended(worker)
        site.worker(queue=f"{before},{after},{sent}", name="successor")
        for task in (first, second):
            site.wait_state(task)
    for task, owner in ((first, before), (second, after)):
        # A task that the successor has prefetched may be released, and claimed again, before the other one ends.
        executed = [attempt for attempt in site.attempts(task) if attempt[1] != "released"]
        assert executed == [(1, "lost", owner), (2, "completed", "successor")]
    # The leases of the other two tasks started no earlier and have expired, so this task was correctly not repeated.
    assert site.attempts(third) == [(1, "completed", sent)]
    effects = {task: [one["attempt"] for one in site.journal.events(task, "effect")] for task in (first, second, third)}
    assert effects == {first: [2], second: [1, 2], third: [1]}
    site.reader.assert_explained([first, second, third], outcomes=LOST)


def test_a_paused_worker_that_completes_after_its_lease_changes_nothing(postgres_site: Site) -> None:
    site = postgres_site
    end_file = site.folder / "end_file"
    worker = site.worker(name="paused")
    task = site.submit("ignore_cancel", payload={"end_file": str(end_file)})
    site.journal.wait(task, "start")
    worker.sigstop()
    taken = site.raw(name="other").claim_within(WORKER_LEASE_SECONDS + 10)
    assert (taken["id"], taken["attempt"], taken["fence"]) == (str(task), 2, 2)
    end_file.touch()
    worker.sigcont()
    wait_until(lambda: "report_stale" in worker.logs(), 20, worker.logs)
    assert len(site.journal.events(task, "effect")) == 1
    assert (site.task(task)["state"], site.task(task)["worker"]) == ("running", "other")
    assert site.raw(name="other").heartbeat(taken) == "ok"
    assert site.raw(name="other").complete(taken, result="the other's") == ["ok"]
    assert site.attempts(task) == [(1, "lost", "paused"), (2, "completed", "other")]
    assert site.task(task)["result"] == "the other's"
    site.reader.assert_explained([task], outcomes=LOST)
    # The worker continues normally.
    assert site.wait_state(site.submit("effect"))["worker"] == "paused"


def test_attempts_without_heartbeats_and_with_endless_heartbeats_both_end(sqlite_site: Site) -> None:
    site = sqlite_site
    quiet, endless = f"{site.queue}-quiet", f"{site.queue}-endless"
    silent, sending = site.raw(quiet, "silent"), site.raw(endless, "sending")
    abandoned = site.submit("t", quiet)
    hung = site.submit("t", endless, timeout_seconds=7, max_attempts=1)
    first, claimed = silent.claim()[0], sending.claim()[0]
    started_at = time.monotonic()
    wait_until(lambda: sending.heartbeat(claimed) == "lost", 25, "the timeout of the attempt")
    assert time.monotonic() - started_at > 6
    assert sending.complete(claimed) == ["stale"]
    dead = site.wait_state(hung, "dead", 10)
    assert "exceeded its timeout" in dead["error"]["message"]
    assert site.outcomes(hung) == ["timeout"]
    assert site.client.get(f"/v1/dead-letters/{hung}").status_code == 200
    second = site.raw(quiet, "successor").claim_within(10)
    assert (second["id"], second["attempt"]) == (str(abandoned), 2)
    assert (silent.heartbeat(first), silent.complete(first), silent.fail(first)["status"]) == ("lost", ["stale"], "stale")
    assert [site.raw(quiet, "successor").complete(second) for _ in range(5)] == [["ok"]] * 5
    assert silent.complete(first) == ["stale"]
    site.reader.assert_explained([abandoned], outcomes=LOST)
    site.reader.assert_explained([hung], outcomes=LOST, state="dead")


def test_a_poison_task_is_dead_and_other_tasks_complete(postgres_site: Site) -> None:
    site = postgres_site
    supervisor = site.worker("--processes", "2", "--concurrency", "4", "--grace-seconds", "1")
    poison = site.submit("poison", max_attempts=2)
    # Prefetched tasks of a killed worker are lost with it, and retried.
    others = site.submit_many("effect", 30, max_attempts=5)
    dead = site.wait_state(poison, "dead", 28)
    assert "lease expired" in dead["error"]["message"]
    assert [attempt[:2] for attempt in site.attempts(poison)] == [(1, "lost"), (2, "lost")]
    assert len(site.journal.events(poison, "start")) == 2
    letter = site.client.get(f"/v1/dead-letters/{poison}").json()
    assert letter["attempts"] == 2
    last = site.submit("effect")
    for task in (*others, last):
        site.wait_state(task)
    site.reader.assert_explained([*others, last], outcomes=LOST)
    site.reader.assert_explained([poison], outcomes=LOST, state="dead")
    assert "worker_process_died" in supervisor.logs()
    assert supervisor.terminate(20) == 0


# Lost responses


def test_claims_and_reports_with_lost_responses_count_once(site: Site) -> None:
    """A task is claimed again after its lease. A report is repeated until it gets a response, with the same result."""
    with ProxyThread("127.0.0.1", _port(site)) as proxy:
        worker, faults = site.worker(url=proxy.through(site.base)), proxy.proxy
        site.wait_state(site.submit("effect"))
        faults.losable = is_request_to("/v1/worker/claim")
        faults.lose_replies = True
        claimed = site.submit("effect")
        site.wait_state(claimed, "running")
        wait_until(lambda: faults.lost_replies > 0, 10, "the reply to the claim is lost")
        faults.losable = is_request_to("/v1/worker/complete", "/v1/worker/fail")
        faults.lost_replies = 0
        completed = site.submit("effect")
        failed = site.submit("fails", max_attempts=2, retry={"kind": "fixed", "base_seconds": 0.1, "jitter": False})
        wait_until(lambda: faults.lost_replies >= 5, 20, "five replies are lost")
        faults.lose_replies = False
        for task in (claimed, completed, site.submit("effect")):
            site.wait_state(task)
        site.wait_state(failed, "dead")
    assert site.attempts(claimed) == [(1, "lost", "w0"), (2, "completed", "w0")]
    assert site.attempts(completed) == [(1, "completed", "w0")]
    assert site.attempts(failed) == [(1, "failed", "w0"), (2, "failed", "w0")]
    effects = {task: [one["attempt"] for one in site.journal.events(task, "effect")] for task in (claimed, completed, failed)}
    assert effects == {claimed: [2], completed: [1], failed: [1, 2]}
    site.reader.assert_explained([claimed, completed], outcomes=LOST)
    site.reader.assert_explained([failed], outcomes=frozenset({"failed"}), state="dead")
    assert "report_stale" not in worker.logs()


def test_a_submit_with_a_lost_response_creates_one_task(site: Site) -> None:
    with ProxyThread("127.0.0.1", _port(site)) as proxy:
        app = Everbeat(proxy.through(site.base))

        @app.task(queue=site.queue)
        def job(number: int) -> None: ...

        made: list[UUID] = []
        proxy.drop_replies_after(is_request_to("/v1/tasks"))
        made.append(job.submit(number=0).id)
        proxy.drop_replies_after(is_request_to("/v1/tasks/batch"))
        made += [one.id for one in job.submit_many([{"number": number} for number in range(20)])]
        proxy.drop_replies_after(is_request_to("/v1/tasks"))
        made.append(job.options(key=f"own-{site.queue}").submit(number=1).id)
        assert job.options(key=f"own-{site.queue}").submit(number=1).id == made[-1]
        assert proxy.proxy.lost_replies == 3
        app.close()
    found = [row[0] for row in site.reader.rows(f"SELECT id FROM tasks WHERE queue = '{site.queue}'")]
    assert sorted(found) == sorted(made)
    assert len(set(made)) == 22


# Disconnected or blocked workers


def test_a_blocked_event_loop_keeps_its_lease(sqlite_site: Site) -> None:
    site = sqlite_site
    worker = site.worker()
    task = site.submit("block", payload={"seconds": WORKER_LEASE_SECONDS * 1.4})
    site.wait_state(task)
    assert site.attempts(task) == [(1, "completed", "w0")]
    assert "event loop blocked for" in worker.logs()
    assert "worker_app.py" in worker.logs()
    site.reader.assert_explained([task], outcomes=frozenset())


def test_a_disconnected_worker_stops_its_tasks_before_their_leases_end_and_recovers(sqlite_site: Site) -> None:
    """Connection refused and half-open connection: two workers, each with an async and a sync handler."""
    site = sqlite_site
    with ProxyThread("127.0.0.1", _port(site)) as closed, ProxyThread("127.0.0.1", _port(site)) as frozen:
        tasks: list[UUID] = []
        for name, proxy in (("closed", closed), ("frozen", frozen)):
            queue = f"{site.queue}-{name}"
            # A longer lease gives a slow machine more time between the local and the real end of the lease.
            site.worker("--lease-seconds", "10", url=proxy.through(site.base), queue=queue, name=name)
            tasks += [site.submit(kind, queue, payload={"seconds": 60}) for kind in ("busy", "busy_in_thread")]
        for task in tasks:
            site.journal.wait(task, "effect")
        closed.cut()
        frozen.freeze()
        ends = _lease_ends(site)
        for task in tasks:
            site.journal.wait(task, "cancelled", deadline_seconds=25)
        for task in tasks:
            last = site.journal.events(task)[-1]
            assert last["event"] == "cancelled"
            assert last["at"] < ends[task], f"{last['at'] - ends[task]:.3f} s after the end of its lease"
        for task in tasks:
            wait_until(lambda task=task: site.outcomes(task)[:1] == ["lost"], 15, "the lease expires")  # type: ignore[misc]
        closed.heal()
        frozen.thaw()
        for name in ("closed", "frozen"):
            assert site.wait_state(site.submit("effect", f"{site.queue}-{name}"))["worker"] == name
        for task in tasks:
            site.wait_state(task)
            assert site.outcomes(task) == ["lost", "completed"]
        site.reader.assert_explained(tasks, outcomes=LOST)


def _lease_ends(site: Site) -> dict[UUID, float]:
    """Return the ends of the leases in monotonic time, assuming that the clock of this machine is not set meanwhile."""
    behind = time.monotonic() - time.time()
    rows = site.reader.rows("SELECT id, lease_until FROM tasks WHERE state = 'running'")
    return {id_: behind + (until / 1e6 if isinstance(until, int) else until) for id_, until in rows}
