"""Pictures without a plotting library: SVG lines and bars, and bars of characters for a terminal."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 360, 64, 56, 36
COLOURS = ("#4464ad", "#d1495b", "#66a182", "#edae49", "#8d6a9f", "#2e4057")
FONT = 'font-family="sans-serif" font-size="12"'


def bars(title: str, labels: Sequence[str], series: Mapping[str, Sequence[float]], unit: str = "") -> str:
    """Groups of bars, one group a label."""
    top = max((value for values in series.values() for value in values), default=1.0) or 1.0
    group = (WIDTH - LEFT - 16) / max(1, len(labels))
    width = group * 0.8 / max(1, len(series))
    parts = _frame(title, series, top, unit)
    for place, label in enumerate(labels):
        x = LEFT + place * group + group * 0.1
        parts.append(_text(x + group * 0.4, HEIGHT - BOTTOM + 16, label, "middle"))
        for number, values in enumerate(series.values()):
            height = (HEIGHT - BOTTOM - TOP) * values[place] / top
            y = HEIGHT - BOTTOM - height
            colour = COLOURS[number % len(COLOURS)]
            at = x + number * width
            parts.append(f'<rect x="{at:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>')
            parts.append(_text(at + width / 2, y - 3, f"{values[place]:.3g}", "middle", 10))
    return _svg(parts)


def lines(
    title: str, x_name: str, series: Mapping[str, Sequence[tuple[float, float]]], unit: str = "", top: float = 0.0
) -> str:
    """A line a series, through its points."""
    points = [point for values in series.values() for point in values]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    top = top or max(y for _, y in points) * 1.05 or 1.0
    span = right - left or 1.0
    parts = _frame(title, series, top, unit)
    parts.append(_text(WIDTH / 2, HEIGHT - 10, x_name, "middle"))
    for x in (left, (left + right) / 2, right):
        at = LEFT + (WIDTH - LEFT - 24) * (x - left) / span
        parts.append(_text(at, HEIGHT - BOTTOM + 16, f"{x:.4g}", "middle"))
    for number, values in enumerate(series.values()):
        colour = COLOURS[number % len(COLOURS)]
        drawn = [
            (
                LEFT + (WIDTH - LEFT - 24) * (x - left) / span,
                HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * min(y / top, 1),
            )
            for x, y in values
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in drawn]
    return _svg(parts)


def ascii_bars(values: Mapping[str, float], unit: str = "", width: int = 48) -> str:
    """A line a value; the largest is `width` long."""
    top = max(values.values(), default=0.0) or 1.0
    label = max(map(len, values), default=0)
    return "\n".join(
        f"{name:<{label}}  {'#' * max(0, round(width * value / top)):<{width}}  {value:.4g}{unit}"
        for name, value in values.items()
    )


def _frame(title: str, series: Mapping[str, object], top: float, unit: str) -> list[str]:
    parts = [_text(LEFT, 16, title, "start", 14)]
    for step in range(5):
        y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * step / 4
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 16}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{top * step / 4:.3g}{unit}", "end"))
    for number, name in enumerate(series):
        x = LEFT + number * (WIDTH - LEFT) / max(1, len(series))
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<rect x="{x:.1f}" y="{HEIGHT - 26}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(x + 14, HEIGHT - 17, name, "start"))
    return parts


def _text(x: float, y: float, words: str, anchor: str, size: int = 12) -> str:
    font = FONT.replace("12", str(size))
    return f'<text x="{x:.1f}" y="{y:.1f}" {font} text-anchor="{anchor}">{escape(words)}</text>'


def _svg(parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *parts, "</svg>"]) + "\n"
