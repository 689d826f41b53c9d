"""Reminders that wait until they are due, can be moved or dropped, and are never made twice."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime, timedelta

from everbeat import Context, Everbeat, EverbeatError
from everbeat.core.responses import TaskResponse

eb = Everbeat(name="reminders")


@eb.task(queue="reminders", max_attempts=10, labels={"kind": "reminder"})
def remind(ctx: Context, user: str, text: str) -> str:
    print(f"→ {user}: {text}", flush=True)  # here goes the mail
    return f"reminded {user}"


def add(user: str, text: str, delay: str = "10m", key: str | None = None) -> TaskResponse:
    """Submitted twice under one key, as by a click too many, it is one reminder."""
    return remind.options(delay=delay, key=key).submit(user=user, text=text).get()


def move(task_id: str, seconds: float) -> TaskResponse:
    """To so many seconds from now; refused once it has begun."""
    return eb.client.tasks.reschedule(task_id, datetime.now(UTC) + timedelta(seconds=seconds))


def drop(task_id: str) -> TaskResponse:
    return eb.client.tasks.cancel(task_id)


def show(*tasks: TaskResponse) -> None:
    for task in tasks:
        print(f"{task.id}  {task.state:<9}  {task.run_at[:19]}Z  {task.payload['user']}: {task.payload['text']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add")
    adding.add_argument("user")
    adding.add_argument("text")
    adding.add_argument("--delay", default="10m", help='such as "90s", "10m" or "2d"')
    adding.add_argument("--key", help="what makes it the same reminder again, such as an appointment's id")
    moving = commands.add_parser("move")
    moving.add_argument("id")
    moving.add_argument("seconds", type=float, help="from now")
    dropping = commands.add_parser("drop")
    dropping.add_argument("id")
    commands.add_parser("list")
    given = parser.parse_args()
    try:
        match given.command:
            case "add":
                show(add(given.user, given.text, given.delay, given.key))
            case "move":
                show(move(given.id, given.seconds))
            case "drop":
                show(drop(given.id))
            case "list":
                show(*eb.client.tasks.list(type=remind.name, state="scheduled", limit=None))
    except EverbeatError as error:
        sys.exit(f"reminders: {error}")


if __name__ == "__main__":
    main()
