"""A drawing of the sweep."""

from __future__ import annotations

from pages.svg import arrow, line, opened, text


def sweep_picture(colours: dict[str, str]) -> str:
    """A chain of an MLP with one hidden layer, the order of a sweep above and below it."""
    width, height, y = 760, 350, 190
    variables = [("x", "data"), ("z₁", "soft, ν"), ("a₁", "soft, ν"), ("z₂", "hard, ρ and u")]
    blocks = ["W₁, b₁", "f", "W₂, b₂"]
    xs = [60 + 200 * i for i in range(4)]
    parts = [opened(width, height, "The chain of blocks, and the order of a backward and a forward sweep")]
    for i, name in enumerate(blocks):
        at = (xs[i] + xs[i + 1]) / 2
        parts.append(line((xs[i] + 26, y), (xs[i + 1] - 26, y), colours["soft"], 1.5))
        parts.append(
            f"<rect x='{at - 42}' y='{y - 22}' width='84' height='44' rx='8' fill='{colours['warm']}' "
            f"stroke='{colours['b']}' stroke-width='1.5'/>"
        )
        parts.append(text(at, y + 5, name, colours["text"], "middle", 16))
    for at, (name, tie) in zip(xs, variables, strict=True):
        parts.append(
            f"<circle cx='{at}' cy='{y}' r='26' fill='{colours['fill']}' stroke='{colours['a']}' stroke-width='1.5'/>"
        )
        parts.append(text(at, y + 6, name, colours["text"], "middle", 17))
        parts.append(text(at, y + 46, tie, colours["soft"], "middle", 12))
    parts.append(text(xs[3] + 34, y + 5, "loss R", colours["text"], "start", 14))
    backward = [(xs[3], "1 z₂"), (560, "2 b₂, W₂"), (xs[2], "3 a₁"), (xs[1], "4 z₁"), (160, "5 b₁, W₁")]
    forward = [(160, "6 W₁, b₁"), (xs[1], "7 z₁"), (xs[2], "8 a₁"), (560, "9 W₂, b₂"), (xs[3], "10 z₂")]
    for title, steps, row, colour, sign in (
        ("backward sweep", backward, 112, colours["a"], -1),
        ("forward sweep", forward, 272, colours["b"], 1),
    ):
        start, end = (xs[3] + 40, 110) if sign < 0 else (110, xs[3] + 40)
        parts.append(arrow(start, end, row, colour))
        for at, label in steps:
            parts.append(f"<circle cx='{at}' cy='{row}' r='4' fill='{colour}'/>")
            parts.append(text(at, row - 12 if sign < 0 else row + 24, label, colours["text"], "middle", 14))
        parts.append(text(60, row - 44 if sign < 0 else row + 56, title, colour, "start", 15))
    said = "11  u ← u + ρ (z₂ − W₂a₁ − b₂)"
    parts.append(text(xs[3] + 60, 328, said, colours["text"], "end", 14))
    return "\n".join([*parts, "</svg>", ""])
