"""Whether enough happened for a verdict. A run in which little happened proves nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.chaos.catalog import GROUPS
from tests.chaos.checker.attempts import AttemptVerdict
from tests.chaos.checker.evidence import Evidence
from tests.chaos.checker.tasks import TaskVerdict
from tests.chaos.checker.ticks import TickVerdict

# For each second of the run.
FIRED_PER_SECOND = 4.0
ACKNOWLEDGED_PER_SECOND = 2.0
DELIVERED_PER_SECOND = 0.5
FAULTS_PER_MINUTE = 1.0
UNDISTURBED_SHARE = 0.05
STALLED_SHARE = 0.2
# From this length on, attempts must have been repeated and stale reports refused.
LONG_SECONDS = 100.0


def too_little(evidence: Evidence, ticks: TickVerdict, tasks: TaskVerdict, attempts: AttemptVerdict) -> Iterator[str]:
    """Yield each reason why the run proves nothing."""
    from_, to = evidence.window
    seconds = to - from_
    fired = ticks.count("fired")
    delivered = sum(line["answer"] == 200 for line in evidence.deliveries if line["event"] == "delivery")
    for what, count, rate in (
        ("ticks fired", fired, FIRED_PER_SECOND),
        ("submits were acknowledged", tasks.acknowledged, ACKNOWLEDGED_PER_SECOND),
        ("webhooks were delivered", delivered, DELIVERED_PER_SECOND),
    ):
        if count < rate * seconds:
            yield f"only {count} {what} in {seconds:.0f} s"
    done = Counter(fault.group for fault in evidence.faults if fault.was_effective)
    for group in GROUPS:
        if done[group] < max(1.0, FAULTS_PER_MINUTE * seconds / 60):
            yield f"only {done[group]} faults of the group {group} were carried out"
    if sum(done.values()) < len(evidence.plan) / 2:
        yield f"only {sum(done.values())} of {len(evidence.plan)} planned faults were carried out"
    if ticks.undisturbed < UNDISTURBED_SHARE * fired:
        yield f"only {ticks.undisturbed} of {fired} ticks were judged by the bound of an undisturbed cluster"
    stalled = sum(end - start for start, end in evidence.stalls)
    if stalled > STALLED_SHARE * seconds:
        yield f"the machine itself stalled for {stalled:.0f} of {seconds:.0f} s"
    if seconds >= LONG_SECONDS and not attempts.repeated:
        yield "no attempt was lost"
    if seconds >= LONG_SECONDS and not attempts.refused_as_stale:
        yield "no stale report was sent"
