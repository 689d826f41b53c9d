"""The command that removes data past its retention now, or shows what would be removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from everbeat.cli.examples import examples
from everbeat.cli.options import CONFIG, DATABASE_URL
from everbeat.cli.output import Column, Printer, output_option
from everbeat.cli.store_access import run_on_store
from everbeat.config import load_settings
from everbeat.core.errors import ArchiveUnavailable
from everbeat.services.archive_files import ArchiveFiles
from everbeat.services.events import ArchiveFailed, Event, MonthArchived, Pruned
from everbeat.services.maintenance.archiver import Archive
from everbeat.services.maintenance.retention import Removable, Retention
from everbeat.store.base import Store

_COLUMNS = [
    Column("TABLE", "table"),
    Column("MONTH", "month"),
    Column("ROWS", "rows"),
    Column("SIZE", lambda item: _size(item["bytes"])),
    Column("WHY", "reason"),
]


@click.command(epilog=examples("everbeat prune --dry-run", "everbeat prune --database-url postgresql://user@host/everbeat"))
@output_option
@DATABASE_URL
@CONFIG
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would be removed.")
def prune(printer: Printer, database_url: str | None, config: Path | None, dry_run: bool) -> None:
    """Remove what is past its retention now, or show what would be removed.

    Nodes do this by themselves every ten minutes, in the same small steps. The command can run beside them.
    """
    settings = load_settings({"database_url": database_url}, file=config)
    progress = _Progress(printer)

    async def work(store: Store) -> list[Removable]:
        maintenance, periods = store.pool("maintenance"), settings.retention_periods
        archives = settings.archive_url is not None
        retention = Retention(maintenance, periods, drops_months=not archives, emit=progress.on_event)
        if dry_run:
            return await retention.removable()
        if settings.archive_url is not None:
            files = ArchiveFiles(settings.archive_url, endpoint=settings.archive_endpoint)
            archive = Archive(maintenance, files, periods, emit=progress.on_event, pause_ratio=0.0)
            while await archive.run():
                pass
        while await retention.step():
            pass
        return []

    found = run_on_store(database_url, config, work)
    if dry_run:
        printer.items([one._asdict() for one in found], _COLUMNS, empty="nothing is past its retention")
    else:
        progress.print_total()


class _Progress:
    """Counts what was removed. Each step is printed, so that a long run shows that it works."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._removed: dict[str, int] = {}

    def on_event(self, event: Event) -> None:
        if isinstance(event, ArchiveFailed):
            raise ArchiveUnavailable(f"{event.month} of {event.table} was not archived, and nothing was removed: {event.error}")
        if isinstance(event, MonthArchived):
            self._printer.note(f"archived {event.month} of {event.table}: {event.rows:,} rows, {_size(event.bytes)}")
            self._removed[event.table] = self._removed.get(event.table, 0) + event.rows
        if isinstance(event, Pruned):
            self._removed[event.what] = self._removed.get(event.what, 0) + event.count
            self._printer.note(f"removed {event.what}: {self._removed[event.what]:,}")

    def print_total(self) -> None:
        items: list[dict[str, Any]] = [{"what": what, "removed": count} for what, count in self._removed.items()]
        columns = [Column("WHAT", "what"), Column("REMOVED", "removed")]
        self._printer.items(items, columns, empty="nothing is past its retention")


def _size(number: int | None) -> str:
    """Return a number of bytes with a unit."""
    if number is None:
        return "-"
    size, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
