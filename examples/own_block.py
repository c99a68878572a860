"""
A block of your own
===================

``g(w, v) = w * v`` with one gain per feature: the block knows its two argmins. Its sums over the samples go through
``work``, so it may declare ``Support.ALL``: it runs in chunks of rows, with sample weights, on several ranks and
recorded on a GPU like the library's own blocks.

``dladmm.blocks.Generic(module)`` would train it too, with local gradients instead of closed forms.
"""

import torch
from torch import nn

import dladmm
from dladmm.blocks import Affine, Block, Elementwise, Step, Support
from dladmm.compute.passes import squared_norm


class Gain(Block):
    """``g(w, v) = w * v``, one gain per feature."""

    support = Support.ALL  # every sum over the samples goes through work

    def __init__(self, width):
        self.n_in = self.n_out = width

    def initial_parameters(self, generator, scale):
        return {"w": torch.ones(self.n_in, dtype=torch.float64)}

    def forward(self, params, v):
        return params["w"] * v

    def update_parameters(self, params, v, term, penalty, work):
        """argmin_w (c/2)||target - w v||^2 + (c/2)||w - w_k||^2, summed over the samples of all ranks."""
        slope, square = work.sum(slope_and_square, term.target, term.prediction, v)
        move = (-slope / (square + 1)).to(v.dtype)
        work.move(params["w"], move)
        for part, own, some in work.terms(term, v):
            part.advance(own, some, move, None)  # the cached prediction w v moves along
        return [Step("w", squared_norm(move), term.weight * (square.min() + 1) / 2)]

    def update_input(self, params, v, anchor, term, work):
        """argmin_v (nu/2)||v - value||^2 + (c/2)||target - w v||^2, every row by itself."""
        w, nu, c = params["w"], anchor.weight, term.weight
        squared = torch.zeros((), dtype=torch.float64, device=v.device)
        for part, own, some, value in work.terms(term, v, anchor.value):
            new = (nu * value + c * w * own.target) / (nu + c * w**2)
            squared += squared_norm(new - some, part.counts)
            part.assign(some, new)
            part.assign(own.prediction, w * new)
        return [Step("a", squared, torch.full_like(squared, nu / 2), own=True)]  # of this rank's rows

    def input_gradient(self, params, v, term, work):
        return term.weight * params["w"] * term.residual()

    def parameter_stationarity(self, params, v, term, penalty, work):
        slope, _ = work.sum(slope_and_square, term.target, term.prediction, v)
        return squared_norm(term.weight * slope)

    def to_module(self, params):
        return Scale(params["w"].clone())


def slope_and_square(work, target, prediction, v):
    """Sums over these rows, each as often as it counts: of (prediction - target) v and of v^2."""
    return work.counted((prediction - target) * v).sum(0).double(), work.counted(v.square()).sum(0).double()


class Scale(nn.Module):
    """The block as an ordinary module."""

    def __init__(self, w):
        super().__init__()
        self.w = nn.Parameter(w)

    def forward(self, v):
        return self.w * v


# %%
# In a chain it is a link like the library's own, and the certificate checks what it promised.
data = dladmm.datasets.load("digits")
chain = dladmm.Chain([Affine(64, 64), Gain(64), Elementwise("relu"), Affine(64, 10)])
result = dladmm.train(chain, data.x_train, data.y_train, mode="convergent", max_iter=30)
print(result.certificate)
with torch.no_grad():
    accuracy = (result.module(data.x_test).argmax(1) == data.y_test).double().mean()
print(f"test accuracy {accuracy:.3f}")
