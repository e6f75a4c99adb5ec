"""Draws the share of cut batches against the silence, with its interval, as SVG for light and dark pages."""

from collections.abc import Mapping

from message_buffer.tuning.curve import WITHIN_MS, Rate

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 76, 24, 52, 64
STYLE = """<style>
text { fill: #24292f } .page { fill: #ffffff } .grid { stroke: #d8dee4 } .band { fill: #0072b2; opacity: .18 }
.line { stroke: #0072b2; fill: none; stroke-width: 2.5 } .now { fill: #d55e00 } .best { stroke: #57606a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .page { fill: #0d1117 } .grid { stroke: #30363d } .band { fill: #58a6ff }
  .line { stroke: #58a6ff } .now { fill: #ff9e64 } .best { stroke: #8b949e }
}
</style>"""


def svg(points: Mapping[int, Rate], *, now: tuple[float, Rate], best_ms: int | None) -> str:
    """Return the picture. `now` is the mean wait today, and the share of the batches that it cuts."""
    (now_ms, cut), title = now, f"Batches whose author goes on within {WITHIN_MS // 1_000} s, by silence"
    highest = max(0.1, *(-(-rate.high * 10 // 1) / 10 for rate in points.values()))

    def at(silence_ms: float, share: float) -> str:
        x = LEFT + min(silence_ms, WITHIN_MS) / WITHIN_MS * (WIDTH - LEFT - RIGHT)
        return f"{x:.1f} {HEIGHT - BOTTOM - share / highest * (HEIGHT - TOP - BOTTOM):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="sans-serif"',
        f'font-size="13">{STYLE}<title>{title}</title>',
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        f'<text x="18" y="28" font-weight="bold">{title}</text>',
    ]
    for second in range(WITHIN_MS // 1_000 + 1):
        x, bottom = at(second * 1_000, 0).split()
        parts.append(f'<path class="grid" d="M{x} {TOP}V{bottom}"/>')
        parts.append(f'<text x="{x}" y="{float(bottom) + 18}" text-anchor="middle">{second} s</text>')
    for tenth in range(round(highest * 10) + 1):
        x, y = at(0, tenth / 10).split()
        parts.append(f'<path class="grid" d="M{x} {y}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{float(y) + 4}" text-anchor="end">{tenth * 10}%</text>')
    for place, name in (
        (
            f"translate({(LEFT + WIDTH - RIGHT) / 2} {HEIGHT - 16})",
            "silence after the last message, which is the mean wait",
        ),
        (f"translate(24 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)", "cut batches, with the 95% interval"),
    ):
        parts.append(f'<text transform="{place}" text-anchor="middle">{name}</text>')
    band = [at(ms, rate.high) for ms, rate in points.items()]
    band += [at(ms, rate.low) for ms, rate in reversed([*points.items()])]
    parts.append(f'<path class="band" d="M{" L".join(band)}Z"/>')
    parts.append(f'<path class="line" d="M{" L".join(at(ms, rate.share) for ms, rate in points.items())}"/>')
    if best_ms is not None:
        x = at(best_ms, 0).split()[0]
        parts.append(f'<path class="best" d="M{x} {TOP}V{HEIGHT - BOTTOM}" stroke-dasharray="5 4"/>')
        parts.append(f'<text x="{float(x) + 6}" y="{TOP + 14}">recommended: {best_ms / 1_000:g} s</text>')
    x, y = at(now_ms, cut.share).split()
    parts.append(f'<circle class="now" cx="{x}" cy="{y}" r="5"/>')
    parts.append(
        f'<text x="{float(x) + 10}" y="{float(y) - 8}">today: {cut.share:.0%} at {now_ms / 1_000:.1f} s</text>'
    )
    return "\n".join([*parts, "</svg>"]) + "\n"
