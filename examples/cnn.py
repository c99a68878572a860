"""
A convolutional network
=======================

Trained by ADMM: no learning rate, no back-propagation through the layers.
"""

import torch
from torch import nn

import dladmm

data = dladmm.datasets.load("digits")
images = lambda x: x.reshape(-1, 1, 8, 8)  # noqa: E731
network = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(),
    nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 10),
)  # fmt: skip

result = dladmm.train(network, images(data.x_train), data.y_train, mode="accelerated", max_iter=25)
print(result)
print(result.certificate)

# %%
# Every layer became a block; the network that comes out is the one that went in.
with torch.no_grad():  # the network was trained in place and is an ordinary torch module
    accuracy = (network(images(data.x_test)).argmax(1) == data.y_test).double().mean()
print(f"test accuracy {accuracy:.3f}")
