"""Muon as people use it: matrices of hidden layers by torch's Muon, all other parameters by AdamW."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, optim

AVAILABLE = hasattr(optim, "Muon")
"""torch has Muon from 2.9 on."""


class MuonWithAdamW:
    """Two optimisers as one.

    Muon has every matrix but the last one, the network's head; filters of convolutions, biases and the head belong to
    AdamW. Both have the same learning rate, to which Muon scales its step (``match_rms_adamw``), and neither decays
    weights: a penalty is part of the objective.
    """

    def __init__(self, params: list[Tensor], lr: float) -> None:
        matrices = [p for p in params if p.ndim == 2][:-1]
        others = [p for p in params if not any(p is matrix for matrix in matrices)]
        fused = params[0].is_cuda
        self._parts: list[tuple[int, optim.Optimizer]] = []
        if matrices:
            muon = optim.Muon(matrices, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
            self._parts.append((0, muon))
        self._parts.append((len(matrices), optim.AdamW(others, lr=lr, weight_decay=0.0, fused=fused)))
        self.param_groups = [group for _, part in self._parts for group in part.param_groups]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of both."""
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        for _, part in self._parts:
            part.step()
        return value

    def zero_grad(self) -> None:
        for _, part in self._parts:
            part.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """``state`` by the number of the parameter: Muon's first, then AdamW's."""
        state = {
            first + number: held
            for first, part in self._parts
            for number, held in part.state_dict()["state"].items()
        }
        return {"state": state, "param_groups": []}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for first, part in self._parts:
            own = part.state_dict()
            last = first + sum(len(group["params"]) for group in own["param_groups"])
            held = {n - first: value for n, value in state_dict["state"].items() if first <= n < last}
            part.load_state_dict({"state": held, "param_groups": own["param_groups"]})
        self.param_groups = [group for _, part in self._parts for group in part.param_groups]
