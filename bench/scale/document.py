"""Writes the figures of a scale run into the documentation: a plot, and tables in the page of benchmarks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bench.scale.measure import Figures
from bench.scale.plot import Panel, Series, draw

PLOT = Path("docs/images/scale.svg")
PAGE = Path("docs/reference/benchmarks.md")
_BEGIN, _END = "<!-- scale: begin -->", "<!-- scale: end -->"


def write_documents(found: Figures) -> None:
    """Replace the plot, and the part of the page between its two marks."""
    PLOT.write_text(plot(found))
    page = PAGE.read_text()
    part = f"{_BEGIN}\n\n{markdown(found)}\n{_END}"
    PAGE.write_text(re.sub(f"{re.escape(_BEGIN)}.*{re.escape(_END)}", lambda _: part, page, flags=re.DOTALL))


def plot(found: Figures) -> str:
    """Draw the cost and the lag of a tick over the number of schedules."""
    rows = found["growth"]
    sizes = [row["schedules"] for row in rows]
    cost = [
        Series("PostgreSQL", [row["postgres_cpu_s_per_1000"] for row in rows]),
        Series("node", [row["node_cpu_s_per_1000"] for row in rows]),
    ]
    lag = [Series("p50", [row["p50_ms"] for row in rows]), Series("p99", [row["p99_ms"] for row in rows])]
    panels = [Panel("CPU seconds per 1,000 ticks", sizes, cost), Panel("fire lag, ms", sizes, lag)]
    return draw(panels, "Cost and lag of a tick, by the number of registered schedules")


def markdown(found: Figures) -> str:
    """Return the tables of a run, in Markdown."""
    cores, load = found["machine"]["cores"], found["machine"]["load"][0]
    parts = [
        f"Measured with {cores} cores for PostgreSQL, the node and the worker together, while the load average was {load:.1f}.",
        _growth(found["growth"]),
    ]
    if "long" in found:
        parts.append(_long(found["long"]))
    if found["bars"]:
        rows = [(bar["what"], f"≤ {bar['at_most']:g} {bar['unit']}", f"{_cell(bar)} {bar['unit']}") for bar in found["bars"]]
        parts.append(_table(("bar", "at most", "measured"), rows))
    if "rates" in found:
        rates = [
            (f"{row['per_minute']:,}", f"{row['ticks']:,}", f"{row['p50_ms']:g} ms", f"{row['p99_ms']:g} ms")
            for row in found["rates"]
        ]
        parts.append(_table(("ticks a minute", "fired in a minute", "lag p50", "lag p99"), rates))
    return "\n\n".join(parts) + "\n"


def _cell(bar: Figures) -> str:
    figure = f"{bar['figure']:g}"
    return figure if bar["met"] else f"**{figure}**"


def _growth(rows: Sequence[Figures]) -> str:
    head = (
        "schedules",
        "lag p50",
        "lag p99",
        "claim p99",
        "CPU of the node",
        "CPU of PostgreSQL",
        "memory of the node",
        "database",
    )
    return _table(
        head,
        [
            (
                f"{row['schedules']:,}",
                f"{row['p50_ms']:g} ms",
                f"{row['p99_ms']:g} ms",
                f"{row['claim_p99_ms']} ms",
                f"{row['node_cpu_s_per_1000']:.2f} s",
                f"{row['postgres_cpu_s_per_1000']:.2f} s",
                f"{row['node_rss_mb']:.0f} MB",
                f"{row['database_mb']:,} MB",
            )
            for row in rows
        ],
    )


def _long(found: Figures) -> str:
    outside, burst = found["outside_the_burst"], found["burst"]
    worked_off = (
        "" if found["worked_off_seconds"] is None else f"; the last task was done after {found['worked_off_seconds']:g} s"
    )
    rows = [
        ("schedules", f"{found['schedules']:,}"),
        ("ticks outside the burst", f"{outside['ticks']:,}"),
        ("their lag: p50, p99, worst", f"{outside['p50_ms']:g}, {outside['p99_ms']:g}, {outside['worst_ms']:g} ms"),
        ("burst", f"{burst['ticks']:,} ticks, fired within {burst['fired_within_seconds']:g} s{worked_off}"),
        ("claims: p50, p99", f"{found['claim_p50_ms']}, {found['claim_p99_ms']} ms"),
        ("memory of the node", f"{found['node_rss_mb']:g} MB"),
        ("CPU for 1,000 ticks: node, PostgreSQL", f"{found['node_cpu_s_per_1000']}, {found['postgres_cpu_s_per_1000']} s"),
        ("size and growth of the database", f"{found['database_mb']:,} MB, {found['growth_bytes_per_tick']:,} bytes a tick"),
        ("WAL", f"{found['wal_bytes_per_tick']:,} bytes a tick"),
    ]
    return _table((f"{found['minutes']:g} minutes", ""), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
