"""Compares the audit that the product makes of itself with the checker's own count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.chaos.checker.evidence import Evidence, Record, Violation
from tests.chaos.checker.ticks import TickVerdict


def judge_audit(evidence: Evidence, ticks: TickVerdict) -> Iterator[Violation]:
    if not evidence.audit:
        return
    own = {name: _own(ticks, name) for name in ticks.expected}
    total: Counter[str] = Counter()
    for counted in own.values():
        total.update(counted)
    yield from _compare("all schedules", dict(total), evidence.audit)
    theirs = {one["name"]: one for one in evidence.audit["schedules"]}
    for name, counted in own.items():
        if name not in theirs:
            yield Violation("audit-disagrees", "a schedule is not in the audit", {"schedule": name})
        else:
            yield from _compare(name, counted, theirs[name])


def _own(ticks: TickVerdict, name: str) -> Counter[str]:
    counts = Counter({"expected": len(ticks.expected[name])})
    for row in ticks.rows:
        if row.schedule == name:
            counts[row.outcome if row.outcome == "fired" else f"skipped {row.reason}"] += 1
    return counts


def _compare(what: str, own: dict[str, int], audit: Record) -> Iterator[Violation]:
    theirs = Counter({"expected": audit["expected"], "fired": audit["fired"]})
    theirs.update({f"skipped {reason}": count for reason, count in audit["skipped"].items()})
    if +Counter(own) != +theirs:
        yield Violation("audit-disagrees", f"counts of {what}", {"checker": dict(own), "audit": dict(theirs)})
    for name in ("missing", "doubled"):
        if audit[name]:
            yield Violation("audit-disagrees", f"the audit has {audit[name]} {name} of {what}", {"audit": dict(theirs)})
