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
    """Counts as colored cells: one row per label, for example hours with a cell for each five minutes."""
    highest = max((value for _, values in rows for value in values), default=0)
    columns = max((len(values) for _, values in rows), default=0)
    cell, left, gap = 14, 44, 2
    width, height = left + columns * (cell + gap), len(rows) * (cell + gap)
    parts = [
        Markup('<svg class="heatmap" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}">').format(
            width, height, label
        )
    ]
    for y, (name, values) in enumerate(rows):
        top = y * (cell + gap)
        parts.append(Markup('<text class="heat-label" x="0" y="{}">{}</text>').format(top + cell - 3, escape(name)))
        for x, value in enumerate(values):
            parts.append(
                Markup(
                    '<rect class="heat heat-{}" x="{}" y="{}" width="{}" height="{}" rx="2"><title>{}</title></rect>'
                ).format(_level(value, highest), left + x * (cell + gap), top, cell, cell, titles[y][x])
            )
    return Markup("").join([*parts, Markup("</svg>")])


def _level(value: int, highest: int) -> int:
    if value <= 0 or highest <= 0:
        return 0
    return min(_HEAT_LEVELS, 1 + int((value / highest) ** 0.5 * (_HEAT_LEVELS - 1)))
