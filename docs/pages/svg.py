"""Colours and strokes of the pictures."""

from __future__ import annotations

PALETTES = {
    "light": {
        "text": "#1f2328",
        "soft": "#59636e",
        "grid": "#d9dee3",
        "a": "#0b5cad",
        "b": "#b35900",
        "c": "#6b7680",
        "fill": "#e8f1fa",
        "warm": "#fbeee0",
        "page": "#ffffff",
    },
    "dark": {
        "text": "#e6edf3",
        "soft": "#9aa6b2",
        "grid": "#3a424b",
        "a": "#6cb6ff",
        "b": "#f0a35e",
        "c": "#9aa6b2",
        "fill": "#1c2f45",
        "warm": "#3d2c1a",
        "page": "#131416",
    },
}
FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


def opened(width: int, height: int, title: str) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' role='img' "
        f"aria-label='{title}'>\n<title>{title}</title>"
    )


def line(start: tuple[float, float], end: tuple[float, float], colour: str, width: float) -> str:
    return (
        f"<line x1='{start[0]:.1f}' y1='{start[1]:.1f}' x2='{end[0]:.1f}' y2='{end[1]:.1f}' "
        f"stroke='{colour}' stroke-width='{width}'/>"
    )


def arrow(start: float, end: float, y: float, colour: str) -> str:
    sign = 1 if end > start else -1
    head = f"{end},{y} {end - 10 * sign},{y - 5} {end - 10 * sign},{y + 5}"
    return line((start, y), (end - 8 * sign, y), colour, 2) + f"\n<polygon points='{head}' fill='{colour}'/>"


def text(x: float, y: float, text: str, colour: str, anchor: str, size: int = 13) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' {FONT} font-size='{size}' text-anchor='{anchor}' "
        f"fill='{colour}'>{text}</text>"
    )
