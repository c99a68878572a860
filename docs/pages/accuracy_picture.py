"""Test accuracy on MNIST against seconds, streaming mode beside tuned mini-batch methods, as a picture."""

from __future__ import annotations

import math
from statistics import mean
from typing import Any

from pages.streaming import record_of
from pages.svg import FONT, line, opened, text

LOW, HIGH = 0.94, 0.9935
FIRST, LAST = 0.01, 6.0
Curve = list[tuple[float, float]]


def curves() -> list[tuple[str, str, Curve]]:
    """Label, colour and (seconds, mean test accuracy): streaming mode, the quickest Adam, the best Adam, the best Muon.

    Settings of the others are those that validation images chose: for the level of 98 %, and for ten passes.
    """
    record = record_of("time-to-accuracy-h200")
    chosen = [c for c in record["chosen"] if c["data"] == "mnist" and c["network"] == "mlp"]

    def named(method: str, aim: str) -> dict[str, Any]:
        return next(c for c in chosen if c["method"] == method and c["for"] == aim)

    quick, best, muon = named("adam", "level 0.98"), named("adam", "passes 10"), named("muon", "passes 10")
    return [
        ("dladmm, streaming mode", "a", _curve(record, "streaming, 10 passes")),
        (f"Adam, batch {quick['setting']['batch']}", "b", _curve(record, quick["name"])),
        (f"Adam, batch {best['setting']['batch']}", "b", _curve(record, best["name"])),
        (f"Muon, batch {muon['setting']['batch']}", "c", _curve(record, muon["name"])),
    ]


def _curve(record: dict[str, Any], name: str) -> Curve:
    """Means over the seeds, look by look."""
    runs = [
        r
        for r in record["runs"]
        if (r["part"], r["data"], r["network"], r["name"]) == ("test", "mnist", "mlp", name)
    ]
    looks = zip(*(zip(r["seconds"], r["accuracy"], strict=True) for r in runs), strict=False)
    return [(mean(s for s, _ in look), mean(a for _, a in look)) for look in looks]


def accuracy_picture(colours: dict[str, str]) -> str:
    width, height, left, right, top, bottom = 720, 350, 52, 16, 40, 44

    def x(seconds: float) -> float:
        return left + (width - left - right) * math.log(seconds / FIRST) / math.log(LAST / FIRST)

    def y(value: float) -> float:
        return top + (height - top - bottom) * (HIGH - value) / (HIGH - LOW)

    title = "MNIST, 784-1000-1000-10, one H200: test accuracy"
    parts = [opened(width, height, title)]
    parts.append(
        f"<text x='{left}' y='20' {FONT} font-size='15' font-weight='600' fill='{colours['text']}'>{title}</text>"
    )
    for value in (0.94, 0.95, 0.96, 0.97, 0.98, 0.99):
        parts.append(line((left, y(value)), (width - right, y(value)), colours["grid"], 1))
        parts.append(text(left - 8, y(value) + 4, f"{100 * value:.0f} %", colours["soft"], "end"))
    ticks = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
    parts += [text(x(t), height - bottom + 20, f"{t:g}", colours["soft"], "middle") for t in ticks]
    parts.append(
        text(
            (left + width - right) / 2,
            height - 6,
            "seconds from the first step (logarithmic)",
            colours["soft"],
            "middle",
        )
    )
    labels = [(0.05, 0.9913, "start"), (0.072, 0.9422, "start"), (LAST, 0.9445, "end"), (LAST, 0.9515, "end")]
    dashes = ["", "", " stroke-dasharray='6 4'", ""]
    for (label, key, points), (place, height_of, anchor), dash in zip(curves(), labels, dashes, strict=True):
        path = " ".join(f"{x(s):.1f},{y(a):.1f}" for s, a in points if a >= LOW)
        parts.append(
            f"<polyline points='{path}' fill='none' stroke='{colours[key]}' stroke-width='2.2' "
            f"stroke-linejoin='round'{dash}/>"
        )
        said = f"{label}: {100 * points[-1][1]:.1f} % in {points[-1][0]:.1f} s"
        parts.append(text(x(place), y(height_of), said, colours[key], anchor, 13))
    return "\n".join([*parts, "</svg>", ""])
