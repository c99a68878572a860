"""
Networks that back-propagation cannot train
===========================================

Beside the straight-through estimator trained with Adam.

The gradient of a sign is zero almost everywhere; the straight-through estimator pretends that it is one. dlADMM needs
no gradient of it: the sign's subproblem has a closed form.
"""

import torch
from torch import nn

import dladmm
from dladmm import baselines

data = dladmm.datasets.load("digits")


class StraightThrough(nn.Module):
    """sign(z), with the gradient of hardtanh."""

    def forward(self, z):
        soft = z.clamp(-1, 1)
        return soft + (torch.where(z >= 0, 1.0, -1.0) - soft).detach()


def accuracy(module):
    with torch.no_grad():
        return (module(data.x_test).argmax(1) == data.y_test).double().mean()


layers = nn.Sequential(nn.Linear(64, 400), StraightThrough(), nn.Linear(400, 10))
given = data.x_train, data.y_train
adam = baselines.train("adam", layers, *given, max_iter=40)
print(f"straight-through estimator with Adam, 40 epochs: test {accuracy(adam.module):.3f}")

# %%
# The same network without a pretended gradient.
settings = {"nu": 10.0, "damping": 1.0, "init_scale": 1.0, "max_iter": 40}
result = dladmm.train(
    dladmm.mlp([64, 400, 10], "sign"), *given, regularizer={"name": "l2", "strength": 3.0}, **settings
)
print(f"dlADMM, 40 iterations: test accuracy {accuracy(result.module):.3f}")
print(f"hidden units take the values {result.module[:2](data.x_test).unique().tolist()}")
print(result.certificate)

# %%
# Steps, and weights under a penalty or a constraint.
for activation, penalty in (("step", {"name": "l1", "strength": 3.0}), ("relu", {"name": "non_negative"})):
    found = dladmm.train(
        dladmm.mlp([64, 100, 10], activation), *given, regularizer=penalty, **settings | {"max_iter": 20}
    )
    weights = torch.cat([W.flatten() for W in found.state.W])
    print(
        f"{activation} with {penalty['name']} weights: test {accuracy(found.module):.3f}, "
        f"{(weights == 0).double().mean():.0%} of them zero, the smallest {weights.min():.2f}"
    )
