"""The constants of streaming mode, checked."""

from __future__ import annotations

from dataclasses import dataclass

from dladmm.base.spec import check_setting

FEW_ROWS = 15_000
"""Below, networks with jumps and real weights make longer steps (docs/signs.md)."""


@dataclass(frozen=True)
class StreamingOptions:
    """The constants of streaming mode; chosen on validation data (docs/streaming.md), the same for every network.

    Parameters
    ----------
    damping : float
        Of the least-squares steps, over the mean eigenvalue of the metric.
    momentum : float
        What older gradients count in the running one.
    stretch : float or None
        The multiple of the Gauss-Newton step that is taken. With momentum .5 steps are stable up to 6 of it. None is
        1.5, and 3 in a planned run of a network with jumps whose weights are of a finite set, or whose rows are
        fewer than ``FEW_ROWS`` (docs/signs.md).
    largest_change : float or None
        Bound on the mean square change of the outputs in one step, in the metric of the loss: for softmax
        cross-entropy that is twice the KL divergence between the predictions before and after. None is 0.3, and 1
        where ``stretch`` is 3.
    largest_relative_change : float
        Bound on the sum of the relative changes of the hidden links in one step. In deep networks the quadratic model
        of the loss does not see them.
    smoothing : float or None
        The share of every label that is spread over all classes; None is 0.1 for 50,000 samples or more, and in
        proportion less for fewer; 0.1 for networks with jumps.
    averaging : float
        How far back the averaged network reaches: about the last ``1/(averaging + 1)`` of the run.
    planned : bool
        Steps shrink linearly to zero towards ``max_iter`` passes, and the last iterate is the network. Otherwise steps
        stay, or shrink by ``slowing``, and the network is the average.
    slowing : float or None
        Without a plan, batch k makes a step of ``1/sqrt(1 + k/slowing)`` of its length; None is the whole step always.
        In long runs the noise of small batches otherwise drives relu units out of their range one by one.
    """

    damping: float = 10.0
    momentum: float = 0.5
    stretch: float | None = None
    largest_change: float | None = None
    largest_relative_change: float = 0.5
    smoothing: float | None = None
    averaging: float = 8.0
    planned: bool = True
    slowing: float | None = None

    def __post_init__(self) -> None:
        check_setting(self, "damping", float, "a number > 0", lambda v: v > 0)
        share = "a number from 0 to below 1"
        check_setting(self, "momentum", float, share, lambda v: 0 <= v < 1)
        check_setting(self, "smoothing", float, share, lambda v: 0 <= v < 1, optional=True)
        for name in ("largest_relative_change", "averaging"):
            check_setting(self, name, float, "a number > 0", lambda v: v > 0)
        for name in ("stretch", "largest_change"):
            check_setting(self, name, float, "a number > 0", lambda v: v > 0, optional=True)
        check_setting(self, "planned", bool, "True or False")
        check_setting(self, "slowing", float, "a number > 0", lambda v: v > 0, optional=True)

    def bounds(self, *, jumps: bool, finite: bool, n_samples: float | None) -> tuple[float, float]:
        """``stretch`` and ``largest_change`` of a network: with jumps or not, with weights of a finite set or not.

        Weights and units of few levels move when much is asked of them, and the steps of a planned run end short
        anyway. With real weights and many rows there are steps enough, and longer ones generalise worse.
        """
        few = n_samples is not None and n_samples < FEW_ROWS
        longer = self.planned and jumps and (finite or few)
        stretch, change = (3.0, 1.0) if longer else (1.5, 0.3)
        return (
            stretch if self.stretch is None else self.stretch,
            change if self.largest_change is None else self.largest_change,
        )
