"""The curvature of a loss, sampled: what shows that a constant H is too small, or that a loss is not convex."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dladmm.losses.base import Loss, Risk

SCALES, POWER_STEPS = (0.0, 0.1, 1.0, 3.0, 10.0), 12
"""Distances from zero and from the targets at which the curvature is sampled, and steps of power iteration there."""

LENGTH, ROWS = 1e-4, 256
"""Length of the differences of gradients, and rows that are tried at most."""

MARGIN = 1e-3
"""Relative excess over H, or share of H below zero, that differences of gradients can show without a fault."""


@dataclass(frozen=True)
class Curvature:
    """The smallest and largest curvature of a row that sampling found: bounds from inside, never proofs."""

    smallest: float
    largest: float

    def exceeds(self, H: float) -> bool:
        """Whether H is no bound on the Lipschitz constant of a row's gradient."""
        return not self.largest <= (1 + MARGIN) * H

    def concave(self, H: float) -> bool:
        """Whether the loss is not convex."""
        return not self.smallest >= -MARGIN * H

    def fits(self, H: float) -> bool:
        """Whether nothing was found that contradicts a convex loss with this H."""
        return not (self.concave(H) or self.exceeds(H))


def sampled_curvature(loss: Loss, target: Tensor, *points: Tensor) -> Curvature:
    """The extreme curvatures found by power iteration on differences of gradients, row by row in float64.

    It starts around zero, around the targets and at ``points``. What rounding alone can make of a difference is taken
    off, so that a right H is never contradicted.

    Parameters
    ----------
    loss : Loss
    target : Tensor of shape (N, n_outputs)
        Targets as ``loss.encode`` returns them; of more than 256 rows some are taken.
    points : Tensors of shape (N, n_outputs)
        Outputs of the network to try as well.
    """
    every = max(1, len(target) // ROWS)
    some = target[::every].double()
    generator = torch.Generator().manual_seed(0)

    def random() -> Tensor:
        return torch.randn(some.shape, generator=generator, dtype=torch.float64).to(some.device)

    smallest, largest = torch.inf, 0.0
    places = [(c, scale) for c in (torch.zeros_like(some), some) for scale in SCALES]
    places += [(point[::every].double(), scale) for point in points for scale in SCALES[:2]]
    for centre, scale in places:
        z = centre + scale * random()
        slope, direction = loss.gradient(z, some), random()
        eps = 8 * torch.finfo(torch.float64).eps / LENGTH
        steep = slope.norm(dim=1, keepdim=True)
        far = z.norm(dim=1, keepdim=True) + some.norm(dim=1, keepdim=True)
        shift: Tensor | float = 0.0
        # The largest curvature first, then the smallest, shifted by the largest
        for step in range(2 * POWER_STEPS):
            direction = LENGTH * direction / direction.norm(dim=1, keepdim=True).clamp_min(1e-300)
            moved = (z + direction) - z  # beside a large z the direction is rounded
            change = loss.gradient(z + moved, some) - slope
            length = moved.norm(dim=1, keepdim=True).clamp_min(0.5 * LENGTH)
            size = change.norm(dim=1, keepdim=True) / length
            along = (change * moved).sum(1, keepdim=True) / length**2
            noise = eps * (steep + size * far)
            if not torch.isfinite(size).all():
                return Curvature(-torch.inf, torch.inf)
            largest = max(largest, float((size - noise).max()) if len(size) else 0.0)
            smallest = min(smallest, float((along + noise).min()) if len(along) else torch.inf)
            shift = torch.maximum(size, torch.as_tensor(shift).to(size)) if step < POWER_STEPS else shift
            following = change if step < POWER_STEPS else change - shift * direction
            direction = torch.where(following.norm(dim=1, keepdim=True) > 0, following, random())
            if step == POWER_STEPS - 1:
                direction = random()
    return Curvature(smallest, largest)


def curvature_of(risk: Risk, z: Tensor) -> Curvature:
    """The curvatures of R found around outputs z and elsewhere, on all ranks."""
    found = sampled_curvature(risk.loss, risk.target, risk.flat(z))
    pair = torch.tensor([-found.smallest, found.largest], dtype=torch.float64, device=risk.target.device)
    down, largest = risk.comm.largest(pair)[0].tolist()
    weight = risk.H / risk.loss.H if risk.loss.H > 0 else 1.0
    return Curvature(-down * weight, largest * weight)
