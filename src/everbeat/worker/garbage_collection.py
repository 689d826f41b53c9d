"""Tunes Python's garbage collector for a dedicated worker process. Not for a process that embeds a worker."""

from __future__ import annotations

import gc


def tune_garbage_collector() -> None:
    """Set collection thresholds. Call this once, after the modules are imported.

    Decoding a response with hundreds of tasks creates many small objects. With Python's default threshold of 700, the
    collector takes about a sixth of a busy worker's CPU time and frees almost nothing, because reference counting frees
    most objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
