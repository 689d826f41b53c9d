"""The command that checks a server and its database, and says what to do about each problem."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import click

from everbeat.cli.connection import Session, session_options
from everbeat.cli.examples import examples
from everbeat.cli.exit_codes import ExitCode
from everbeat.cli.options import CONFIG, DATABASE_URL
from everbeat.cli.output import Column, Item
from everbeat.config import load_settings
from everbeat.core.errors import EverbeatError
from everbeat.core.targets import is_reserved_queue
from everbeat.server import make_store
from everbeat.store.migrate import SchemaVersion
from everbeat.store.values import DatabaseFinding

_MAX_SKEW_SECONDS = 2.0
_MAX_LAG_SECONDS = 5.0
_MAX_NAMED = 5
_COLUMNS = [Column("CHECK", "check"), Column("RESULT", "result"), Column("DETAIL", "detail"), Column("FIX", "fix")]


class ProblemsFound(EverbeatError):
    """The doctor found problems."""

    exit_code = int(ExitCode.PROBLEMS)


class Diagnosis(NamedTuple):
    """The result of one check: ok, warning or error; and what to do."""

    check: str
    result: str
    detail: str
    fix: str | None = None


@click.command(
    epilog=examples(
        "everbeat doctor", "everbeat doctor --database-url postgresql://user@host/everbeat", "everbeat doctor -o json"
    )
)
@DATABASE_URL
@CONFIG
@session_options
def doctor(session: Session, database_url: str | None, config: Path | None) -> None:
    """Check the configuration, the server and the database, and say what to do. The exit code is 7 if there are problems.

    The database is checked if --database-url or --config is given.
    """
    checks = list(_guarded("server", lambda: _server_checks(session)))
    if database_url is not None or config is not None:
        checks += _guarded("database", lambda: iter(_database_checks(database_url, config)))
    items: list[Item] = [check._asdict() for check in checks]
    session.printer.items(items, _COLUMNS, empty="")
    if problems := [check for check in checks if check.result == "error"]:
        raise ProblemsFound(f"problems found: {', '.join(check.check for check in problems)}")


def _guarded(name: str, checks: Callable[[], Iterator[Diagnosis]]) -> Iterator[Diagnosis]:
    try:
        yield from checks()
    except EverbeatError as error:
        yield Diagnosis(name, "error", str(error), "see the message")


# The server


def _server_checks(session: Session) -> Iterator[Diagnosis]:
    sent = time.time()
    cluster = session.get("/v1/cluster")
    yield Diagnosis("server", "ok", f"{session.app.url} answers")
    yield _clock(datetime.fromisoformat(cluster["now"]), sent, time.time())
    yield _ownership(cluster)
    yield _lag(cluster)
    yield _versions(cluster)
    yield _faults(cluster)
    yield from _capacity(cluster)
    yield from _pauses(session)
    yield from _queues(session)
    yield _audit(session)


def _clock(server: datetime, sent: float, received: float) -> Diagnosis:
    """Compare the clock of this machine with that of the database; the request explains a part of the difference."""
    now = server.timestamp()
    skew = max(sent - now, now - received, 0.0)
    if skew > _MAX_SKEW_SECONDS:
        fix = "synchronize the clocks with NTP; Everbeat itself uses the clock of the database"
        return Diagnosis("clock", "warning", f"this machine and the database differ by {skew:.1f} s", fix)
    return Diagnosis("clock", "ok", "this machine and the database agree")


def _ownership(cluster: dict[str, Any]) -> Diagnosis:
    schedulers = [one for one in cluster["nodes"] if one["is_alive"] and "scheduler" in one["roles"]]
    if not schedulers:
        return Diagnosis(
            "ownership", "error", "no live node has the role scheduler, so nothing fires", "start one: everbeat serve"
        )
    if cluster["unowned"]:
        fix = "wait for the length of a lease; if it stays so, look at the logs of the nodes"
        return Diagnosis(
            "ownership", "error", f"{cluster['unowned']} of {len(cluster['partitions'])} partitions have no owner", fix
        )
    return Diagnosis(
        "ownership", "ok", f"all {len(cluster['partitions'])} partitions have an owner; live schedulers: {len(schedulers)}"
    )


def _lag(cluster: dict[str, Any]) -> Diagnosis:
    lag = cluster["lag_seconds"] or 0.0
    if lag > _MAX_LAG_SECONDS:
        return Diagnosis("lag", "error", f"the slowest node fires {lag:.1f} s late", "add a node, or a faster database")
    return Diagnosis("lag", "ok", f"{lag:.3f} s")


def _versions(cluster: dict[str, Any]) -> Diagnosis:
    versions = sorted({one["version"] for one in cluster["nodes"] if one["is_alive"]})
    if len(versions) > 1:
        return Diagnosis("versions", "warning", f"the nodes run {', '.join(versions)}", "complete the upgrade")
    return Diagnosis("versions", "ok", ", ".join(versions) or "no nodes")


def _faults(cluster: dict[str, Any]) -> Diagnosis:
    if cluster["faulty"]:
        fix = "see everbeat audit for the faults; edit the schedules and resume them"
        return Diagnosis("faulty schedules", "error", f"{cluster['faulty']} schedules cannot be computed or fired", fix)
    return Diagnosis("faulty schedules", "ok", "none")


def _capacity(cluster: dict[str, Any]) -> Iterator[Diagnosis]:
    """Show the busiest second ahead, the share of each node, bloat and slow calls, and what the server advises."""
    capacity = cluster["capacity"]
    advice = {one["about"]: one for one in reversed(capacity["advice"])}
    busiest = capacity["busiest_second"]
    if busiest is None:
        shown = "no ticks in the next 24 hours, or not computed yet"
    else:
        shown = f"{busiest['at'][:19]}Z, ticks: {busiest['ticks']} ({', '.join(busiest['schedules'])})"
    shares = ", ".join(f"{one['name']} {one['share']:.0%}" for one in cluster["nodes"] if one["is_alive"])
    largest = ", ".join(f"{one['table']} {one['bytes'] / 2**20:.0f} MB" for one in capacity["tables"][:3])
    size = "shown to admins" if capacity["database_bytes"] is None else f"{capacity['database_bytes'] / 2**20:.0f} MB in all"
    slowest = ", ".join(f"{one['verb']} {one['mean_ms']:.1f} ms" for one in capacity["slow_calls"][:3])
    for name, detail in (
        ("busiest second", shown),
        ("nodes", shares or "none"),
        ("bloat", f"{size}; largest tables: {largest}" if largest else size),
        ("slow queries", f"slowest on average: {slowest}" if slowest else "none"),
    ):
        if name not in advice:
            yield Diagnosis(name, "ok", detail)
    for one in capacity["advice"]:
        yield Diagnosis(one["about"], "warning", one["detail"], one["fix"])


def _pauses(session: Session) -> Iterator[Diagnosis]:
    for pause in session.get("/v1/pauses")["items"]:
        what = f"the queue {pause['queue']}" if pause["queue"] else f"everything ({pause['scope']})"
        fix = f"everbeat queue resume {pause['queue']}" if pause["queue"] else "everbeat resume"
        yield Diagnosis("pauses", "warning", f"{what} is paused by {pause['by']} since {pause['since']}", fix)


def _queues(session: Session) -> Iterator[Diagnosis]:
    queues = {one["queue"]: one for one in session.list("/v1/queues", None)}
    of_queue: dict[str, list[str]] = {}
    for schedule in session.list("/v1/schedules", None, status="active", target="worker"):
        of_queue.setdefault(schedule["target"]["queue"], []).append(schedule["name"])
    waiting = {queue for queue, one in queues.items() if one["ready"]}
    unserved = sorted(
        queue for queue in {*of_queue, *waiting} if not queues.get(queue, {}).get("workers") and not is_reserved_queue(queue)
    )
    for queue in unserved:
        names = of_queue.get(queue, [])
        shown = ", ".join(names[:_MAX_NAMED]) + (f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else "")
        ready = queues.get(queue, {}).get("ready", 0)
        detail = f"no worker asks for the queue {queue}" + (f" of {shown}" if names else "") + f"; {ready} tasks wait"
        yield Diagnosis("workers", "error", detail, f"start one: everbeat worker MODULE:APP --queues {queue}")
    if not unserved:
        yield Diagnosis("workers", "ok", "every queue with schedules or ready tasks has a worker")


def _audit(session: Session) -> Diagnosis:
    found = session.get("/v1/audit", limit=1)
    if found["missing"] or found["doubled"]:
        detail = f"{found['missing']} ticks are missing and {found['doubled']} doubled in the last 24 hours"
        return Diagnosis("audit", "error", detail, "see everbeat audit, and everbeat schedule backfill")
    return Diagnosis("audit", "ok", f"all {found['expected']} ticks of the last 24 hours are accounted for")


# The database


def _database_checks(database_url: str | None, config: Path | None) -> list[Diagnosis]:
    settings = load_settings({"database_url": database_url}, file=config)
    checks = [Diagnosis("configuration", "ok", "the settings are valid")]

    async def run() -> tuple[SchemaVersion, list[DatabaseFinding]]:
        store = make_store(settings)
        try:
            schema = await store.schema_version()
            return schema, await store.database_findings() if schema.version else []
        finally:
            await store.close()

    started = datetime.now(UTC)
    schema, findings = asyncio.run(run())
    checks.append(Diagnosis("database", "ok", f"it answers after {(datetime.now(UTC) - started).total_seconds():.2f} s"))
    checks.append(_migrations(schema))
    return (
        [*checks, *(_finding(one) for one in findings)]
        if findings
        else [*checks, Diagnosis("indexes and bloat", "ok", "nothing found")]
    )


def _migrations(schema: SchemaVersion) -> Diagnosis:
    version, needed = schema.version, schema.needed
    if schema.is_older:
        return Diagnosis("migrations", "error", f"the database is at {version} of {needed}", "everbeat migrate")
    if schema.is_newer:
        return Diagnosis(
            "migrations", "error", f"the database is at {version}, this version knows {needed}", "use a newer version"
        )
    if version > needed:
        detail = f"the database is at {version}, which is compatible with this version, which knows {needed}"
        return Diagnosis("migrations", "warning", detail, "use a newer version")
    return Diagnosis("migrations", "ok", f"the database is at {version}")


def _finding(found: DatabaseFinding) -> Diagnosis:
    match found.kind:
        case "invalid_index":
            return Diagnosis(
                "indexes", "error", f"the index {found.name} is invalid", f"REINDEX INDEX CONCURRENTLY {found.name}"
            )
        case "dead_rows":
            detail = f"{found.ratio:.0%} of the rows of {found.name} are dead"
            return Diagnosis("bloat", "warning", detail, f"VACUUM {found.name}; look for long transactions; see autovacuum")
        case _:
            return Diagnosis(
                "bloat", "warning", f"{found.ratio:.0%} of the database file is free", "VACUUM, while no node runs"
            )
