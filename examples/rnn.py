"""
A recurrent network
===================

It reads digits row by row; its hidden states are variables of the optimisation.
"""

import torch
from torch import nn

import dladmm

data = dladmm.datasets.load("digits")
rows = lambda x: x.reshape(-1, 8, 8)  # noqa: E731  # eight time steps of eight pixels
network = nn.Sequential(dladmm.Recurrent(nn.RNN(8, 32, batch_first=True)), nn.Linear(32, 10))

result = dladmm.train(network, rows(data.x_train), data.y_train, mode="accelerated", max_iter=30)
print(result)

# %%
# The layer is used as any other.
with torch.no_grad():
    accuracy = (network(rows(data.x_test)).argmax(1) == data.y_test).double().mean()
print(f"test accuracy {accuracy:.3f}")
