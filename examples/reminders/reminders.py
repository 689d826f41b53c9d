"""Reminders as delayed tasks, which can be rescheduled and cancelled and are created only once."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime, timedelta

from everbeat import Context, Everbeat, EverbeatError
from everbeat.core.responses import TaskResponse

eb = Everbeat(name="reminders")


@eb.task(queue="reminders", max_attempts=10, labels={"kind": "reminder"})
def remind(ctx: Context, user: str, text: str) -> str:
    print(f"→ {user}: {text}", flush=True)  # a real app would send an email
    return f"reminded {user}"


def add(user: str, text: str, delay: str = "10m", key: str | None = None) -> TaskResponse:
    """Create a reminder. Repeating this with the same key, for example after a double click, returns the same reminder."""
    return remind.options(delay=delay, key=key).submit(user=user, text=text).get()


def move(task_id: str, seconds: float) -> TaskResponse:
    """Reschedule a reminder to `seconds` from now. Rejected if the task has started."""
    return eb.client.tasks.reschedule(task_id, datetime.now(UTC) + timedelta(seconds=seconds))


def drop(task_id: str) -> TaskResponse:
    return eb.client.tasks.cancel(task_id)


def show(*tasks: TaskResponse) -> None:
    for task in tasks:
        print(f"{task.id}  {task.state:<9}  {task.run_at[:19]}Z  {task.payload['user']}: {task.payload['text']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add_parser = commands.add_parser("add")
    add_parser.add_argument("user")
    add_parser.add_argument("text")
    add_parser.add_argument("--delay", default="10m", help='such as "90s", "10m" or "2d"')
    add_parser.add_argument("--key", help="identifies the reminder, such as the id of an appointment")
    move_parser = commands.add_parser("move")
    move_parser.add_argument("id")
    move_parser.add_argument("seconds", type=float, help="from now")
    drop_parser = commands.add_parser("drop")
    drop_parser.add_argument("id")
    commands.add_parser("list")
    args = parser.parse_args()
    try:
        match args.command:
            case "add":
                show(add(args.user, args.text, args.delay, args.key))
            case "move":
                show(move(args.id, args.seconds))
            case "drop":
                show(drop(args.id))
            case "list":
                show(*eb.client.tasks.list(type=remind.name, state="scheduled", limit=None))
    except EverbeatError as error:
        sys.exit(f"reminders: {error}")


if __name__ == "__main__":
    main()
