"""The iterate of a run, and its energy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor

from dladmm.blocks import Params


@dataclass
class State:
    """The iterate: B, V, u, the cached predictions ``g_l(B_l, V_{l-1})``, and the penalty weights.

    ``W``, ``b``, ``z``, ``a`` are the paper's names for the pieces of an MLP, in layer order; rows are samples and
    ``W[l]`` is (n_out, n_in) as in torch. ``curvatures`` holds, for every block, the curvatures that its searches
    accepted last, near which the next ones start.
    """

    params: list[Params]
    outputs: list[Tensor]
    predictions: list[Tensor]
    u: Tensor
    rho: float
    nu: float
    stiffness: float = 1.0
    links: tuple[float, ...] = ()
    curvatures: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.curvatures:
            self.curvatures = [{} for _ in self.params]

    def weight(self, l: int) -> float:
        """What link l weighs: rho for the last, else nu, times ``stiffness`` once for each link that follows.

        The paper has one nu for all, stiffness 1. A larger one makes links stiffer towards the input, so that a
        backward sweep hands the gradient of R down without weakening it (docs/theory.md). ``links``, where given, are
        factors for single links.
        """
        after = len(self.params) - 1 - l
        own = self.links[l] if self.links else 1.0
        return self.rho if after == 0 else self.nu * self.stiffness**after * own

    @property
    def W(self) -> list[Tensor]:
        return [p["W"] for p in self.params if "W" in p]

    @property
    def b(self) -> list[Tensor]:
        return [p["b"] for p in self.params if "b" in p]

    @property
    def z(self) -> list[Tensor]:
        return [v for p, v in zip(self.params, self.outputs, strict=True) if p]

    @property
    def a(self) -> list[Tensor]:
        return [v for p, v in zip(self.params, self.outputs, strict=True) if not p]

    @property
    def residual(self) -> Tensor:
        """``r = z_L - W_L a_{L-1} - b_L``, line 23 of Algorithm 2."""
        return self.outputs[-1] - self.predictions[-1]

    def clone_parameters(self) -> list[Params]:
        return [{name: p.clone() for name, p in block.items()} for block in self.params]


@dataclass(frozen=True)
class Energy:
    """The pieces of the Lagrangian, each a float64 scalar on the device."""

    risk: Tensor
    penalty: Tensor
    coupling: Tensor
    dual: Tensor
    residual_squared: Tensor
    rho: float

    @property
    def sums(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The pieces that are sums over the samples."""
        return self.risk, self.coupling, self.dual, self.residual_squared

    def with_sums(self, risk: Tensor, coupling: Tensor, dual: Tensor, residual_squared: Tensor) -> Energy:
        """The same penalty beside other sums."""
        return replace(self, risk=risk, coupling=coupling, dual=dual, residual_squared=residual_squared)

    @property
    def objective(self) -> Tensor:
        """F of Problem 4."""
        return self.risk + self.penalty + self.coupling

    @property
    def lagrangian(self) -> Tensor:
        """L_rho of Equation 1."""
        return self.objective + self.dual + self.rho / 2 * self.residual_squared
