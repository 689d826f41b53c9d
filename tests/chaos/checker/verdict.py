"""The verdict of a run: PASS, FAIL or UNKNOWN, with counts and evidence, as JSON and as text."""

from __future__ import annotations

import json
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.checker.answers import judge_answers
from tests.chaos.checker.attempts import judge_attempts
from tests.chaos.checker.audit import judge_audit
from tests.chaos.checker.evidence import Evidence, Violation, read_evidence
from tests.chaos.checker.sufficiency import too_little
from tests.chaos.checker.tasks import judge_tasks
from tests.chaos.checker.ticks import judge_ticks

_SHOWN_OF_A_KIND = 50


class Outcome(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"


class Verdict(NamedTuple):
    outcome: Outcome
    violations: list[Violation]
    doubts: list[str]
    counts: dict[str, Any]


def judge(evidence: Evidence) -> Verdict:
    """Judge a run. What is only proven by absence does not count if some of the evidence is missing."""
    if "window" not in evidence.run or not evidence.rules:
        return Verdict(Outcome.UNKNOWN, [], evidence.gaps or ["the run has no rules"], {})
    ticks = judge_ticks(evidence)
    attempts = judge_attempts(evidence)
    tasks = judge_tasks(evidence, ticks.rows, attempts.holdings)
    unclean, answers = judge_answers(evidence)
    violations = [*ticks.violations, *tasks.violations, *attempts.violations, *unclean, *judge_audit(evidence, ticks)]
    doubts = [*evidence.gaps, *too_little(evidence, ticks, tasks, attempts)]
    proven = [one for one in violations if one.is_positive or not evidence.gaps]
    counts = {
        "expected": sum(map(len, ticks.expected.values())),
        "fired": ticks.count("fired"),
        "skipped": dict(Counter(row.reason for row in ticks.rows if row.outcome == "skipped")),
        "judged_undisturbed": ticks.undisturbed,
        "worst_undisturbed_lag_seconds": round(ticks.worst_undisturbed_seconds, 3),
        "tasks": len(evidence.tasks),
        "submits_acknowledged": tasks.acknowledged,
        "tasks_ended": tasks.ended,
        "starts_judged": tasks.judged_starts,
        "deliveries": len([line for line in evidence.deliveries if line["event"] == "delivery"]),
        "tasks_run_again": attempts.repeated,
        "reports_refused_as_stale": attempts.refused_as_stale,
        "responses": dict(answers),
        "faults": dict(Counter(fault.kind for fault in evidence.faults if fault.was_effective)),
        "faults_planned": len(evidence.plan),
        "stalls_of_the_machine_seconds": round(sum(to - from_ for from_, to in evidence.stalls), 2),
        "violations": dict(Counter(one.kind for one in violations)),
    }
    outcome = Outcome.FAIL if proven else Outcome.UNKNOWN if doubts else Outcome.PASS
    return Verdict(outcome, violations, doubts, counts)


def judge_folder(folder: Path) -> Verdict:
    """Judge the report of a run, and write the verdict next to it."""
    evidence = read_evidence(folder)
    verdict = judge(evidence)
    shown = [one._asdict() for one in _some_of_each(verdict.violations)]
    document = {**verdict._asdict(), "violations": shown, "seed": evidence.run.get("seed"), "plan": evidence.plan}
    document["done"] = [fault._asdict() for fault in evidence.faults]
    (folder / "verdict.json").write_text(json.dumps(document, indent=1, default=str) + "\n")
    (folder / "summary.md").write_text(summary(verdict, evidence))
    return verdict


def _some_of_each(violations: list[Violation]) -> list[Violation]:
    shown: Counter[tuple[str, str]] = Counter()
    found = []
    for one in violations:
        shown[one.kind, one.what] += 1
        if shown[one.kind, one.what] <= _SHOWN_OF_A_KIND:
            found.append(one)
    return found


def summary(verdict: Verdict, evidence: Evidence) -> str:
    run = evidence.run
    lines = [f"# {verdict.outcome}: seed {run.get('seed')}, {run.get('store')}, {run.get('seconds')} s", ""]
    lines += [f"- doubt: {doubt}" for doubt in verdict.doubts]
    lines += [f"- {name}: {value}" for name, value in verdict.counts.items()]
    if verdict.violations:
        lines += ["", f"## {len(verdict.violations)} violations", ""]
        for one in verdict.violations[:30]:
            lines.append(f"- **{one.kind}**: {one.what}\n  `{json.dumps(one.evidence, default=str)[:1200]}`")
    if "window" in run:
        start = run["window"]["from"]
        lines += ["", "## Faults carried out", "", "| from | to | kind | value | effective |", "|---|---|---|---|---|"]
        for fault in evidence.faults:
            done = "yes" if fault.was_effective else "no"
            times = f"{fault.started_at - start:.1f} | {fault.ended_at - start:.1f}"
            lines.append(f"| {times} | {fault.kind} | {fault.value} | {done} |")
    return "\n".join(lines) + "\n"
