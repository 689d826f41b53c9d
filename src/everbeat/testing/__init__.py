"""For your tests: an app run inline on a fake clock, by the real engine on a real store that lives as long as the test.

    def test_the_report_is_built_at_night():
        with Harness(eb, now="2026-03-01T00:00:00Z") as harness:
            harness.clock.move_to("2026-03-01T07:00:00Z")
            harness.run_due()
            assert [run.result for run in harness.completed] == [{"pages": 3}]

Time passes only when the test says so, and then as in production: what is due on the way happens in its own moment, in
order, ticks and delayed tasks and retries alike. Handlers run in the test's thread (and in its event loop, with the async
twins), so that a debugger, a transaction or a mock of the test is theirs too. Timeouts and leases are not played.
"""

from everbeat.testing.clock import FakeClock
from everbeat.testing.harness import Harness, TaskRun, TooManyRuns

__all__ = ["FakeClock", "Harness", "TaskRun", "TooManyRuns"]
