"""The interface of the raw queue: the simplest possible task queue, as a baseline."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, Protocol

INSERT_BATCH = 1000
CLAIM_BATCH = 100
_PAD = "x" * 60


def payload(number: int, at: float = 0.0) -> dict[str, Any]:
    """Return a payload of about 100 bytes as JSON. `at` is the time of the submit, if the benchmark measures from there."""
    return {"id": number, "t": at, "kind": "noop", "pad": _PAD}


def payloads() -> list[str]:
    """Return one batch of payloads as JSON text."""
    return [json.dumps(payload(number)) for number in range(INSERT_BATCH)]


class RawRates(NamedTuple):
    """Tasks per second for each operation, measured separately, on one connection, one batch after another."""

    insert: float
    claim: float
    finish: float

    @property
    def drain(self) -> float:
        """The rate of claiming and finishing."""
        return 1 / (1 / self.claim + 1 / self.finish)

    def __str__(self) -> str:
        return f"insert {self.insert:,.0f}/s, claim {self.claim:,.0f}/s, finish {self.finish:,.0f}/s"


class RawQueue(Protocol):
    """The baseline for tasks: a separate table on the same server with the same settings, without Everbeat code."""

    async def measure(self, count: int) -> RawRates:
        """Insert `count` tasks in batches of 1,000, then claim all in batches of 100, then finish all in batches of 100."""
