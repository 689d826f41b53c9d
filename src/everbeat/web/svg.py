"""Small charts drawn on the server as SVG: tick strips, sparklines and heat maps. Colors come from classes in the style sheet.

All text is escaped, and nothing uses a style attribute, so the Content-Security-Policy needs no exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

_CELL_WIDTH, _CELL_GAP, _STRIP_HEIGHT = 9, 2, 20
_HEAT_LEVELS = 5


class StripCell(NamedTuple):
    """One cell of a tick strip: the class of its outcome, its label, and the page it links to."""

    outcome: str
    label: str
    href: str


def tick_strip(cells: Sequence[StripCell], label: str) -> Markup:
    """A row of ticks. Each cell is a link with a text label, so that it can be used by keyboard and read aloud."""
    width = max(1, len(cells) * (_CELL_WIDTH + _CELL_GAP))
    parts = [
        Markup('<svg class="strip" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="group" aria-label="{2}">').format(
            width, _STRIP_HEIGHT, label
        )
    ]
    for index, cell in enumerate(cells):
        left = index * (_CELL_WIDTH + _CELL_GAP)
        parts.append(Markup('<a href="{}" aria-label="{}"><title>{}</title>').format(cell.href, cell.label, cell.label))
        parts.append(
            Markup('<rect class="tick tick-{}" x="{}" y="1" width="{}" height="{}" rx="2"/></a>').format(
                cell.outcome, left, _CELL_WIDTH, _STRIP_HEIGHT - 2
            )
        )
    return Markup("").join([*parts, Markup("</svg>")])


def sparkline(values: Sequence[float | None], classes: Sequence[str], label: str, *, height: int = 20) -> Markup:
    """Bars for the last values, such as durations. A missing value is a short bar."""
    highest = max((value for value in values if value is not None), default=0) or 1
    width = max(1, len(values) * 6)
    parts = [
        Markup('<svg class="sparkline" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" aria-label="{2}">').format(
            width, height, label
        )
    ]
    for index, (value, class_) in enumerate(zip(values, classes, strict=True)):
        size = 2 if value is None else max(2, round(value / highest * (height - 2)))
        parts.append(
            Markup('<rect class="bar bar-{}" x="{}" y="{}" width="4" height="{}" rx="1"/>').format(
                class_, index * 6, height - size, size
            )
        )
    return Markup("").join([*parts, Markup("</svg>")])


def heat_map(rows: Sequence[tuple[str, Sequence[int]]], titles: Sequence[Sequence[str]], label: str) -> Markup:
    """Counts as colored cells: one row per label, such as hours with a cell for each minute. Empty cells are one rectangle."""
    highest = max((value for _, values in rows for value in values), default=0)
    columns = max((len(values) for _, values in rows), default=0)
    cell, left, gap = 11, 44, 1
    width, height = left + columns * (cell + gap), len(rows) * (cell + gap)
    parts = [
        Markup('<svg class="heatmap" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}">').format(
            width, height, label
        )
    ]
    for y, (name, values) in enumerate(rows):
        top = y * (cell + gap)
        parts.append(Markup('<text class="heat-label" x="0" y="{}">{}</text>').format(top + cell - 2, escape(name)))
        empty = '<rect class="heat-0" x="{}" y="{}" width="{}" height="{}"/>'
        parts.append(Markup(empty).format(left, top, len(values) * (cell + gap) - gap, cell))
        for x, value in enumerate(values):
            if value <= 0:
                continue
            rect = '<rect class="heat-{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
            parts.append(Markup(rect).format(_level(value, highest), left + x * (cell + gap), top, cell, cell, titles[y][x]))
    return Markup("").join([*parts, Markup("</svg>")])


def _level(value: int, highest: int) -> int:
    if value <= 0 or highest <= 0:
        return 0
    return min(_HEAT_LEVELS, 1 + int((value / highest) ** 0.5 * (_HEAT_LEVELS - 1)))


class PartitionCell(NamedTuple):
    """One partition: the class of its owner, and its label."""

    class_: str
    label: str


def partition_map(cells: Sequence[PartitionCell], label: str) -> Markup:
    """Partitions as colored cells, 32 in a row."""
    columns, size, gap = 32, 16, 3
    rows = -(-len(cells) // columns)
    width, height = columns * (size + gap), rows * (size + gap)
    parts = [Markup('<svg class="partitions" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(width, height, label)]
    for index, cell in enumerate(cells):
        x, y = index % columns * (size + gap), index // columns * (size + gap)
        rect = '<rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="3"><title>{}</title></rect>'
        parts.append(Markup(rect).format(cell.class_, x, y, size, size, cell.label))
    return Markup("").join([*parts, Markup("</svg>")])


class GanttBar(NamedTuple):
    """One run: its row, where it begins and ends between 0 and 1, the class of its state, its label, and its link."""

    row: str
    begin: float
    end: float
    state: str
    label: str
    href: str


def gantt(bars: Sequence[GanttBar], marks: Sequence[tuple[float, str]], label: str) -> Markup:
    """Runs as bars in time, one row for each name. `marks`: labels of the time axis."""
    rows = list(dict.fromkeys(bar.row for bar in bars))
    left, width, height, head = 180, 1000, 22, 20
    span, total = width - left - 8, head + height * len(rows) + 4
    parts = [Markup('<svg class="gantt" viewBox="0 0 {} {}" role="group" aria-label="{}">').format(width, total, label)]
    for at, text in marks:
        x = round(left + at * span, 1)
        parts.append(Markup('<line class="gantt-grid" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>').format(x, head - 4, total))
        parts.append(Markup('<text class="heat-label" x="{}" y="11" text-anchor="middle">{}</text>').format(x, text))
    for index, name in enumerate(rows):
        shown = name if len(name) <= 26 else f"{name[:25]}…"
        baseline = head + index * height + 15
        parts.append(Markup('<text class="heat-label" x="0" y="{}">{}</text>').format(baseline, shown))
    for bar in bars:
        x, y = left + bar.begin * span, head + rows.index(bar.row) * height + 3
        size = max(3.0, (bar.end - bar.begin) * span)
        parts.append(Markup('<a href="{}" aria-label="{}"><title>{}</title>').format(bar.href, bar.label, bar.label))
        rect = '<rect class="gantt-bar run-{}" x="{}" y="{}" width="{}" height="16" rx="3"/></a>'
        parts.append(Markup(rect).format(bar.state, round(x, 1), y, round(size, 1)))
    return Markup("").join([*parts, Markup("</svg>")])


def share_bar(parts: Sequence[tuple[str, int]], label: str) -> Markup:
    """Shares of a whole as one bar with a legend, for example skipped ticks by reason."""
    total, left, width = sum(count for _, count in parts) or 1, 0.0, 600
    svg = [
        Markup('<svg class="shares" viewBox="0 0 {} 14" preserveAspectRatio="none" role="img" aria-label="{}">').format(
            width, label
        )
    ]
    legend = []
    for index, (name, count) in enumerate(parts):
        size = count / total * width
        rect = '<rect class="share-{}" x="{}" y="0" width="{}" height="14"><title>{}: {}</title></rect>'
        svg.append(Markup(rect).format(index % 8, round(left, 1), round(max(size - 1, 1), 1), name, count))
        square = '<svg width="10" height="10" aria-hidden="true"><rect class="share-{}" width="10" height="10" rx="2"/></svg>'
        legend.append(Markup(f"<span>{square} {{}} {{}}</span>").format(index % 8, f"{count:,}", name))
        left += size
    return Markup("").join([*svg, Markup('</svg><p class="legend">'), *legend, Markup("</p>")])
