"""Settings of Python's garbage collector for a process that does nothing but work. Not for a process that embeds a worker."""

from __future__ import annotations

import gc


def tune_garbage_collector() -> None:
    """Call it once, after the modules are imported.

    A response with hundreds of tasks is decoded into many small objects at once. With Python's default threshold of 700, the
    collector takes about a sixth of a busy worker's processor time and finds next to nothing: most objects are freed by their
    reference counts.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
