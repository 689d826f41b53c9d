"""A task that reports its progress, and a caller that displays the progress and cancels a task."""

from __future__ import annotations

import asyncio
import sys
import time

from everbeat import Context, Everbeat, TaskCancelled, TaskHandle

eb = Everbeat(name="report")


@eb.task(queue="reports", max_attempts=5, timeout="10m")
async def build_report(ctx: Context, account: int, pages: int = 20) -> dict[str, int]:
    for page in range(pages):
        ctx.progress(page / pages, f"page {page + 1} of {pages}")
        await asyncio.sleep(0.1)  # the work
        if page % 5 == 0:
            ctx.log(f"account {account}: {page * 100} rows so far")
    return {"account": account, "rows": pages * 100}


def watch(handle: TaskHandle) -> None:
    """Print the progress until the task has ended."""
    shown = None
    while (task := handle.get()).state in ("scheduled", "ready", "running"):
        if task.progress != shown and task.progress is not None:
            shown = task.progress
            print(f"  {shown.fraction:4.0%}  {shown.message}", flush=True)
        time.sleep(0.2)


def main() -> None:
    account = int(sys.argv[1]) if len(sys.argv) > 1 else 7

    print(f"A report on account {account}:")
    handle = build_report.submit(account=account)
    watch(handle)
    print(f"  done: {handle.wait()}")
    print("Its log:")
    for entry in eb.client.tasks.log(handle.id):
        for line in entry.text.splitlines():
            print(f"  {line}")

    print("A longer report, cancelled:")
    handle = build_report.submit(account=account, pages=10_000)
    while handle.get().progress is None:
        time.sleep(0.2)
    handle.cancel()
    try:
        handle.wait("30s")
    except TaskCancelled as cancelled:
        progress = cancelled.task.progress
        print(f"  {cancelled.task.state} at {progress.message if progress else 'the start'}")


if __name__ == "__main__":
    main()
