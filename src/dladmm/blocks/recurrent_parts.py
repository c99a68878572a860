"""Of a recurrent layer: where it begins, its parameters as two matrices, and the states that the network takes."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dladmm.blocks.linear_map import LinearMap
from dladmm.solvers.subproblems import Params

FASTEST = -2.0
"""The smallest initial bias of the gate that keeps what a unit remembers: an eighth of it from step to step."""

STEPS = 100
"""Of a sequence, where nothing is known of it."""

OPEN = 2.0
"""Initial bias of the gates that let states through: of a GRU's reset gate, of an LSTM's output gate."""

GATED_INPUTS = 0.5
"""Initial weights of a gated layer's inputs, in He's deviations."""


def initial(rnn: nn.RNNBase, generator: torch.Generator | None) -> Params:
    """Orthogonal matrices U, one per gate, and memories of many lengths; without a generator the layer's own values.

    With an orthogonal U states keep their length from step to step, so that what came first is there at the end. W is
    small, so that nothing drives units into saturation: of torch's deviation for an Elman network, of ``GATED_INPUTS``
    for a gated layer.
    """
    own = {name: p.detach().double().cpu().clone() for name, p in rnn.named_parameters()}
    if generator is None:
        return own
    for p in own.values():
        deviation = (2.0 / p.shape[1]) ** 0.5 if p.ndim > 1 else 0.0
        p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * deviation)
    kind, units = type(rnn).__name__, rnn.hidden_size
    torchs = (rnn.input_size / (6 * units)) ** 0.5  # torch's deviation, 1/sqrt(3 units), over He's
    own["weight_ih_l0"].mul_(GATED_INPUTS if kind in ("GRU", "LSTM") else torchs)
    for U in torch.split(own["weight_hh_l0"], units):
        U.copy_(torch.linalg.qr(U)[0])
    return with_memories(own, kind, STEPS)


def with_memories(params: Params, kind: str, steps: int) -> Params:
    """The parameters of a gated layer with biases by which its units remember for one step up to a third of ``steps``.

    They are spread evenly over the units, as Tallec and Ollivier (2018) propose: a unit whose gate has the bias b keeps
    the share ``sigmoid(b)`` of its state, for about ``e^b`` steps. With -2 for all of them sequences of 100 steps were
    not learned, and units that remember for much longer than a sequence lasts say little (docs/network_notes.md).
    """
    if kind not in ("GRU", "LSTM") or "bias_ih_l0" not in params:
        return params
    bias = params["bias_ih_l0"].clone()
    gates = bias.view(3 if kind == "GRU" else 4, -1)
    slowest = max(math.log(max(steps, 1)) - 1, FASTEST)
    keep = torch.linspace(FASTEST, slowest, gates.shape[1], dtype=bias.dtype, device=bias.device)
    if kind == "GRU":
        gates[0], gates[1] = OPEN, keep
    else:
        gates[0], gates[1], gates[3] = -keep, keep, OPEN  # what is kept is not written over
    return params | {"bias_ih_l0": bias}


class StateSelection(LinearMap):
    """What of the states the rest of the network sees: the hidden ones, of the last time step or of all."""

    def __init__(self, n_hidden: int, last: bool) -> None:
        super().__init__(_Selected(n_hidden, last))

    def to_module(self, params: Params) -> nn.Module:
        return nn.Sequential()  # the recurrent layer itself returns no more than that


class _Selected(nn.Module):
    def __init__(self, n_hidden: int, last: bool) -> None:
        super().__init__()
        self.n_hidden, self.last = n_hidden, last

    def forward(self, s: Tensor) -> Tensor:
        hidden = s[..., : self.n_hidden]
        return hidden[:, -1] if self.last else hidden


def joined_parameters(params: Params, bias: bool) -> list[Tensor]:
    """(W, b) of the inputs and of the states, each as one matrix."""
    names = ("ih", "hh")
    if not bias:
        return [params[f"weight_{n}_l0"] for n in names]
    return [torch.cat([params[f"weight_{n}_l0"], params[f"bias_{n}_l0"][:, None]], 1) for n in names]


def parted_parameters(matrices: list[Tensor], bias: bool) -> Params:
    """What :func:`joined_parameters` joined."""
    params: Params = {}
    for name, matrix in zip(("ih", "hh"), matrices, strict=True):
        params[f"weight_{name}_l0"] = matrix[:, :-1] if bias else matrix
        if bias:
            params[f"bias_{name}_l0"] = matrix[:, -1]
    return params
