"""Prints the results of benchmarks as one table per store, and saves them as JSON in bench-results/."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import everbeat

FOLDER = Path("bench-results")
_HEADERS = ("what", "target", "Everbeat", "raw", "ratio", "")


class ResultRow(NamedTuple):
    """One row of a table. `is_met` is None if there is no target."""

    store: str
    what: str
    target: str
    figure: float
    unit: str
    raw: float | None = None
    is_met: bool | None = None
    detail: str = ""

    @property
    def ratio(self) -> float | None:
        return self.figure / self.raw if self.raw else None

    @property
    def verdict(self) -> str:
        return {True: "ok", False: "MISSED", None: ""}[self.is_met]

    def cells(self) -> tuple[str, ...]:
        return (
            self.what,
            self.target,
            f"{_number(self.figure)} {self.unit}".strip(),
            "" if self.raw is None else f"{_number(self.raw)} {self.unit}".strip(),
            "" if self.ratio is None else f"{self.ratio:.2f}",
            self.verdict,
        )


def at_least(
    store: str, what: str, figure: float, unit: str, target: float, raw: float | None = None, detail: str = ""
) -> ResultRow:
    return ResultRow(store, what, f">= {_number(target)} {unit}", figure, unit, raw, figure >= target, detail)


def at_most(
    store: str, what: str, figure: float, unit: str, target: float, raw: float | None = None, detail: str = ""
) -> ResultRow:
    return ResultRow(store, what, f"<= {_number(target)} {unit}", figure, unit, raw, figure <= target, detail)


def against_raw(store: str, what: str, figure: float, unit: str, share: float, raw: float, detail: str = "") -> ResultRow:
    return ResultRow(store, what, f">= {share:g} x raw", figure, unit, raw, figure >= share * raw, detail)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def rounds(values: Sequence[float]) -> str:
    return "rounds " + " ".join(_number(value) for value in values)


def print_tables(lines: Sequence[ResultRow]) -> None:
    for store in dict.fromkeys(line.store for line in lines):
        rows = [_HEADERS, *(line.cells() for line in lines if line.store == store)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADERS))]
        print(f"\n{store}")
        for number, row in enumerate(rows):
            print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
            if number == 0:
                print("  " + "  ".join("-" * width for width in widths))
        for line in lines:
            if line.store == store and line.detail:
                print(f"  * {line.what}: {line.detail}")


def save(lines: Sequence[ResultRow], *, quick: bool, names: Sequence[str]) -> Path:
    FOLDER.mkdir(exist_ok=True)
    at = datetime.now(UTC)
    path = FOLDER / f"{at:%Y%m%dT%H%M%SZ}-{'-'.join(names)}{'-quick' if quick else ''}.json"
    found: dict[str, Any] = {
        "at": at.isoformat(),
        "quick": quick,
        "source": source_digest(),
        "machine": {"python": platform.python_version(), "system": platform.platform(), "cores": _cores()},
        "lines": [{**line._asdict(), "ratio": line.ratio, "verdict": line.verdict} for line in lines],
    }
    path.write_text(json.dumps(found, indent=2) + "\n")
    return path


def source_digest() -> str:
    """Return a digest of the measured code: runs with the same digest ran the same code."""
    digest = hashlib.sha256()
    for path in sorted(path for path in Path(everbeat.__path__[0]).rglob("*") if path.suffix in (".py", ".sql")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def print_progress(text: str) -> None:
    """Print progress during long rounds."""
    print(f"  {time.strftime('%H:%M:%S')} {text}", flush=True)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
