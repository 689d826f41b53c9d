"""Shell tasks on a worker: real commands, their output, exit codes, users, timeouts, and processes that must not be left."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from everbeat.core.shell import SHELL_TYPE, AllowedCommands, shell_command
from everbeat.worker.shell import output, process
from everbeat.worker.shell.handler import shell_task
from tests.support.processes import ServerProcess, free_port, wait_until, wait_until_async
from tests.worker.conftest import Workers
from tests.worker.fakes import FakeTask

EVERYTHING = AllowedCommands()


async def run(workers: Workers, payload: Any, *, allowed: AllowedCommands = EVERYTHING, **options: Any) -> FakeTask:
    task = workers.server.submit(SHELL_TYPE, payload, **options)
    await workers.start(shell_task(allowed))
    await workers.until_ended(task, seconds=30)
    return task


def log_of(task: FakeTask) -> list[str]:
    return "\n".join(task.log).splitlines()


def message_of(task: FakeTask) -> str:
    assert task.error is not None
    return task.error.message


async def pid_in(file: Path) -> int:
    return int(await wait_until_async(lambda: file.exists() and file.read_text().strip()))


def has_ended(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


async def test_the_output_of_a_command_is_in_the_log_and_its_end_in_the_result(workers: Workers) -> None:
    task = await run(workers, shell_command("echo one; echo two >&2; printf three; exit 0"))
    assert (task.state, task.result["exit_code"], task.result["output_bytes"]) == ("completed", 0, 13)
    assert sorted(log_of(task)) == ["[stderr] two", "one", "three"]
    assert {"one", "two", "three"} == set(task.result["output"].split())


async def test_a_list_of_arguments_is_started_without_a_shell(workers: Workers) -> None:
    task = await run(workers, shell_command(["printf", "%s\n", "$HOME; exit 3", "", "x"]))
    assert log_of(task) == ["$HOME; exit 3", "", "x"]


async def test_a_failing_command_is_retried_and_its_error_has_the_last_output(workers: Workers) -> None:
    task = await run(workers, shell_command("echo about to fail; exit 3"))
    assert message_of(task) == "the command ended with exit code 3; its last output:\nabout to fail"
    assert task.error is not None
    assert task.error.trace is None
    assert task.failure is not None
    assert task.failure.retryable


async def test_exit_codes_that_mean_success_are_those_of_the_payload(workers: Workers) -> None:
    assert (await run(workers, shell_command("exit 24", success_codes=[0, 24]))).state == "completed"
    refused = workers.server.submit(SHELL_TYPE, shell_command("exit 0", success_codes=[1]))
    await workers.until_ended(refused)
    assert "exit code 0" in message_of(refused)


async def test_a_command_that_a_signal_ends_has_failed(workers: Workers) -> None:
    task = await run(workers, shell_command("kill -SEGV $$"))
    assert message_of(task).startswith("the command was ended by SIGSEGV")


async def test_the_environment_is_that_of_the_payload_and_has_no_secrets_of_the_worker(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERBEAT_API_KEY", "eb_secret")
    task = await run(workers, shell_command("env", env={"COLOR": "blue", "PATH": "/usr/bin:/bin"}))
    variables = dict(line.split("=", 1) for line in log_of(task))
    assert variables["COLOR"] == "blue"
    assert variables["PATH"] == "/usr/bin:/bin"
    assert variables["EVERBEAT_TASK_ID"] == str(task.id)
    assert variables["EVERBEAT_ATTEMPT"] == "1"
    assert "HOME" in variables
    assert "EVERBEAT_API_KEY" not in variables


async def test_the_directory_standard_input_and_niceness_are_those_of_the_payload(workers: Workers, tmp_path: Path) -> None:
    task = await run(workers, shell_command("pwd; cat; nice", cwd=str(tmp_path), stdin="some\ninput\n", nice=7))
    assert log_of(task) == [str(tmp_path), "some", "input", str(os.nice(0) + 7)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start commands as other users")
async def test_a_command_runs_as_the_user_of_the_payload_without_the_groups_of_root(workers: Workers) -> None:
    task = await run(workers, shell_command('id -un; id -Gn; echo "$LOGNAME $USER"', user="nobody"))
    assert log_of(task) == ["nobody", "nogroup", "nobody nobody"], task.error


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (shell_command("true", cwd="/no/such/folder"), "/no/such/folder: No such file or directory"),
        (shell_command(["no-such-program"]), "no-such-program: No such file or directory"),
        (shell_command("true", user="no-such-user"), "there is no user no-such-user on this machine"),
        (shell_command("true", shell="/bin/no-shell"), "/bin/no-shell: No such file or directory"),
    ],
)
async def test_a_command_that_cannot_be_started_is_a_clear_error(workers: Workers, payload: Any, message: str) -> None:
    assert message_of(await run(workers, payload)) == f"the command cannot be started: {message}"


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, "command: give exactly one of command and argv"),
        ({"command": "a", "argv": ["b"]}, "command: give exactly one"),
        ({"command": "a", "color": 1}, "color: is not a known field"),
        ({"command": "a", "nice": 99}, "nice: Expected `int` <= 19"),
        ({"command": "a", "cwd": "relative"}, "cwd: must be an absolute path"),
        ({"command": "a", "env": {"A B": "c"}}, "env.A B: is not the name of a variable"),
        ({"command": "a\0b"}, "command: must not contain NUL"),
        ({"argv": []}, "argv: Expected `array` of length >= 1"),
    ],
)
async def test_an_invalid_payload_is_not_retried(workers: Workers, payload: Any, message: str) -> None:
    task = await run(workers, payload)
    assert message in message_of(task)
    assert task.failure is not None
    assert not task.failure.retryable


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (shell_command("backup --all"), None),
        (shell_command(["backup", "--all"]), None),
        (shell_command(["/bin/echo", "any", "thing;"]), None),
        (shell_command("backup --all; rm -r /"), "does not allow the command: backup --all; rm -r /"),
        (shell_command("/bin/echo any"), "does not allow the command"),
        (shell_command(["/bin/echo2"]), "does not allow the command"),
        (shell_command("backup --all", env={"PATH": "/tmp"}), "does not allow the variable PATH"),
        (shell_command("backup --all", env={"LANG": "C"}), None),
        (shell_command("backup --all", user="root"), "does not allow the user root"),
        (shell_command("backup --all", shell="/tmp/sh"), "allows only the shell /bin/sh"),
        (shell_command("backup --all", cwd="/tmp"), "does not allow the directory /tmp"),
        (shell_command("backup --all", cwd="/srv"), None),
        (shell_command("backup --all", stdin="drop table"), "does not allow a standard input"),
    ],
)
def test_a_worker_with_a_list_of_commands_runs_no_others(payload: Any, message: str | None) -> None:
    from everbeat.core.shell import CommandNotAllowed, parse_shell_command

    allowed = AllowedCommands(["backup --all", "/bin/echo *"], frozenset({"nobody"}), frozenset({"LANG"}), frozenset({"/srv"}))
    if message is None:
        allowed.check(parse_shell_command(payload))
    else:
        with pytest.raises(CommandNotAllowed, match=message):
            allowed.check(parse_shell_command(payload))


async def test_a_command_that_is_not_allowed_is_not_retried(workers: Workers) -> None:
    task = await run(workers, shell_command("echo no"), allowed=AllowedCommands(["echo yes"]))
    assert "does not allow the command: echo no" in message_of(task)
    assert task.failure is not None
    assert not task.failure.retryable


# Ending commands


async def test_a_command_that_takes_too_long_is_ended_with_its_children_before_the_timeout(
    workers: Workers, tmp_path: Path
) -> None:
    command = f"sleep 600 & echo $! > {tmp_path}/child; echo working; sleep 600"
    task = await run(workers, shell_command(command), timeout_seconds=3)
    assert task.error is not None
    assert task.error.kind == "timeout"
    expected = "the command did not end within 3 seconds; the command was stopped with SIGTERM; its last output:\nworking"
    assert message_of(task) == expected
    child = await pid_in(tmp_path / "child")
    await wait_until_async(lambda: has_ended(child))


async def test_a_command_that_ignores_sigterm_is_killed(workers: Workers, tmp_path: Path) -> None:
    command = f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.1; done"
    task = await run(workers, shell_command(command, kill_after_seconds=0.3), timeout_seconds=2)
    assert "the command was stopped with SIGKILL" in message_of(task)
    assert has_ended(await pid_in(tmp_path / "pid"))


async def test_a_cancelled_command_is_ended_with_its_group_and_can_clean_up(workers: Workers, tmp_path: Path) -> None:
    command = f"trap 'echo cleaned up; exit' TERM; sleep 600 & echo $! > {tmp_path}/child; wait"
    task = workers.server.submit(SHELL_TYPE, shell_command(command))
    await workers.start(shell_task(EVERYTHING), lease_seconds=5)
    child = await pid_in(tmp_path / "child")
    workers.server.cancel(task)
    await workers.until_ended(task)
    assert task.error is not None
    assert task.error.kind == "cancelled"
    assert "cleaned up" in (task.error.trace or "")
    await wait_until_async(lambda: has_ended(child))


async def test_what_a_command_leaves_in_the_background_is_ended(workers: Workers, tmp_path: Path) -> None:
    task = await run(workers, shell_command(f"sleep 600 & echo $! > {tmp_path}/child"))
    assert task.state == "completed"
    assert has_ended(await pid_in(tmp_path / "child"))


async def test_a_process_in_another_session_that_holds_the_output_open_does_not_delay_the_end(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_OUTPUT_SECONDS", 0.1)
    command = f"setsid sh -c 'echo $$ > {tmp_path}/daemon; exec sleep 20' & until [ -s {tmp_path}/daemon ]; do sleep 0.02; done"
    task = await run(workers, shell_command(f"{command}; echo done"))
    assert log_of(task) == ["done"]
    assert not has_ended(await pid_in(tmp_path / "daemon"))
    output = os.readlink(f"/proc/{await pid_in(tmp_path / 'daemon')}/fd/1")
    assert output not in [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()], "the pipe is closed"
    with contextlib.suppress(ProcessLookupError):
        os.kill(await pid_in(tmp_path / "daemon"), signal.SIGKILL)


async def test_a_killed_supervisor_takes_its_command_with_it(workers: Workers, tmp_path: Path) -> None:
    task = workers.server.submit(SHELL_TYPE, shell_command(f"echo $$ $PPID > {tmp_path}/pids; exec sleep 600"), max_attempts=1)
    await workers.start(shell_task(EVERYTHING))
    pids = await wait_until_async(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().split())
    command, supervisor = (int(pid) for pid in pids or ())
    os.kill(supervisor, signal.SIGKILL)
    await wait_until_async(lambda: has_ended(command))
    await workers.until_ended(task)
    assert "it is unknown how the command ended" in message_of(task)


def test_a_worker_that_dies_before_it_has_read_the_start_of_a_command_leaves_no_processes(tmp_path: Path) -> None:
    """The socket then has unread data, and the supervisor gets an error from it instead of its end."""
    own, other = socket.socketpair()
    spec = {
        "argv": ["/bin/sh", "-c", f"trap '' TERM; sleep 600 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/pid; wait"],
        **{"env": {}, "base_env": {"PATH": os.defpath}, "cwd": None, "user": None, "nice": 0, "stdin": ""},
        "kill_after_seconds": 0.2,
    }
    command = [sys.executable, "-I", "-S", str(Path(process.__file__).with_name("supervisor.py")), str(other.fileno())]
    with other, subprocess.Popen(command, pass_fds=[other.fileno()]) as supervisor:
        own.sendall(json.dumps(spec).encode() + b"\n")
        pids = [int(wait_until(functools.partial(_content, tmp_path / name))) for name in ("pid", "child")]
        other.close()
        own.close()
        assert supervisor.wait(10) == 0
    assert all(has_ended(pid) for pid in pids)


def test_a_killed_worker_leaves_no_commands(tmp_path: Path) -> None:
    """A real server and `everbeat worker --allow-shell` without an app, killed with SIGKILL while a command runs."""
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    command = f"echo $$ > {tmp_path}/pid; trap '' TERM; sleep 600 & echo $! > {tmp_path}/child; wait"
    server = ServerProcess("serve", "--port", str(port), "--database-url", f"sqlite:///{tmp_path}/s.db", folder=tmp_path)
    worker = ServerProcess("worker", "--allow-shell", "--url", base, folder=tmp_path, name="worker")
    with server, worker:
        server.wait_ready(f"{base}/readyz", 30)
        body = {"type": SHELL_TYPE, "queue": "shell", "payload": shell_command(command, kill_after_seconds=0.5)}
        httpx.post(f"{base}/v1/tasks", json=body, trust_env=False).raise_for_status()
        pids = [int(wait_until(functools.partial(_content, tmp_path / name), 30, worker.logs)) for name in ("pid", "child")]
        assert not any(has_ended(pid) for pid in pids)
        worker.kill9()
        wait_until(lambda: all(has_ended(pid) for pid in pids), 10, "the command and its child have ended")


def _content(file: Path) -> str:
    return file.read_text().strip() if file.exists() else ""


async def test_a_stopping_worker_ends_its_commands_and_releases_the_tasks(workers: Workers, tmp_path: Path) -> None:
    task = workers.server.submit(SHELL_TYPE, shell_command(f"echo $$ > {tmp_path}/pid; sleep 600"))
    worker = await workers.start(shell_task(EVERYTHING))
    pid = await pid_in(tmp_path / "pid")
    await worker.stop(0)
    assert task.state == "ready"
    await wait_until_async(lambda: has_ended(pid))


async def test_a_lost_lease_ends_the_command(workers: Workers, tmp_path: Path) -> None:
    task = workers.server.submit(SHELL_TYPE, shell_command(f"echo $$ > {tmp_path}/pid; sleep 600"))
    await workers.start(shell_task(EVERYTHING), lease_seconds=5)
    pid = await pid_in(tmp_path / "pid")
    workers.server.steal(task)
    await wait_until_async(lambda: has_ended(pid))
    assert task.worker == "other"


# Output


def test_lines_are_split_across_chunks_and_bytes_that_are_not_utf_8_are_replaced() -> None:
    lines: list[str] = []
    collected = output.CommandOutput(lines.append)
    for chunk in (b"caf\xc3", b"\xa9\nbad \xff\r\n", b"x" * 9_000, b"\n", b"end"):
        collected.add(chunk, False)
    collected.finish()
    assert lines[:2] == ["café", "bad �"]
    assert "".join(lines[2:-1]) == "x" * 9_000
    assert max(map(len, lines)) <= 4_000
    assert lines[-1] == collected.tail.splitlines()[-1] == "end"


def test_output_above_the_limit_is_counted_and_its_end_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MAX_LOGGED_BYTES", 1_000)
    lines: list[str] = []
    collected = output.CommandOutput(lines.append)
    for number in range(1_000):
        collected.add(f"line {number:04}\n".encode(), False)
    collected.finish()
    assert len(lines) == 101
    assert lines[-1].startswith("[9000 more bytes of output were not logged; the last lines are:]")
    assert lines[-1].endswith("line 0999")
