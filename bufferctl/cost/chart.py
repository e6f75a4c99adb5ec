"""Draw cost against volume as an SVG picture with two logarithmic axes."""

from html import escape
from math import log10
from typing import NamedTuple

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 40, 60
LINE_HEIGHT = 17
# Readers who cannot distinguish red and green can distinguish these colours (Okabe and Ito).
COLOURS = ["#0072b2", "#d55e00", "#007a5a", "#b0578d", "#5b5b5b"]
DASHES = ["none", "8 4", "2 3", "10 3 2 3", "1 4"]
INK, GRID = "#24292f", "#d8dee4"


class Series(NamedTuple):
    name: str
    points: list[tuple[float, float]]
    """The points of a line, as (messages a day, dollars a month)."""


def svg(series: list[Series]) -> str:
    """Return the picture. Its background is white, so that it looks the same on a dark page."""
    x_from, x_to = _decades([x for one in series for x, _ in one.points])
    y_from, y_to = _decades([y for one in series for _, y in one.points])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (log10(x) - x_from) / (x_to - x_from) * (WIDTH - LEFT - RIGHT)
        up = (log10(y) - y_from) / (y_to - y_from) * (HEIGHT - TOP - BOTTOM)
        return LEFT + across, HEIGHT - BOTTOM - up

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"',
        f'font-family="sans-serif" font-size="13" fill="{INK}">',
        "<title>Dollars a month against messages a day</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
    ]
    for decade in range(x_from, x_to + 1):
        x, bottom = place(10.0**decade, 10.0**y_from)
        parts.append(f'<path d="M{x:.1f} {TOP}V{bottom:.1f}" stroke="{GRID}"/>')
        parts.append(_text(x, bottom + 20, f"{10**decade:,}", anchor="middle"))
    for decade in range(y_from, y_to + 1):
        left, y = place(10.0**x_from, 10.0**decade)
        parts.append(f'<path d="M{left:.1f} {y:.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        parts.append(_text(left - 8, y + 4, f"${10**decade:,}", anchor="end"))
    labels = _apart([place(*one.points[-1])[1] for one in series])
    for one, colour, dash, label in zip(series, COLOURS, DASHES, labels, strict=False):
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in (place(*point) for point in one.points))
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dash}"/>')
        parts.append(_text(WIDTH - RIGHT + 8, label + 4, one.name, colour=colour))
    parts.append(_text(LEFT, 22, "Dollars a month"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "Messages a day", anchor="middle"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _decades(values: list[float]) -> tuple[int, int]:
    """Return the powers of ten between which all values lie."""
    return int(log10(min(values)) // 1), -int(-log10(max(values)) // 1)


def _apart(heights: list[float]) -> list[float]:
    """Return a height for each label: near the end of its line, but without overlaps."""
    placed: dict[int, float] = {}
    lowest: float = HEIGHT - BOTTOM
    for index in sorted(range(len(heights)), key=lambda index: -heights[index]):
        placed[index] = min(heights[index], lowest)
        lowest = placed[index] - LINE_HEIGHT
    return [placed[index] for index in range(len(heights))]


def _text(x: float, y: float, words: str, *, anchor: str = "start", colour: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'
