"""A queue as plain as can be, to measure against: what it holds, and what its two makers for the two stores must do."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, Protocol

INSERTED_AT_ONCE = 1000
TAKEN_AT_ONCE = 100
_PAD = "x" * 60


def payload(number: int, at: float = 0.0) -> dict[str, Any]:
    """About 100 bytes as JSON; `at` is when it was submitted, for those who measure how long it took from there."""
    return {"id": number, "t": at, "kind": "noop", "pad": _PAD}


def payloads() -> list[str]:
    """One batch of them as text."""
    return [json.dumps(payload(number)) for number in range(INSERTED_AT_ONCE)]


class RawRates(NamedTuple):
    """Tasks a second, each verb by itself, one connection, one batch after another."""

    insert: float
    claim: float
    finish: float

    @property
    def drain(self) -> float:
        """Claim and finish together."""
        return 1 / (1 / self.claim + 1 / self.finish)

    def __str__(self) -> str:
        return f"insert {self.insert:,.0f}/s, claim {self.claim:,.0f}/s, finish {self.finish:,.0f}/s"


class RawQueue(Protocol):
    """The raw baseline of tasks: a table of its own on the same server with the same settings, and no code of Everbeat."""

    async def measure(self, count: int) -> RawRates:
        """Insert so many tasks in batches of 1,000, claim them all in batches of 100, finish them all in batches of 100."""
