from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.processes import ServerProcess, free_port, is_alive, wait_until, wait_until_async

PROGRAM = """
import http.server, subprocess, sys
print("child", subprocess.Popen(["sleep", "60"]).pid)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def web_server(folder: Path, port: int) -> ServerProcess:
    return ServerProcess(str(port), folder=folder, name="web", command=(sys.executable, "-c", PROGRAM))


def test_it_waits_until_ready_and_leaves_no_child_behind(tmp_path: Path) -> None:
    port = free_port()
    with web_server(tmp_path, port) as process:
        process.wait_ready(f"http://127.0.0.1:{port}/")
        child = int(process.logs().split()[1])
    assert not process.is_running()
    wait_until(lambda: not is_alive(child), message="the grandchild ended")


def test_a_stopped_process_responds_again_after_sigcont(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    with web_server(tmp_path, port) as process:
        process.wait_ready(url)
        process.sigstop()
        with pytest.raises(httpx.TimeoutException):
            httpx.get(url, timeout=0.3, trust_env=False)
        process.sigcont()
        process.wait_ready(url)


def test_it_can_be_killed_started_again_and_terminated(tmp_path: Path) -> None:
    port = free_port()
    with web_server(tmp_path, port) as process:
        process.wait_ready(f"http://127.0.0.1:{port}/")
        process.kill9()
        assert process.returncode == -signal.SIGKILL
        process.start()
        process.wait_ready(f"http://127.0.0.1:{port}/")
        assert process.terminate() == -signal.SIGTERM


def test_an_early_exit_is_reported_with_the_logs(tmp_path: Path) -> None:
    broken = (sys.executable, "-c", "print('no such setting'); raise SystemExit(3)")
    with (
        ServerProcess(folder=tmp_path, command=broken) as process,
        pytest.raises(AssertionError, match=r"ended with 3(.|\n)*no such setting"),
    ):
        process.wait_ready(f"http://127.0.0.1:{free_port()}/")


async def test_waiting_returns_the_value_or_fails_with_the_message() -> None:
    async def seven() -> int:
        return 7

    assert wait_until(lambda: 7) == 7
    assert await wait_until_async(seven) == 7
    assert await wait_until_async(os.getpid) == os.getpid()
    with pytest.raises(AssertionError, match=r"not within 0\.05 s: the impossible happens"):
        wait_until(lambda: False, 0.05, "the impossible happens")
    with pytest.raises(AssertionError, match="the impossible happens"):
        await wait_until_async(lambda: False, 0.05, lambda: "the impossible happens")
