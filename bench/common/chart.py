"""A plot of lines over two logarithmic axes as SVG, without a plotting library."""

import math
from collections.abc import Sequence
from typing import NamedTuple

COLOURS = ("#1f6fb4", "#d95f0e", "#2c8a4b", "#7b4ea3", "#b3263a", "#666666")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 70, 190, 40, 50


class Line(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]


def log_log(title: str, across: str, up: str, lines: Sequence[Line]) -> str:
    """All coordinates above 0. Axes end at whole powers of ten."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    x_axis, y_axis = _decades(xs), _decades(ys)

    def place(x: float, y: float) -> tuple[float, float]:
        right = (math.log10(x) - x_axis[0]) / (x_axis[-1] - x_axis[0])
        high = (math.log10(y) - y_axis[0]) / (y_axis[-1] - y_axis[0])
        return LEFT + right * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - high * (HEIGHT - TOP - BOTTOM)

    low_x, low_y, high_x, high_y = 10 ** x_axis[0], 10 ** y_axis[0], 10 ** x_axis[-1], 10 ** y_axis[-1]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="15">{title}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{across}</text>',
        f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{up}</text>',
    ]
    for power in x_axis:
        (x, y), (_, top) = place(10**power, low_y), place(10**power, high_y)
        parts.append(f'<path d="M{x:.1f} {y:.1f}V{top:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{10**power:,}</text>')
    for power in y_axis:
        (x, y), (end, _) = place(low_x, 10**power), place(high_x, 10**power)
        parts.append(f'<path d="M{x:.1f} {y:.1f}H{end:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{10**power:,}</text>')
    for index, (name, points) in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)]
        places = [place(x, y) for x, y in sorted(points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        parts.append(f'<text x="{WIDTH - RIGHT + 14}" y="{TOP + 20 * index + 12}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _decades(values: Sequence[float]) -> range:
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return range(first, max(last, first + 1) + 1)
