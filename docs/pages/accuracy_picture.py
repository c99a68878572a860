"""Test accuracy on MNIST against iterations, as a picture."""

from __future__ import annotations

import math
from itertools import pairwise

from pages.readme import percent
from pages.records import Cell, accuracy_at, cells_of
from pages.svg import FONT, line, opened, text

SHOWN = (1, 2, 5, 10, 20, 50, 100, 200)


def curves() -> list[tuple[str, str, dict[int, float]]]:
    """Label, colour and mean test accuracy by iteration."""
    found = {
        method: _curve(cells_of(name, dataset="mnist", method=method))
        for name, method in (
            ("mlp-accuracy", "accelerated"), ("mlp-accuracy", "adam"), ("convergent-mnist", "paper"),
        )
    }  # fmt: skip
    return [
        ("dladmm, accelerated mode", "a", found["accelerated"]),
        ("Adam", "b", found["adam"]),
        ("dladmm with the paper's settings", "c", found["paper"]),
    ]


def _curve(cells: list[Cell]) -> dict[int, float]:
    means = {int(k): accuracy_at(cells, int(k)) for k in cells[0]["test_accuracy"]}
    return {k: value for k, value in means.items() if value is not None}


def accuracy_picture(colours: dict[str, str]) -> str:
    width, height, left, right, top, bottom = 720, 330, 52, 16, 40, 44
    low, high = 0.80, 1.0

    def x(k: float) -> float:
        return left + (width - left - right) * math.log(k) / math.log(200)

    def y(value: float) -> float:
        return top + (height - top - bottom) * (high - value) / (high - low)

    parts = [opened(width, height, "Test accuracy on MNIST against iterations")]
    parts.append(
        f"<text x='{left}' y='20' {FONT} font-size='15' font-weight='600' fill='{colours['text']}'>"
        "MNIST, 784-1000-1000-10, full batch: test accuracy</text>"
    )
    for value in (0.80, 0.85, 0.90, 0.95, 1.0):
        parts.append(line((left, y(value)), (width - right, y(value)), colours["grid"], 1))
        parts.append(text(left - 8, y(value) + 4, f"{100 * value:.0f} %", colours["soft"], "end"))
    parts += [text(x(k), height - bottom + 20, str(k), colours["soft"], "middle") for k in SHOWN]
    middle = (left + width - right) / 2
    parts.append(text(middle, height - 6, "iterations (logarithmic)", colours["soft"], "middle"))
    places = {"a": (1.2, 0.974, "start"), "b": (13, 0.925, "end"), "c": (200, 0.872, "end")}
    for label, key, points in curves():
        shown = [(x(k), y(max(v, low - 0.05))) for k, v in sorted(points.items())]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in _from(shown, y(low)))
        dashes = " stroke-dasharray='6 4'" if key == "c" else ""
        parts.append(
            f"<polyline points='{path}' fill='none' stroke='{colours[key]}' stroke-width='2.5' "
            f"stroke-linejoin='round'{dashes}/>"
        )
        k, value, anchor = places[key]
        said = f"{label}: {percent(points[200])}"
        parts.append(text(x(k), y(value), said, colours[key], anchor, 14))
    return "\n".join([*parts, "</svg>", ""])


def _from(points: list[tuple[float, float]], floor: float) -> list[tuple[float, float]]:
    """The curve from where it enters the picture."""
    for i, (here, there) in enumerate(pairwise(points)):
        if here[1] > floor >= there[1]:
            share = (here[1] - floor) / (here[1] - there[1])
            return [(here[0] + share * (there[0] - here[0]), floor), *points[i + 1 :]]
    return points
