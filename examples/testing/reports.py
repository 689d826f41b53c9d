"""A small app: reports that are built on demand and every night, and reminders. test_reports.py contains its tests."""

from everbeat import Context, Everbeat, NonRetryable, Retry

eb = Everbeat(name="reports")

ACCOUNTS = {7: ["rent", "salary"], 8: []}
SENT: list[str] = []


@eb.task(queue="reports", max_attempts=3, retry=Retry(base_seconds=60, factor=5), timeout="10m")
async def build_report(ctx: Context, account: int) -> dict[str, int]:
    if account not in ACCOUNTS:
        raise NonRetryable(f"there is no account {account}")
    ctx.progress(0.5, "counting")
    return {"account": account, "lines": len(ACCOUNTS[account])}


@eb.cron("0 2 * * *", tz="America/New_York", queue="reports")
def nightly(ctx: Context) -> int:
    """Builds the report of every account."""
    return len(build_report.submit_many([{"account": account} for account in ACCOUNTS]))


@eb.task(retry=Retry(kind="fixed", base_seconds=30))
def remind(user: str, text: str) -> None:
    deliver(user, text)


def deliver(user: str, text: str) -> None:
    """A placeholder for sending an email."""
    SENT.append(f"{user}: {text}")
