"""
A block of your own
===================

``g(w, v) = w * v`` with one gain a feature, in under 30 lines: it knows its two argmins.

``dladmm.blocks.Generic(module)`` would train it too, with local gradients instead of closed forms.
"""

import torch
from torch import nn

import dladmm
from dladmm.blocks import Affine, Block, Elementwise, Step
from dladmm.compute.norms import squared_norm


class Gain(Block):
    def initial_parameters(self, generator, scale):
        return {"w": torch.ones(64, dtype=torch.float64)}

    def forward(self, params, v):
        return params["w"] * v

    def update_parameters(
        self, params, v, term, penalty, scope
    ):  # argmin_w (c/2)||target - w v||^2 + (c/2)||w - w_k||^2
        square = v.square().sum(0) + 1
        move = -(term.residual() * v).sum(0) / square
        params["w"] += move
        term.prediction.copy_(self.forward(params, v))
        return [Step("w", squared_norm(move), (term.weight * square.min() / 2).double())]

    def update_input(
        self, params, v, anchor, term, scope
    ):  # argmin_v (nu/2)||v - value||^2 + (c/2)||target - w v||^2
        w, nu, c = params["w"], anchor.weight, term.weight
        new = (nu * anchor.value + c * w * term.target) / (nu + c * w**2)
        squared = squared_norm(new - v)
        v.copy_(new)
        term.prediction.copy_(self.forward(params, v))
        return [Step("a", squared, torch.full_like(squared, nu / 2))]

    def input_gradient(self, params, v, term):
        return term.weight * params["w"] * term.residual()

    def parameter_stationarity(self, params, v, term, penalty):
        return squared_norm(term.weight * (term.residual() * v).sum(0))

    def to_module(self, params):
        return Scale(params["w"].clone())


class Scale(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w = nn.Parameter(w)

    def forward(self, v):
        return self.w * v


# %%
# In a chain it is a link like the library's own, and the certificate checks what it promised.
data = dladmm.datasets.load("digits")
chain = dladmm.Chain([Affine(64, 64), Gain(), Elementwise("relu"), Affine(64, 10)])
result = dladmm.train(chain, data.x_train, data.y_train, max_iter=30)
print(result.certificate)
with torch.no_grad():
    accuracy = (result.module(data.x_test).argmax(1) == data.y_test).double().mean()
print(f"test accuracy {accuracy:.3f}")
