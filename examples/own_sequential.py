"""
Your own nn.Sequential
======================

Trained in place; it stays an ordinary torch module.
"""

import torch
from torch import nn

import dladmm

data = dladmm.datasets.load("digits")
network = nn.Sequential(nn.Linear(64, 50), nn.LeakyReLU(0.1), nn.Linear(50, 10))

result = dladmm.train(network, data.x_train, data.y_train, max_iter=30)
print(result)

with torch.no_grad():
    accuracy = (network(data.x_test).argmax(1) == data.y_test).double().mean()
print(f"test accuracy {accuracy:.3f}")

# %%
# Fine-tune with torch.optim, as with any module.
optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
for _ in range(20):
    optimiser.zero_grad()
    nn.functional.cross_entropy(network(data.x_train), data.y_train).backward()
    optimiser.step()
with torch.no_grad():
    accuracy = (network(data.x_test).argmax(1) == data.y_test).double().mean()
print(f"after 20 steps of Adam {accuracy:.3f}")
