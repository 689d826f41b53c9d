"""Notes when this machine itself stalls: `python -m tests.chaos.machine FOLDER`. Such a stall is no fault of Everbeat.

Two processes of a busy machine may wait for each other; a sleep of 50 ms that takes a quarter of a second shows that.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.chaos.records import log_of_process

_STEP_SECONDS = 0.05
_STALL_SECONDS = 0.25


def main() -> None:
    log = log_of_process(Path(sys.argv[1]) / "machine", "machine")
    beat_at = before = time.time()
    while True:
        time.sleep(_STEP_SECONDS)
        now = time.time()
        if now - before > _STEP_SECONDS + _STALL_SECONDS:
            log.write("stall", **{"from": before, "to": now})
        if now >= beat_at:
            log.write("beat")
            beat_at = now + 1.0
        before = now


if __name__ == "__main__":
    main()
