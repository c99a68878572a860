"""Where a network errs: confusion matrix, or predicted against true numbers, of its test rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dladmm.report.data import Run
from dladmm.report.markup import Safe, TableCell, el, join, number, table

SHADES = 5
"""Classes of background from none of a row to all of it."""

SIZE, EDGE = 300, 34
"""Of the drawing of predicted against true numbers, and the air around it, in pixels."""


def errors_of(run: Run) -> Safe | None:
    """What the run recorded of its test rows; None if it recorded nothing."""
    tested = run.tested
    if tested.get("confusion"):
        return _confusion(tested["classes"], tested["confusion"], tested)
    if tested.get("predicted_against_true"):
        return _against(tested["predicted_against_true"], tested)
    return None


def amount(value: float | None) -> str:
    """A number of any unit: 12,509 or 0.0312."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def _confusion(classes: Sequence[str], counts: Sequence[Sequence[int]], tested: dict[str, Any]) -> Safe:
    rows = []
    for name, line in zip(classes, counts, strict=True):
        total = sum(line)
        rows.append([TableCell(name), *(_shaded(count, total) for count in line)])
    said = [
        f"{label} {value:.4f}"
        for label, key in (
            ("balanced accuracy", "balanced_accuracy"),
            ("log loss", "log_loss"),
            ("AUC", "auc"),
            ("always answering the most frequent class", "most_frequent_class"),
        )
        if (value := tested.get(key)) is not None
    ]
    caption = f"Confusion matrix of {tested['n_rows']:,} test rows: true class (rows) against predicted class (columns)"
    note = ", ".join(said)
    return join(
        [
            table(caption, ["True", *classes], rows, sortable=False),
            el("p", note[:1].upper() + note[1:] + ".", class_="note") if said else Safe(""),
        ]
    )


def _shaded(count: int, total: int) -> TableCell:
    """Darker for a larger share of the true class; cells without rows show a light zero."""
    shade = 0 if count == 0 else max(1, round(SHADES * count / total))
    return TableCell(f"{count:,}", count, numeric=True, kind=f"shade{shade}")


def _against(bins: Sequence[dict[str, Any]], tested: dict[str, Any]) -> Safe:
    rows = [
        [
            number(each["rows"], "d"),
            TableCell(amount(each["predicted"]), each["predicted"], numeric=True),
            TableCell(amount(each["true"]), each["true"], numeric=True),
        ]
        for each in bins
    ]
    caption = "Predicted against true: test rows in order of their prediction, means of equal parts"
    errors = f"MAE {amount(tested.get('mae'))}, RMSE {amount(tested.get('rmse'))}, in units of the target."
    return el(
        "div",
        el("div", _drawn(bins), el("p", errors, class_="note"), class_="against-drawn"),
        table(caption, ["Rows", "Predicted", "True"], rows, sortable=False),
        class_="against",
    )


def _drawn(bins: Sequence[dict[str, Any]]) -> Safe:
    """Means of the bins as dots; on the diagonal predictions are right."""
    values = [each[key] for each in bins for key in ("predicted", "true")]
    low, high = min(values), max(values)
    span = (high - low) or abs(high) or 1.0

    def place(value: float) -> float:
        return float(round(EDGE + (SIZE - 2 * EDGE) * (value - low) / span, 1))

    ends = {"x1": EDGE, "y1": SIZE - EDGE, "x2": SIZE - EDGE, "y2": EDGE}
    parts = [
        el("line", class_="axis", x1=EDGE, y1=SIZE - EDGE, x2=SIZE - EDGE, y2=SIZE - EDGE),
        el("line", class_="axis", x1=EDGE, y1=SIZE - EDGE, x2=EDGE, y2=EDGE),
        el("line", class_="diagonal", **ends),
        *(
            el("circle", class_="dot", cx=str(place(b["predicted"])), cy=str(SIZE - place(b["true"])), r=5)
            for b in bins
        ),
        el("text", amount(low), x=EDGE, y=SIZE - EDGE + 16),
        el("text", amount(high), x=SIZE - EDGE, y=SIZE - EDGE + 16, text_anchor="end"),
        el("text", "predicted", x=SIZE // 2, y=SIZE - 4, text_anchor="middle"),
        el("text", "true", x=EDGE, y=EDGE - 12),
    ]
    described = "Mean true number against mean prediction, one dot for each row of the table beside it."
    return el("svg", *parts, viewBox=f"0 0 {SIZE} {SIZE}", role="img", aria_label=described)
