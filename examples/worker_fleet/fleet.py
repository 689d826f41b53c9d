"""Resizes pictures with several workers. If a worker dies, no picture is lost."""

from __future__ import annotations

import collections
import sys
import time

from everbeat import Context, Everbeat

eb = Everbeat(name="fleet")


@eb.task(queue="pictures", max_attempts=5, timeout="1m")
def resize(ctx: Context, picture: int, seconds: float = 0.3) -> str:
    """A plain function. It runs in a thread of the worker, so it may block."""
    done_at = time.monotonic() + seconds
    while time.monotonic() < done_at:
        ctx.raise_if_cancelled()
        time.sleep(0.05)  # the work
    return f"picture-{picture}-small.jpg"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.3
    handles = resize.submit_many({"picture": number, "seconds": seconds} for number in range(count))
    print(f"submitted {count}", flush=True)
    for handle in handles:
        handle.wait("2m")
    tasks = [handle.get() for handle in handles]
    print(f"completed {sum(task.state == 'completed' for task in tasks)}")
    print(f"attempted more than once: {sum(task.attempt > 1 for task in tasks)}")
    for worker, done in sorted(collections.Counter(task.worker for task in tasks).items()):
        print(f"  {worker}: {done}")


if __name__ == "__main__":
    main()
