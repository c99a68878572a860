"""dlADMM for an MLP the straightforward way, to measure what caching and closed forms save.

Algorithm 2 of the paper, in the structure of the authors' published code: nothing is kept between updates, so every
gradient and every value computes its product ``a W^T`` again. The backtracking of Algorithms 3, 4, 6 and 7 is a loop
that compares phi with its majoriser in the working precision; the majoriser is a function that evaluates phi and its
gradient at the old point each time it is called, so a test takes four products. A candidate for z_l is compared by two
more.

One difference, in favour of this code: z_L is the exact prox of the loss, where the authors run up to 500 steps of
FISTA with up to three products by ``W_L`` each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dladmm.losses import Risk


class AuthorsStructure:
    """The iterate in the paper's names; ``a[0]`` is the input, layers count from 1, rows are samples."""

    def __init__(
        self,
        x: Tensor,
        risk: Risk,
        W: Sequence[Tensor],
        b: Sequence[Tensor],
        *,
        rho: float,
        nu: float,
        start: float = 1.0,
        growth: float = 2.0,
        most_backtracks: int = 60,
    ) -> None:
        self.risk, self.rho, self.nu = risk, rho, nu
        self.start, self.growth, self.most_backtracks = start, growth, most_backtracks
        self.L, self.backtracks = len(W), 0
        empty = x.new_empty(0)
        self.W, self.b = [empty, *(w.clone() for w in W)], [empty, *(v.clone() for v in b)]
        self.a, self.z = [x], [empty]
        for l in range(1, self.L):
            self.z.append(self.linear(l))
            self.a.append(torch.relu(self.z[l]))
        self.z.append(torch.where(risk.target > 0, 1.0, -1.0).to(x.dtype))
        self.u = torch.zeros_like(self.z[self.L])

    def linear(self, l: int) -> Tensor:
        """``W_l a_{l-1} + b_l``, computed whenever it is asked for."""
        return self.a[l - 1] @ self.W[l].T + self.b[l]

    def phi(self, l: int) -> Tensor:
        """The penalty of layer l: ``(nu/2)||z - W a - b||^2``, or ``<u, r> + (rho/2)||r||^2`` for the last."""
        r = self.z[l] - self.linear(l)
        if l == self.L:
            return (self.u * r).sum() + self.rho / 2 * (r * r).sum()
        return self.nu / 2 * (r * r).sum()

    def phi_of_a(self, l: int) -> Tensor:
        """What depends on a_l: the penalty of the layer that follows, and ``(nu/2)||a - f(z)||^2``."""
        gap = self.a[l] - torch.relu(self.z[l])
        return self.phi(l + 1) + self.nu / 2 * (gap * gap).sum()

    def pull(self, l: int) -> Tensor:
        """``d phi / d (W_l a_{l-1} + b_l)``."""
        if l == self.L:
            return self.rho * (self.linear(l) - self.z[l]) - self.u
        return self.nu * (self.linear(l) - self.z[l])

    def gradient_of_W(self, l: int) -> Tensor:
        return self.pull(l).T @ self.a[l - 1]

    def gradient_of_a(self, l: int) -> Tensor:
        return self.pull(l + 1) @ self.W[l + 1] + self.nu * (self.a[l] - torch.relu(self.z[l]))

    def update_W(self, l: int) -> None:
        """Equations 9 and 11, theta searched by Algorithms 4 and 6."""

        def majoriser(move: Tensor, theta: float) -> Tensor:
            return self.phi(l) + (self.gradient_of_W(l) * move).sum() + theta / 2 * (move * move).sum()

        self._search(self.W, l, self.gradient_of_W(l), lambda: self.phi(l), majoriser)

    def update_a(self, l: int) -> None:
        """Equations 3 and 16, tau searched by Algorithms 3 and 7."""

        def majoriser(move: Tensor, tau: float) -> Tensor:
            return self.phi_of_a(l) + (self.gradient_of_a(l) * move).sum() + tau / 2 * (move * move).sum()

        self._search(self.a, l, self.gradient_of_a(l), lambda: self.phi_of_a(l), majoriser)

    def _search(
        self,
        variables: list[Tensor],
        l: int,
        gradient: Tensor,
        value: Callable[[], Tensor],
        majoriser: Callable[[Tensor, float], Tensor],
    ) -> None:
        """Shorten the step until the value there is below the majoriser, which every test evaluates anew."""
        old, curvature = variables[l], self.start
        for _ in range(self.most_backtracks):
            move = gradient / -curvature
            limit = majoriser(move, curvature)
            variables[l] = old + move
            if not bool(value() > limit):
                return
            variables[l] = old
            curvature *= self.growth
            self.backtracks += 1

    def update_b(self, l: int) -> None:
        """Equations 6, 7, 12 and 13 with the step for N samples."""
        c = self.rho if l == self.L else self.nu
        self.b[l] = self.b[l] - self.pull(l).sum(0) / (c * len(self.a[0]))

    def update_z(self, l: int) -> None:
        """Equations 4 and 14 for relu, Equations 5 and 15 for the last layer."""
        m = self.linear(l)
        if l == self.L:
            self.z[l] = self.risk.prox(m - self.u / self.rho, self.rho)
            return
        a, low = self.a[l], m.clamp_max(0)
        high = ((m + a) / 2).clamp_min(0)
        self.z[l] = torch.where(self.z_value(l, high) < self.z_value(l, low), high, low)

    def z_value(self, l: int, z: Tensor) -> Tensor:
        """What a candidate for z_l is compared by; the published function writes its square as a product of two."""
        return (z - self.linear(l)) * (z - self.linear(l)) + (self.a[l] - torch.relu(z)) ** 2

    @torch.no_grad()
    def iterate(self) -> None:
        for l in range(self.L, 0, -1):
            if l < self.L:
                self.update_a(l)
            self.update_z(l)
            self.update_b(l)
            self.update_W(l)
        for l in range(1, self.L + 1):
            self.update_W(l)
            self.update_b(l)
            self.update_z(l)
            if l < self.L:
                self.update_a(l)
        self.u = self.u + self.rho * (self.z[self.L] - self.linear(self.L))
