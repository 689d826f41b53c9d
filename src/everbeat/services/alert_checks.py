"""Judges checks, which watch jobs that run elsewhere, for the rules about missed ticks and dead letters.

A check that is down because no ping arrived in time is missed, as a tick is. One whose job reported a failure has failed, as a
task that becomes a dead letter.
"""

from __future__ import annotations

from collections.abc import Collection

from everbeat.core.alerts import AlertKind, AlertRule
from everbeat.core.checks import Check, DownReason
from everbeat.core.incidents import Finding, Incident, Subject
from everbeat.services.alert_facts import TenantFacts

REASONS: dict[AlertKind, dict[DownReason, str]] = {
    AlertKind.MISSED: {
        DownReason.MISSED: "no ping arrived in time",
        DownReason.UNFINISHED: "a run started and did not end in time",
    },
    AlertKind.DEAD: {DownReason.FAILED: "the job reported a failure"},
}
_PREFIX = "check:"


async def judge_checks(facts: TenantFacts, rule: AlertRule, incidents: Collection[Incident]) -> tuple[list[Finding], set[str]]:
    """Return what the rule finds among the checks that are down, and the subjects that are no longer down."""
    reasons = REASONS[rule.kind]
    down, is_complete = await facts.checks_down()
    findings = [
        _finding(check, text)
        for check in down
        if check.position.reason is not None
        and (text := reasons.get(check.position.reason)) is not None
        and _is_matched(rule, check)
    ]
    keys = {finding.subject.key for finding in findings}
    recovered = {one.subject for one in incidents if one.subject.startswith(_PREFIX) and one.subject not in keys}
    return findings, recovered if is_complete else set()


def _finding(check: Check, text: str) -> Finding:
    subject = Subject(f"{_PREFIX}{check.id}", f"check {check.spec.name}")
    details = {"check": check.spec.name, "reason": str(check.position.reason)}
    return Finding(subject, f"check {check.spec.name}: {text}", check.position.state_since, 1, details)


def _is_matched(rule: AlertRule, check: Check) -> bool:
    return rule.matches(schedule=check.spec.name, queue="", labels=check.spec.labels)
