"""The checker of the chaos suite finds each kind of violation in a forged report, and accepts what the faults explain."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.checker import verdict as verdicts
from tests.chaos.checker.verdict import Outcome, Verdict, judge_folder
from tests.chaos.forging import START, Forgery, text

# Long after the last fault: only the bounds of an undisturbed cluster apply.
CALM = 100


@pytest.fixture
def forgery() -> Forgery:
    return Forgery()


def _judged(forgery: Forgery, folder: Path, change: Callable[[Path], None] = lambda folder: None) -> Verdict:
    return judge_folder(forgery.write(folder, change))


def _kinds(verdict: Verdict) -> set[str]:
    return {one.kind for one in verdict.violations}


def _assert_fails(verdict: Verdict, kind: str, what: str) -> None:
    assert verdict.outcome is Outcome.FAIL
    assert any(one.kind == kind and what in one.what for one in verdict.violations), verdict.violations


def test_a_report_in_which_everything_went_well_passes(forgery: Forgery, tmp_path: Path) -> None:
    verdict = _judged(forgery, tmp_path)
    assert (verdict.outcome, verdict.violations, verdict.doubts) == (Outcome.PASS, [], [])
    assert verdict.counts["fired"] == verdict.counts["expected"] == 540
    saved = json.loads((tmp_path / "verdict.json").read_text())
    assert saved["outcome"] == "PASS"
    assert "# PASS: seed 1" in (tmp_path / "summary.md").read_text()


# Lost


def test_a_tick_without_a_row_is_lost(forgery: Forgery, tmp_path: Path) -> None:
    forgery.drop_tick("all", CALM)
    verdict = _judged(forgery, tmp_path)
    _assert_fails(verdict, "lost", "no row of the ledger")
    assert verdict.violations[0].evidence["tick"] == START + CALM


@pytest.mark.parametrize("schedule", ["all", "hook"])
def test_a_completed_task_that_nobody_ran_is_lost(forgery: Forgery, tmp_path: Path, schedule: str) -> None:
    forgery.forget(forgery.task_of(schedule, CALM)["id"])
    _assert_fails(_judged(forgery, tmp_path), "lost", "no log has run")


def test_a_fired_tick_without_a_task_is_lost(forgery: Forgery, tmp_path: Path) -> None:
    task = forgery.task_of("all", CALM)
    forgery.tasks.remove(task)
    forgery.forget(task["id"])
    _assert_fails(_judged(forgery, tmp_path), "lost", "its task does not exist")


def test_an_acknowledged_submit_without_a_task_is_lost(forgery: Forgery, tmp_path: Path) -> None:
    forgery.tasks.remove(forgery.task("task-ticket-7"))
    forgery.forget("task-ticket-7")
    _assert_fails(_judged(forgery, tmp_path), "lost", "an acknowledged submit")


def test_a_task_that_never_ends_is_lost(forgery: Forgery, tmp_path: Path) -> None:
    forgery.task("task-ticket-7").update(state="running", finished_at=None)
    _assert_fails(_judged(forgery, tmp_path), "lost", "after everything had time to end")


@pytest.mark.parametrize(
    ("schedule", "after", "reason"),
    [
        ("latest", CALM, "misfire"),  # nothing was disturbed
        ("all", 8, "misfire"),  # this policy skips none
        ("all", CALM, "overlap"),  # this policy allows overlaps
        ("skips", CALM, "overlap"),  # the task before had finished
        ("paused", CALM, "paused"),  # nobody had paused it
        ("all", CALM, "quota"),
    ],
)
def test_a_tick_that_was_skipped_without_a_cause_is_lost(
    forgery: Forgery, tmp_path: Path, schedule: str, after: float, reason: str
) -> None:
    forgery.skip(schedule, after, reason)
    _assert_fails(_judged(forgery, tmp_path), "lost", f"skipped as {reason}")


def test_skips_with_a_cause_are_accepted(forgery: Forgery, tmp_path: Path) -> None:
    forgery.skip("latest", 8, "misfire")
    forgery.task_of("skips", CALM)["finished_at"] = text(START + CALM + 1.5)
    forgery.skip("skips", CALM + 1, "overlap")
    forgery.skip("paused", CALM, "paused")
    pause = {"schedule": "paused", "sent_at": START + 99.2, "acknowledged_at": START + 99.4}
    resume = {"resume_sent_at": START + 100.2, "resumed_at": START + 100.4}
    forgery.logs["load"].append({"at": START + 100.5, "event": "paused", **pause, **resume})
    verdict = _judged(forgery, tmp_path)
    assert verdict.outcome is Outcome.PASS, verdict.violations


# Late


def test_a_late_tick_is_found_if_nothing_was_disturbed(forgery: Forgery, tmp_path: Path) -> None:
    forgery.tick("latest", CALM)["fired_at"] = text(START + CALM + 2.5)
    verdict = _judged(forgery, tmp_path)
    _assert_fails(verdict, "late", "a tick fired later")
    assert verdict.violations[0].evidence["over_by_seconds"] == pytest.approx(0.5)


def test_the_bound_of_a_tick_depends_on_the_fault(forgery: Forgery, tmp_path: Path) -> None:
    forgery.fault("database_restart", 80, 2.0, group="database")
    forgery.tick("latest", 80)["fired_at"] = text(START + 91.9)  # the end at 82, 8 s to recover, and 2 s
    forgery.task_of("latest", 80)["created_at"] = text(START + 80)
    assert _judged(forgery, tmp_path).outcome is Outcome.PASS
    forgery.tick("latest", 80)["fired_at"] = text(START + 92.1)
    (again := tmp_path / "again").mkdir()
    _assert_fails(_judged(forgery, again), "late", "a tick fired later")


def test_a_node_that_is_frozen_for_long_excuses_only_the_takeover(forgery: Forgery, tmp_path: Path) -> None:
    forgery.fault("node_freeze_long", 80, 15.0, group="nodes")
    forgery.tick("latest", 80)["fired_at"] = text(START + 86.1)  # a lease of 3 s, a second, and 2 s
    _assert_fails(_judged(forgery, tmp_path), "late", "a tick fired later")


def test_a_worker_fault_does_not_excuse_a_late_tick(forgery: Forgery, tmp_path: Path) -> None:
    forgery.fault("worker_kill", CALM - 1, 2.0, group="workers")
    forgery.tick("latest", CALM)["fired_at"] = text(START + CALM + 2.5)
    _assert_fails(_judged(forgery, tmp_path), "late", "a tick fired later")


def test_a_stall_of_the_machine_excuses_a_late_tick(forgery: Forgery, tmp_path: Path) -> None:
    forgery.tick("latest", CALM)["fired_at"] = text(START + CALM + 2.5)
    forgery.logs["machine"].append({"at": START + CALM + 1, "event": "stall", "from": START + CALM - 1, "to": START + CALM + 1})
    assert _judged(forgery, tmp_path).outcome is Outcome.PASS


def test_a_task_that_starts_late_is_found(forgery: Forgery, tmp_path: Path) -> None:
    forgery.forget("task-ticket-280")
    forgery.execute("task-ticket-280", START + 1 + 280 * 0.35 + 4.5, ticket="ticket-280")
    _assert_fails(_judged(forgery, tmp_path), "late", "a task started later")


# Doubled


def test_two_rows_for_one_tick_are_doubled(forgery: Forgery, tmp_path: Path) -> None:
    forgery.ticks.append(dict(forgery.tick("all", CALM)))
    _assert_fails(_judged(forgery, tmp_path), "doubled", "rows of the ledger")


def test_two_tasks_for_one_tick_are_doubled(forgery: Forgery, tmp_path: Path) -> None:
    forgery.tasks.append({**forgery.task_of("all", CALM), "id": "second"})
    forgery.execute("second", START + CALM + 0.1, schedule="all", tick=START + CALM)
    verdict = _judged(forgery, tmp_path)
    _assert_fails(verdict, "doubled", "2 tasks for one tick")
    _assert_fails(verdict, "doubled", "workers ran one tick as two tasks")


def test_two_tasks_for_one_submit_are_doubled(forgery: Forgery, tmp_path: Path) -> None:
    forgery.tasks.append({**forgery.task("task-ticket-7"), "id": "second"})
    forgery.execute("second", START + 9)
    _assert_fails(_judged(forgery, tmp_path), "doubled", "one submit made 2 tasks")


def test_two_runs_under_one_fence_are_doubled(forgery: Forgery, tmp_path: Path) -> None:
    forgery.logs["workers"].append(dict(forgery.lines("workers", task="task-ticket-7", event="started")[0]))
    _assert_fails(_judged(forgery, tmp_path), "doubled", "2 times under one fence")


def test_a_second_attempt_needs_a_cause(forgery: Forgery, tmp_path: Path) -> None:
    forgery.lines("workers", task="task-ticket-280", event="answered")[0]["status"] = "stale"
    forgery.execute("task-ticket-280", START + 105, fence=2)
    forgery.task("task-ticket-280")["result"] = {"fence": 2}
    _assert_fails(_judged(forgery, tmp_path), "doubled", "nothing had ended its first attempt")
    forgery.lines("workers", task="task-ticket-280", event="started")[0]["planned"] = True
    (again := tmp_path / "again").mkdir()
    assert _judged(forgery, again).outcome is Outcome.PASS


# Unexpected


def test_a_tick_that_no_rule_has_is_unexpected(forgery: Forgery, tmp_path: Path) -> None:
    forgery.fire("latest", START + CALM + 1)
    _assert_fails(_judged(forgery, tmp_path), "unexpected", "no tick of the rule")


def test_a_tick_before_its_time_is_unexpected(forgery: Forgery, tmp_path: Path) -> None:
    forgery.tick("all", CALM)["fired_at"] = text(START + CALM - 0.01)
    _assert_fails(_judged(forgery, tmp_path), "unexpected", "fired before its time")


def test_a_task_that_starts_before_its_time_is_unexpected(forgery: Forgery, tmp_path: Path) -> None:
    forgery.lines("load", ticket="ticket-7", event="submitted")[0]["run_at"] += 60
    _assert_fails(_judged(forgery, tmp_path), "unexpected", "started before its time")


def test_a_task_may_start_early_by_as_much_as_the_clock_of_the_database_was_ahead(forgery: Forgery, tmp_path: Path) -> None:
    forgery.fault("database_clock", 60, 3.0, group="database", value=25.0)
    submit = forgery.lines("load", ticket="ticket-180", event="submitted")[0]  # it started at 64
    submit["run_at"] = START + 85
    assert _judged(forgery, tmp_path).outcome is Outcome.PASS
    submit["run_at"] = START + 90
    (again := tmp_path / "again").mkdir()
    _assert_fails(_judged(forgery, again), "unexpected", "started before its time")


def test_a_range_that_counts_wrongly_is_unexpected(forgery: Forgery, tmp_path: Path) -> None:
    for after in (9, 11):
        forgery.drop_tick("latest", after - 1)
    forgery.ticks.append({**forgery.tick("latest", 12), "outcome": "skipped", "reason": "misfire", "task_id": None})
    forgery.ticks[-1] |= {"scheduled_for": text(START + 8), "until": text(START + 10), "count": 3, "fired_at": None}
    _assert_fails(_judged(forgery, tmp_path), "unexpected", "a range counts 3 ticks, and the rule has 2")


def test_a_task_that_nobody_submitted_is_unexpected(forgery: Forgery, tmp_path: Path) -> None:
    forgery.logs["load"] = [line for line in forgery.logs["load"] if line.get("ticket") != "ticket-7"]
    _assert_fails(_judged(forgery, tmp_path), "unexpected", "nobody submitted")


def test_a_tick_that_fires_during_a_pause_is_unexpected(forgery: Forgery, tmp_path: Path) -> None:
    pause = {"schedule": "paused", "sent_at": START + 98.2, "acknowledged_at": START + 98.4}
    resume = {"resume_sent_at": START + 100.2, "resumed_at": START + 100.4}
    forgery.logs["load"].append({"at": START + 100.5, "event": "paused", **pause, **resume})
    _assert_fails(_judged(forgery, tmp_path), "unexpected", "fired while its schedule was paused")


def test_a_cancelled_task_that_runs_is_unexpected(forgery: Forgery, tmp_path: Path) -> None:
    line = {"task": "task-ticket-7", "acknowledged_at": START + 2, "state": "cancelled"}
    forgery.logs["load"].append({"at": START + 2, "event": "cancelled", **line})
    _assert_fails(_judged(forgery, tmp_path), "unexpected", "a cancelled task was run")


def test_a_task_that_ends_in_another_way_is_unexpected(forgery: Forgery, tmp_path: Path) -> None:
    forgery.task("task-ticket-7")["state"] = "dead"
    _assert_fails(_judged(forgery, tmp_path), "unexpected", "ended as dead")


# Stale


def test_a_report_after_a_later_claim_must_be_refused(forgery: Forgery, tmp_path: Path) -> None:
    answer = forgery.lines("workers", task="task-repeated", event="answered")[0]
    answer |= {"status": "ok", "sent_at": START + 14.5, "heartbeats": 3, "verb": "fail"}
    _assert_fails(_judged(forgery, tmp_path), "stale-accepted", "although a later claim existed")


def test_a_report_after_the_lease_must_be_refused(forgery: Forgery, tmp_path: Path) -> None:
    answer = forgery.lines("workers", task="task-ticket-280", event="answered")[0]
    answer["sent_at"] = answer["claimed_at"] + 6.5
    _assert_fails(_judged(forgery, tmp_path), "stale-accepted", "after its lease had ended")


def test_only_one_claim_completes_a_task(forgery: Forgery, tmp_path: Path) -> None:
    forgery.lines("workers", task="task-repeated", event="answered")[0]["status"] = "ok"
    _assert_fails(_judged(forgery, tmp_path), "stale-accepted", "two claims of one task completed it")


def test_the_result_is_that_of_the_last_claim(forgery: Forgery, tmp_path: Path) -> None:
    forgery.task("task-repeated")["result"] = {"fence": 1}
    _assert_fails(_judged(forgery, tmp_path), "stale-accepted", "the result is that of an earlier claim")


# Answers and audit


@pytest.mark.parametrize(("status", "retry_after"), [(500, None), (404, None), (503, None)])
def test_an_unclean_answer_is_found(forgery: Forgery, tmp_path: Path, status: int, retry_after: str | None) -> None:
    line = {"event": "response", "path": "/v1/tasks", "status": status, "retry_after": retry_after}
    forgery.logs["load"].append({"at": START + 50, **line})
    _assert_fails(_judged(forgery, tmp_path), "unclean-answer", str(status))


@pytest.mark.parametrize("field", ["expected", "fired", "missing", "doubled"])
def test_an_audit_that_disagrees_is_found(forgery: Forgery, tmp_path: Path, field: str) -> None:
    def change(folder: Path) -> None:
        audit = json.loads((folder / "api" / "audit.json").read_text())
        audit["schedules"][1][field] += 1
        (folder / "api" / "audit.json").write_text(json.dumps(audit))

    _assert_fails(_judged(forgery, tmp_path, change), "audit-disagrees", "latest")


# Unknown


def _assert_unknown(verdict: Verdict, doubt: str) -> None:
    assert verdict.outcome is Outcome.UNKNOWN
    assert any(doubt in one for one in verdict.doubts), verdict.doubts


def test_too_few_faults_of_a_group_prove_nothing(forgery: Forgery, tmp_path: Path) -> None:
    for line in forgery.lines("faults", event="started", group="network"):
        forgery.lines("faults", event="ended", number=line["number"])[0]["effective"] = False
    _assert_unknown(_judged(forgery, tmp_path), "faults of the group network")


def test_too_little_work_proves_nothing(forgery: Forgery, tmp_path: Path) -> None:
    for ticket in range(100, 300):
        forgery.logs["load"].remove(forgery.lines("load", ticket=f"ticket-{ticket}")[0])
        forgery.tasks.remove(forgery.task(f"task-ticket-{ticket}"))
        forgery.forget(f"task-ticket-{ticket}")
    _assert_unknown(_judged(forgery, tmp_path), "submits were acknowledged")


def test_a_run_without_a_calm_moment_proves_nothing(forgery: Forgery, tmp_path: Path) -> None:
    for after in range(0, 120, 5):
        forgery.fault("link_delay", after, 4.0, group="network")
    _assert_unknown(_judged(forgery, tmp_path), "bound of an undisturbed cluster")


def test_a_run_without_a_stale_report_proves_nothing(forgery: Forgery, tmp_path: Path) -> None:
    forgery.lines("workers", status="stale")[0]["status"] = None
    _assert_unknown(_judged(forgery, tmp_path), "no stale report")


def test_a_load_generator_that_stalls_proves_nothing(forgery: Forgery, tmp_path: Path) -> None:
    forgery.logs["load"] = [line for line in forgery.logs["load"] if line["event"] != "beat" or line["at"] < START + 60]
    _assert_unknown(_judged(forgery, tmp_path), "the load generator was silent for")


def test_a_machine_that_stalls_all_the_time_proves_nothing(forgery: Forgery, tmp_path: Path) -> None:
    for after in range(50, 80):
        times: dict[str, Any] = {"from": START + after, "to": START + after + 0.9}
        forgery.logs["machine"].append({"at": times["to"], "event": "stall", **times})
    _assert_unknown(_judged(forgery, tmp_path), "the machine itself stalled")


@pytest.mark.parametrize(
    "file", ["run.json", "rules.json", "api/audit.json", "api/ticks.jsonl", "api/complete.json", "workers/one.jsonl"]
)
def test_a_missing_file_is_never_a_pass(forgery: Forgery, tmp_path: Path, file: str) -> None:
    verdict = _judged(forgery, tmp_path, lambda folder: (folder / file).unlink())
    assert verdict.outcome is not Outcome.PASS
    if file not in ("api/ticks.jsonl", "workers/one.jsonl"):
        assert verdict.outcome is Outcome.UNKNOWN


def _cut(path: Path, *, keep: slice) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[keep]))


def test_a_log_with_a_missing_line_proves_nothing_by_absence(forgery: Forgery, tmp_path: Path) -> None:
    verdict = _judged(forgery, tmp_path, lambda folder: _cut(folder / "workers" / "one.jsonl", keep=slice(0, 200)))
    # The lines that are there are whole, and nothing says that there were more: the tasks look as if nobody had run them.
    _assert_fails(verdict, "lost", "no log has run")
    (again := tmp_path / "again").mkdir()
    verdict = _judged(forgery, again, lambda folder: _cut(folder / "workers" / "one.jsonl", keep=slice(1, None)))
    _assert_unknown(verdict, "line 0 is missing")


def test_an_unreadable_line_proves_nothing_by_absence(forgery: Forgery, tmp_path: Path) -> None:
    def change(folder: Path) -> None:
        path = folder / "workers" / "one.jsonl"
        path.write_bytes(path.read_bytes()[:5000] + b"\0\n" + path.read_bytes()[5000:])

    verdict = _judged(forgery, tmp_path, change)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "lost" in _kinds(verdict)


def test_pages_that_were_cut_prove_nothing_by_absence(forgery: Forgery, tmp_path: Path) -> None:
    verdict = _judged(forgery, tmp_path, lambda folder: _cut(folder / "api" / "tasks.jsonl", keep=slice(0, -1)))
    _assert_unknown(verdict, "and the collector wrote")


def test_a_fault_that_never_ended_excuses_everything_and_counts_for_nothing(forgery: Forgery, tmp_path: Path) -> None:
    forgery.fault("database_stall", 50, 5, group="database")
    forgery.logs["faults"].pop()
    verdict = _judged(forgery, tmp_path)
    _assert_unknown(verdict, "the fault database_stall has no end")
    assert "database_stall" not in verdict.counts["faults"]


# The program


def test_the_checker_runs_alone_and_imports_nothing_of_everbeat(forgery: Forgery, tmp_path: Path) -> None:
    forgery.drop_tick("all", CALM)
    forgery.write(tmp_path)
    code = (
        "import runpy, sys; sys.argv = ['checker', sys.argv[1]]\n"
        "try: runpy.run_module('tests.chaos.checker', run_name='__main__')\n"
        "except SystemExit as end: code = end.code\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] == 'everbeat'], 'everbeat is imported'\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "no row of the ledger for a tick" in done.stdout


def test_the_sources_of_the_checker_import_only_the_table_of_faults() -> None:
    for path in Path(verdicts.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.partition(".")[0] != "everbeat", f"{path.name} imports {name}"
                if name.startswith("tests"):
                    assert name.startswith(("tests.chaos.checker", "tests.chaos.catalog")), f"{path.name} imports {name}"
