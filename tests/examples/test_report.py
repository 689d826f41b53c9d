"""examples/report: progress and log lines arrive while the task runs, and a long task can be cancelled."""

from __future__ import annotations

import re

from tests.examples.conftest import ExampleRun


def test_the_caller_sees_progress_the_result_the_log_and_a_cancel(example: ExampleRun) -> None:
    dev = example.dev("report", "report:eb")
    output = example.script("report", "report.py", "7")
    assert re.search(r"^ +\d+%  page \d+ of 20$", output, re.MULTILINE)
    assert "done: {'account': 7, 'rows': 2000}" in output
    assert "account 7: 1500 rows so far" in output
    assert re.search(r"cancelled at page \d+ of 10000", output)
    assert dev.terminate() == 0
    assert "Traceback" not in dev.logs()
