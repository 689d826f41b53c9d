"""Draws the costs of the scale run as an SVG file, without another library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360, 250, 52, 16, 40, 44
_COLORS = ("#2563eb", "#d97706", "#059669")
_STYLE = "font-family:system-ui,sans-serif;font-size:11px;fill:#6b7280"


class Series(NamedTuple):
    name: str
    values: Sequence[float]


class Panel(NamedTuple):
    """A chart over the number of schedules, whose axis is logarithmic."""

    title: str
    schedules: Sequence[int]
    series: Sequence[Series]


def draw(panels: Sequence[Panel], label: str) -> str:
    """Return an SVG document with the panels side by side."""
    width = _WIDTH * len(panels)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" width="{width}" height="{_HEIGHT}" '
    parts = [f'{head}role="img" aria-label="{escape(label)}" style="{_STYLE}">']
    parts.append(f'<rect width="{width}" height="{_HEIGHT}" fill="#ffffff"/>')
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate({number * _WIDTH} 0)">{"".join(_panel(panel))}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel) -> list[str]:
    top = _nice(max(value for series in panel.series for value in series.values))
    first, last = math.log10(min(panel.schedules)), math.log10(max(panel.schedules))
    span = (last - first) or 1.0

    def x(schedules: int) -> float:
        return round(_LEFT + (math.log10(schedules) - first) / span * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(value: float) -> float:
        return round(_HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM), 1)

    parts = [f'<text x="{_LEFT}" y="16" style="font-weight:600;fill:#111827">{escape(panel.title)}</text>']
    for step in range(5):
        value = top * step / 4
        parts.append(f'<path d="M{_LEFT} {y(value)}H{_WIDTH - _RIGHT}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{value:.3g}</text>')
    below = _HEIGHT - _BOTTOM + 16
    parts += [f'<text x="{x(count)}" y="{below}" text-anchor="middle">{_short(count)}</text>' for count in panel.schedules]
    parts.append(f'<text x="{(_WIDTH + _LEFT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">registered schedules</text>')
    for number, series in enumerate(panel.series):
        points = [(x(count), y(value)) for count, value in zip(panel.schedules, series.values, strict=True)]
        color = _COLORS[number % len(_COLORS)]
        line = " ".join(f"{left},{height}" for left, height in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{left}" cy="{height}" r="3" fill="{color}"/>' for left, height in points]
        left = _LEFT + number * 100
        parts.append(f'<rect x="{left}" y="24" width="10" height="3" fill="{color}"/>')
        parts.append(f'<text x="{left + 14}" y="30">{escape(series.name)}</text>')
    return parts


def _nice(value: float) -> float:
    """Return the next round number above a value, for the end of an axis."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value * 1.05)


def _short(count: int) -> str:
    return f"{count / 1_000_000:g} M" if count >= 1_000_000 else f"{count / 1000:g} k"
