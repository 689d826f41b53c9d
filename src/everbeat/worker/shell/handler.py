"""The handler of shell tasks: validates the payload, runs the command, and stops its process group when it has to end."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

from everbeat.client.errors import NonRetryable
from everbeat.client.registry import TaskDefinition
from everbeat.core.errors import InvalidInput
from everbeat.core.shell import (
    DEFAULT_SHELL_QUEUE,
    SHELL_TYPE,
    AllowedCommands,
    CommandNotAllowed,
    ShellCommand,
    parse_shell_command,
)
from everbeat.worker.context import Cancelled, Context
from everbeat.worker.outcomes import CommandFailed, CommandTimedOut
from everbeat.worker.shell.output import CommandOutput
from everbeat.worker.shell.process import CommandProcess, ExitStatus

# A command is stopped early enough to end before the timeout, and its report to arrive. After its own timeout, the server
# ignores the report, and may give the task to another worker while the command still runs.
_REPORT_SECONDS = 1.0


class ShellHandler:
    """Runs the commands that a worker allows."""

    def __init__(self, allowed: AllowedCommands) -> None:
        self._allowed = allowed

    async def run(self, ctx: Context, **payload: Any) -> dict[str, Any]:
        """Run a command. Returns its exit code, duration and the end of its output, or raises CommandFailed."""
        try:
            command = parse_shell_command(payload)
            self._allowed.check(command)
        except (InvalidInput, CommandNotAllowed) as error:
            raise NonRetryable(str(error)) from None
        return await _run(ctx, command)


def shell_task(allowed: AllowedCommands, queue: str = DEFAULT_SHELL_QUEUE) -> TaskDefinition:
    """Return the definition with which a worker runs shell tasks."""
    return TaskDefinition(
        type=SHELL_TYPE,
        queue=queue,
        function=ShellHandler(allowed).run,
        is_async=True,
        wants_context=True,
        location="everbeat.worker.shell",
    )


async def _run(ctx: Context, command: ShellCommand) -> dict[str, Any]:
    started_at = time.monotonic()
    output = CommandOutput(ctx.log)
    process = await CommandProcess.start(command, _variables_of(ctx), output.add)
    waiting = asyncio.create_task(process.wait())
    kill_seconds = min(command.kill_after_seconds, ctx.timeout_seconds / 4)
    report_seconds = min(_REPORT_SECONDS, ctx.timeout_seconds / 8)
    is_late = False
    try:
        await asyncio.wait({waiting}, timeout=max(0.0, ctx.seconds_left - kill_seconds - report_seconds))
        if not waiting.done():
            is_late = True
            process.stop(kill_seconds)
        status = await asyncio.shield(waiting)
    except asyncio.CancelledError:
        process.stop(command.kill_after_seconds)
        status = await waiting
        output.finish()
        raise Cancelled(f"{_stopped(status)}{_last_output(output)}") from None
    output.finish()
    if is_late:
        raise CommandTimedOut(
            f"the command did not end within {ctx.timeout_seconds:g} seconds; {_stopped(status)}{_last_output(output)}"
        )
    if status.exit_code not in command.success_codes:
        raise CommandFailed(f"{_ended(status)}{_last_output(output)}")
    return {
        "exit_code": status.exit_code,
        "seconds": round(time.monotonic() - started_at, 3),
        "output_bytes": output.bytes_read,
        "output": output.tail,
    }


def _variables_of(ctx: Context) -> dict[str, str]:
    variables = {
        "EVERBEAT_TASK_ID": str(ctx.task_id),
        "EVERBEAT_ATTEMPT": str(ctx.attempt),
        "EVERBEAT_FENCE": str(ctx.fence),
    }
    if ctx.schedule is not None:
        variables["EVERBEAT_SCHEDULE"] = ctx.schedule
    if ctx.scheduled_for is not None:
        variables["EVERBEAT_SCHEDULED_FOR"] = ctx.scheduled_for.isoformat()
    return variables


def _ended(status: ExitStatus) -> str:
    if status.exit_code is not None:
        return f"the command ended with exit code {status.exit_code}"
    return f"the command was ended by {signal.Signals(status.signal or 0).name}"


def _stopped(status: ExitStatus) -> str:
    return f"the command was stopped with {status.stopped_by}" if status.stopped_by else _ended(status)


def _last_output(output: CommandOutput) -> str:
    return f"; its last output:\n{output.tail}" if output.tail else "; it had no output"
