"""`everbeat check` against a real server, and the runner of commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from everbeat.client.errors import NotFoundProblem
from everbeat.client.pings import PingSender, is_ping_url
from tests.cli.conftest import Console
from tests.support.processes import free_port


def made(console: Console, name: str, *options: str) -> dict[str, Any]:
    console.run("check", "set", name, *(options or ("--every", "1h")))
    found: dict[str, Any] = console.json("check", "show", name)
    return found


def run(console: Console, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `everbeat check run` as a process, because it passes on the streams of its command."""
    variables = {"EVERBEAT_URL": console.url, "EVERBEAT_API_KEY": console.key_file.read_text().strip(), **(env or {})}
    command = [sys.executable, "-m", "everbeat", "check", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **variables}, check=False)


def test_a_check_is_set_changed_and_deleted(console: Console) -> None:
    result = console.run(
        "check", "set", "a", "--cron", "0 3 * * *", "--tz", "Europe/Berlin", "--grace", "15m", "--label", "t=x"
    )
    assert result.stdout.splitlines()[0] == "a: At 03:00 every day, Europe/Berlin, new"
    assert result.stdout.splitlines()[1].startswith(f"{console.url}/ping/")
    console.run("check", "set", "a", "--every", "10m", "--timeout", "1h")
    found = console.json("check", "show", "a")
    assert (found["every_seconds"], found["grace_seconds"], found["timeout_seconds"]) == (600, 900, 3600)
    assert (found["labels"], "cron" in found) == ({"t": "x"}, False)
    rotated = console.run("check", "rotate", "a", "--revoke").stdout.strip()
    assert rotated != found["ping_url"]
    console.run("check", "delete", "a")
    assert isinstance(console.try_("check", "show", "a").exception, NotFoundProblem)
    assert console.try_("check", "set", "a", "--grace", "1m").exit_code == 2
    assert console.try_("check", "set", "a", "--cron", "* * * * *", "--every", "1m").exit_code == 2


def test_a_check_is_listed_paused_resumed_and_explained(console: Console) -> None:
    made(console, "b")
    console.run("check", "pause", "b")
    assert "paused" in console.run("check", "list", "--state", "paused").stdout
    console.run("check", "resume", "b")
    assert "new: The check has had no ping yet" in console.run("check", "why", "b").stdout
    assert "no ping has arrived yet" in console.run("check", "pings", "b").stderr
    assert console.json("check", "ticks", "b") == []


def test_a_run_is_reported_with_its_output_and_duration(console: Console) -> None:
    made(console, "c")
    script = "import sys; print('copied'); print('careful', file=sys.stderr)"
    result = run(console, "c", "--", sys.executable, "-c", script)
    assert (result.returncode, result.stdout, result.stderr) == (0, "copied\n", "careful\n")
    success, start = console.json("check", "pings", "c")
    assert (start["kind"], success["kind"], success["exit_status"]) == ("start", "success", 0)
    assert start["rid"] == success["rid"] is not None
    assert "careful" in success["body"]
    assert "copied" in success["body"]
    assert success["duration_ms"] > 0
    assert console.json("check", "ticks", "c")[0]["outcome"] == "pinged"
    assert "checks: " in console.run("audit").stdout


def test_the_exit_status_of_the_command_is_kept(console: Console) -> None:
    check = made(console, "d")
    assert run(console, check["ping_url"], "--", sys.executable, "-c", "raise SystemExit(7)").returncode == 7
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run(console, "d", "--", sys.executable, "-c", killed).returncode == 137
    missing = run(console, "-", "--", "/no/such/program", env={"EVERBEAT_PING_URL": check["ping_url"]})
    assert (missing.returncode, "No such file" in missing.stderr) == (127, True)
    assert [one["exit_status"] for one in console.json("check", "pings", "d") if one["kind"] == "fail"] == [127, 137, 7]
    assert "exit status 127" in console.run("check", "why", "d").stdout


def test_only_the_end_of_a_large_output_is_reported(console: Console) -> None:
    made(console, "e")
    result = run(console, "e", "--", sys.executable, "-c", "print('x' * 50_000); print('the end')")
    assert len(result.stdout) == 50_000 + len("\nthe end\n")
    body = console.json("check", "pings", "e")[0]["body"]
    assert (len(body), body.endswith("x\nthe end\n")) == (10_000, True)
    run(console, "e", "--no-output", "--", sys.executable, "-c", "print('secret')")
    assert console.json("check", "pings", "e")[0]["body"] is None


@pytest.mark.parametrize("check", ["f", "URL", "-"])
def test_a_server_that_is_down_does_not_stop_the_command(console: Console, tmp_path: Path, check: str) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    check = f"{nowhere}/ping/0a9f2c66-51c8-4a4b-8b0d-3f9f3f8d2e11" if check == "URL" else check
    started = time.monotonic()
    result = run(console, check, "--url", nowhere, "--", sys.executable, "-c", "print(1); raise SystemExit(3)")
    assert (result.returncode, result.stdout) == (3, "1\n")
    assert "everbeat: " in result.stderr
    assert time.monotonic() - started < 30


def test_an_unknown_check_does_not_stop_the_command(console: Console) -> None:
    result = run(console, "unknown", "--", sys.executable, "-c", "print(1)")
    assert (result.returncode, result.stdout) == (0, "1\n")
    assert "there is no check named" in result.stderr


def test_signals_are_passed_on_to_the_command(console: Console) -> None:
    url = made(console, "g")["ping_url"]
    script = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(9)); print('ready', flush=True); time.sleep(60)"
    command = [sys.executable, "-m", "everbeat", "check", "run", url, "--", sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 9
    assert console.json("check", "pings", "g")[0]["exit_status"] == 9


def test_a_process_that_the_command_leaves_behind_is_not_waited_for(console: Console) -> None:
    made(console, "h")
    script = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(20)']); print('done')"
    started = time.monotonic()
    assert run(console, "h", "--", sys.executable, "-c", script).stdout == "done\n"
    assert time.monotonic() - started < 18


def test_a_ping_is_repeated_only_if_that_can_help() -> None:
    delays: list[float] = []
    warnings: list[str] = []
    url = f"http://127.0.0.1:{free_port()}/ping/x"
    assert not PingSender(url, warn=warnings.append, sleep=delays.append).send("fail", tries=3)
    assert delays == [1.0, 2.0]
    assert "the ping fail was not stored" in warnings[0]
    assert not is_ping_url("backup")
    assert is_ping_url("https://x/ping/y")
