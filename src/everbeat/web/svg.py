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
    size = f'width="{width}" height="{_STRIP_HEIGHT}" viewBox="0 0 {width} {_STRIP_HEIGHT}"'
    parts = [f'<svg class="strip" {size} role="group" aria-label="{escape(label)}">']
    for index, cell in enumerate(cells):
        left, text = index * (_CELL_WIDTH + _CELL_GAP), escape(cell.label)
        parts.append(
            f'<a href="{escape(cell.href)}" aria-label="{text}"><title>{text}</title><rect class="tick tick-{cell.outcome}" '
            f'x="{left}" y="1" width="{_CELL_WIDTH}" height="{_STRIP_HEIGHT - 2}" rx="2"/></a>'
        )
    return Markup("".join([*parts, "</svg>"]))


def sparkline(values: Sequence[float | None], classes: Sequence[str], label: str, *, height: int = 20) -> Markup:
    """Bars for the last values, such as durations. A missing value is a short bar."""
    highest = max((value for value in values if value is not None), default=0) or 1
    width = max(1, len(values) * 6)
    box = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    parts = [f'<svg class="sparkline" {box} role="img" aria-label="{escape(label)}">']
    for index, (value, class_) in enumerate(zip(values, classes, strict=True)):
        size = 2 if value is None else max(2, round(value / highest * (height - 2)))
        parts.append(f'<rect class="bar bar-{class_}" x="{index * 6}" y="{height - size}" width="4" height="{size}" rx="1"/>')
    return Markup("".join([*parts, "</svg>"]))


def heat_map(rows: Sequence[tuple[str, Sequence[int]]], titles: Sequence[Sequence[str]], label: str) -> Markup:
    """Counts as colored cells: one row per label, such as hours with a cell for each minute. Empty cells are one rectangle."""
    highest = max((value for _, values in rows for value in values), default=0)
    columns = max((len(values) for _, values in rows), default=0)
    cell, left, gap = 11, 44, 1
    width, height = left + columns * (cell + gap), len(rows) * (cell + gap)
    box = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [f'<svg class="heatmap" {box} role="img" aria-label="{escape(label)}">']
    for y, (name, values) in enumerate(rows):
        top = y * (cell + gap)
        parts.append(f'<text class="heat-label" x="0" y="{top + cell - 2}">{escape(name)}</text>')
        parts.append(f'<rect class="heat-0" x="{left}" y="{top}" width="{len(values) * (cell + gap) - gap}" height="{cell}"/>')
        for x, value in enumerate(values):
            if value <= 0:
                continue
            box = f'x="{left + x * (cell + gap)}" y="{top}" width="{cell}" height="{cell}"'
            title = escape(titles[y][x])
            parts.append(f'<rect class="heat-{_level(value, highest)}" {box}><title>{title}</title></rect>')
    return Markup("".join([*parts, "</svg>"]))


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
    parts = [f'<svg class="partitions" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">']
    for index, cell in enumerate(cells):
        x, y = index % columns * (size + gap), index // columns * (size + gap)
        box = f'x="{x}" y="{y}" width="{size}" height="{size}"'
        parts.append(f'<rect class="{cell.class_}" {box} rx="3"><title>{escape(cell.label)}</title></rect>')
    return Markup("".join([*parts, "</svg>"]))


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
    rows = {name: index for index, name in enumerate(dict.fromkeys(bar.row for bar in bars))}
    left, width, height, head = 180, 1000, 22, 20
    span, total = width - left - 8, head + height * len(rows) + 4
    parts = [f'<svg class="gantt" viewBox="0 0 {width} {total}" role="group" aria-label="{escape(label)}">']
    for at, text in marks:
        x = round(left + at * span, 1)
        parts.append(f'<line class="gantt-grid" x1="{x}" x2="{x}" y1="{head - 4}" y2="{total}"/>')
        parts.append(f'<text class="heat-label" x="{x}" y="11" text-anchor="middle">{escape(text)}</text>')
    for name, index in rows.items():
        shown = name if len(name) <= 26 else f"{name[:25]}…"
        parts.append(f'<text class="heat-label" x="0" y="{head + index * height + 15}">{escape(shown)}</text>')
    for bar in bars:
        x, y = round(left + bar.begin * span, 1), head + rows[bar.row] * height + 3
        size, text = round(max(3.0, (bar.end - bar.begin) * span), 1), escape(bar.label)
        parts.append(
            f'<a href="{escape(bar.href)}" aria-label="{text}"><title>{text}</title>'
            f'<rect class="gantt-bar run-{bar.state}" x="{x}" y="{y}" width="{size}" height="16" rx="3"/></a>'
        )
    return Markup("".join([*parts, "</svg>"]))


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
