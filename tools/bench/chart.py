"""Draws bar charts. A bar shows the median of the rounds, and the line on it shows their interquartile range."""

from html import escape
from math import log10
from typing import NamedTuple

from tools.bench.measure import Figure

WIDTH, LEFT, RIGHT = 760, 230, 110
HEAD, LINE, BAR, FOOT = 44, 26, 16, 18
INK, GRID = "#24292f", "#d8dee4"
OURS, OTHERS = "#0072b2", "#8a8f98"


class Bar(NamedTuple):
    name: str
    found: Figure


class Panel(NamedTuple):
    title: str
    bars: list[Bar]
    is_log: bool


def svg(panels: list[Panel]) -> str:
    """Return a picture of the panels, one under the other. A figure that is too noisy has a label but no bar."""
    heights = [HEAD + LINE * len(panel.bars) + FOOT for panel in panels]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {sum(heights)}" role="img"',
        f'font-family="sans-serif" font-size="13" fill="{INK}">',
        f"<title>{escape('; '.join(panel.title for panel in panels))}</title>",
        f'<rect width="{WIDTH}" height="{sum(heights)}" rx="8" fill="#ffffff"/>',
    ]
    top = 0
    for panel, height in zip(panels, heights, strict=True):
        parts += _panel(panel, top)
        top += height
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, top: int) -> list[str]:
    scale = _Scale(panel)
    parts = [f'<text x="18" y="{top + 26}" font-weight="bold">{escape(panel.title)}</text>']
    for mark in scale.marks():
        x, bottom = scale.at(mark), top + HEAD + LINE * len(panel.bars)
        parts.append(f'<path d="M{x:.1f} {top + HEAD - 6}V{bottom}" stroke="{GRID}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle" font-size="11">{mark:g}</text>')
    for row, (name, found) in enumerate(panel.bars):
        y = top + HEAD + LINE * row
        colour = OURS if name.startswith("ours") else OTHERS
        parts.append(f'<text x="{LEFT - 10}" y="{y + 13}" text-anchor="end">{escape(name)}</text>')
        if not found.too_noisy:
            width = scale.at(found.median) - LEFT
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>')
        low, high = scale.at(found.low), scale.at(found.high)
        parts.append(f'<path d="M{low:.1f} {y + BAR / 2}H{high:.1f}" stroke="{INK}" stroke-width="2"/>')
        said = f"noisy, {found.low:.3g} to {found.high:.3g}" if found.too_noisy else f"{found.median:.3g}"
        parts.append(f'<text x="{high + 6:.1f}" y="{y + 13}">{said}</text>')
    return parts


class _Scale:
    def __init__(self, panel: Panel) -> None:
        self._is_log = panel.is_log
        highest = max(bar.found.high for bar in panel.bars)
        lowest = min(bar.found.low for bar in panel.bars)
        self._from, self._to = (log10(lowest) // 1, -(-log10(highest) // 1)) if panel.is_log else (0.0, highest)

    def at(self, value: float) -> float:
        place = log10(max(value, 10**self._from)) if self._is_log else value
        return LEFT + (place - self._from) / (self._to - self._from) * (WIDTH - LEFT - RIGHT)

    def marks(self) -> list[float]:
        if self._is_log:
            return [10.0**power for power in range(int(self._from), int(self._to) + 1)]
        step = 10 ** (log10(self._to) // 1)
        step = step / 5 if self._to / step < 2 else step / 2 if self._to / step < 5 else step
        return [step * number for number in range(int(self._to / step) + 1)]
