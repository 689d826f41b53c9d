"""A test harness: runs an app inline on a fake clock, with the real engine and a temporary SQLite database.

    def test_the_report_is_built_at_night():
        with Harness(eb, now="2026-03-01T00:00:00Z") as harness:
            harness.clock.move_to("2026-03-01T07:00:00Z")
            harness.run_due()
            assert [run.result for run in harness.completed] == [{"pages": 3}]

Time passes only when the test advances the clock. Ticks, delayed tasks and retries that are due in the meantime are then
processed in order, each at its own time, as in production. Handlers run in the test's thread (and with the async methods, in
its event loop), so that debuggers, transactions and mocks of the test apply to them. Timeouts and leases are not simulated.
"""

from everbeat.testing.clock import FakeClock
from everbeat.testing.harness import Harness, TaskRun, TooManyRuns

__all__ = ["FakeClock", "Harness", "TaskRun", "TooManyRuns"]
