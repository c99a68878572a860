"""
Networks that back-propagation cannot train
===========================================

Beside the straight-through estimator trained with Adam.

The gradient of a sign is zero almost everywhere; the straight-through estimator pretends that it is that of a ramp, and
follows it. dlADMM asks for no gradient of the network. Convergent mode solves the sign's own subproblem in closed form;
accelerated mode solves that of the ramp through the point where each entry stands, and keeps a step only if the network
with the signs is better for it.
"""

import torch
from torch import nn

import dladmm
from dladmm import baselines
from dladmm.activations import get_activation

data = dladmm.datasets.load("digits")
given = data.x_train, data.y_train
ITERATIONS = 20


def accuracy(module):
    with torch.no_grad():
        return (module(data.x_test).argmax(1) == data.y_test).double().mean()


class StraightThrough(nn.Module):
    """A jump with the gradient of the ramp between its lowest and its highest level."""

    def __init__(self, name):
        super().__init__()
        self.jump = get_activation(name).module()
        self.low = -1.0 if name == "sign" else 0.0

    def forward(self, z):
        soft = z.clamp(self.low, 1)
        return soft + (self.jump(z) - soft).detach()


def mlp(jump):
    return nn.Sequential(nn.Linear(64, 200), jump, nn.Linear(200, 10))


def cnn(jump):
    image = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 6, 3, padding=1), jump, nn.MaxPool2d(2))
    return nn.Sequential(image, nn.Flatten(), nn.Linear(96, 10))


# %%
# Signs, steps and levels, each network trained both ways.
for network, name in ((mlp, "sign"), (mlp, "step"), (mlp, "quantised"), (cnn, "sign")):
    adam = baselines.train("adam", network(StraightThrough(name)), *given, max_iter=ITERATIONS)
    module = network(get_activation(name).module())
    dladmm.train(module, *given, mode="accelerated", scale_inputs=False, max_iter=ITERATIONS)
    print(
        f"{network.__name__} of {name} activations, {ITERATIONS} iterations: straight-through with Adam "
        f"{accuracy(adam.module):.3f}, dlADMM {accuracy(module):.3f}"
    )

# %%
# Weights under a penalty or a constraint: zeros are exact zeros, and none is ever negative.
settings = {"mode": "convergent", "nu": 10.0, "damping": 1.0, "init_scale": 1.0}
for name, penalty in (("step", {"name": "l1", "strength": 3.0}), ("relu", {"name": "non_negative"})):
    chain = dladmm.mlp([64, 100, 10], name)
    found = dladmm.train(chain, *given, regularizer=penalty, max_iter=ITERATIONS, **settings)
    weights = torch.cat([W.flatten() for W in found.state.W])
    shares = f"{(weights == 0).double().mean():.0%} of them zero, the smallest {weights.min():.2f}"
    print(f"{name} with {penalty['name']} weights: test {accuracy(found.module):.3f}, {shares}")

# %%
# Convergent mode, with what the theory says of jumps.
settings |= {"regularizer": {"name": "l2", "strength": 3.0}, "max_iter": 2 * ITERATIONS}
result = dladmm.train(dladmm.mlp([64, 400, 10], "sign"), *given, **settings)
print(f"convergent mode, {2 * ITERATIONS} iterations: test accuracy {accuracy(result.module):.3f}")
print(f"hidden units take the values {result.module[:2](data.x_test).unique().tolist()}")
print(result.certificate)
