"""Judges the answers of the API under faults: success, an error of the client, or 503 with Retry-After; never a 500."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.chaos.checker.evidence import Evidence, Violation

_SHOWN = 5
# What a client that does nothing wrong may get: 408 if its request was cut, 409 while the same key is being served.
_ALLOWED = frozenset({200, 201, 202, 204, 408, 409, 429, 503})


def judge_answers(evidence: Evidence) -> tuple[list[Violation], Counter[str]]:
    counts: Counter[str] = Counter()
    unclean = []
    for line in (*evidence.load, *evidence.workers):
        if line["event"] != "response":
            continue
        counts[str(line["status"])] += 1
        if line["status"] not in _ALLOWED:
            unclean.append(Violation("unclean-answer", f"the API answered {line['status']}", line))
        elif line["status"] == 503 and line["retry_after"] is None:
            unclean.append(Violation("unclean-answer", "503 without Retry-After", line))
    return list(_some(unclean)), counts


def _some(violations: list[Violation]) -> Iterator[Violation]:
    yield from violations[:_SHOWN]
    if len(violations) > _SHOWN:
        yield Violation("unclean-answer", f"and {len(violations) - _SHOWN} more", {})
