"""Curves of a fit under the names that scikit-learn's MLP has them by."""

from __future__ import annotations

from sklearn.utils.validation import check_is_fitted

from dladmm.base.history import History


class Curves:
    """Mixin: ``loss_curve_``, ``best_loss_``, ``validation_scores_`` and ``best_validation_score_``."""

    history_: History

    @property
    def loss_curve_(self) -> list[float]:
        """Mean training loss after every iteration or pass at which it was measured."""
        return self._measured("loss")

    @property
    def best_loss_(self) -> float:
        """The least of ``loss_curve_``."""
        return min(self.loss_curve_)

    @property
    def validation_scores_(self) -> list[float] | None:
        """Scores on rows that were not learnt from: accuracy, or R^2 in regression; None without such rows.

        The rows are those of early stopping; where "auto" cross-fits, all rows, each by the copy that never saw it.
        """
        return self._measured("val_accuracy") or self._measured("val_r2") or None

    @property
    def best_validation_score_(self) -> float | None:
        """The largest of ``validation_scores_``."""
        return max(self.validation_scores_ or [], default=None)

    def _measured(self, column: str) -> list[float]:
        check_is_fitted(self)
        return [float(value) for value in self.history_[column] if value is not None]
