"""Inputs of recurrent layers, and of linear layers at every position, are scaled feature by feature."""

import pytest
import torch
from torch import nn

from dladmm import Recurrent, train
from dladmm.blocks import Affine, Positionwise, RecurrentStates
from dladmm.network.scaling import FAR_OUT, Scaling

F64 = torch.float64
CELLS = [nn.RNN, nn.GRU, nn.LSTM]


def sequences(rows=40, steps=7, seed=0):
    """Features of very different units and origins, the last one constant."""
    x = torch.randn(rows, steps, 4, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return x * torch.tensor([1e-3, 1e4, 1.0, 0.0]) + torch.tensor([0.0, -3e4, 200.0, 0.1])


def recurrent(cell=nn.GRU, bias=True, n_in=4):
    return RecurrentStates(Recurrent(cell(n_in, 5, bias=bias, batch_first=True).double()))


def blocks():
    return [recurrent(cell, bias) for cell in CELLS for bias in (True, False)] + [
        Positionwise(Affine(4, 5, bias)) for bias in (True, False)
    ]


@pytest.mark.parametrize("block", blocks(), ids=lambda b: f"{b!r}-{b.bias}")
def test_folding_undoes_the_scaling_of_sequences(block):
    x = sequences()
    scaling = Scaling.fit(block, x)
    params = block.initial_parameters(torch.Generator().manual_seed(1), 1.0)
    [folded] = scaling.fold([params])
    expected = block.forward(params, scaling.apply(x))
    torch.testing.assert_close(block.forward(folded, x), expected, rtol=0, atol=1e-9)
    [again] = scaling.unfold([folded])
    for name, p in params.items():
        torch.testing.assert_close(again[name], p, rtol=1e-9, atol=1e-9)
    assert bool((scaling.shift == 0).all()) != block.bias


def test_every_feature_is_centred_over_all_steps_and_reaches_one():
    x = sequences()[..., :3]
    scaled = Scaling.fit(recurrent(n_in=3), x).apply(x).reshape(-1, 3)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(3, dtype=F64), rtol=0, atol=1e-12)
    torch.testing.assert_close(scaled.abs().amax(0), torch.ones(3, dtype=F64), rtol=1e-12, atol=0)


def test_a_value_far_out_does_not_set_the_scale():
    x = sequences(400)[..., 2:3]
    x[0, 0] += 1e5
    scaling = Scaling.fit(recurrent(n_in=1), x)
    deviation = (x - x.mean()).square().mean().sqrt()
    torch.testing.assert_close(scaling.scale, FAR_OUT * deviation.reshape(1))
    assert float((x - x.mean()).abs().max() / scaling.scale) > 5


@pytest.mark.parametrize("value", [0.0, 0.1, -1e8])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_feature_constant_up_to_rounding_is_left_alone(value, dtype):
    x = sequences().to(dtype)
    x[..., 3] = value
    x[::2, :, 3] *= 1 + 2 * torch.finfo(dtype).eps
    scaling = Scaling.fit(recurrent(), x)
    assert float(scaling.scale[3]) == 1.0
    assert bool(torch.isfinite(scaling.apply(x)).all())


def test_weights_count_as_repetition_and_rows_of_weight_nothing_not_at_all():
    x, times = sequences(12), torch.arange(12) % 3 + 1
    one = Scaling.fit(recurrent(), x, times[:, None].double())
    other = Scaling.fit(recurrent(), x.repeat_interleave(times, 0))
    torch.testing.assert_close((one.shift, one.scale), (other.shift, other.scale), rtol=1e-9, atol=1e-9)
    alone = x[:1, :1].expand(12, 7, 4).clone()
    alone[3] += 1e3
    counted = torch.ones(12, 1, dtype=F64)
    counted[3] = 0
    assert bool((Scaling.fit(recurrent(), alone, counted).scale > 0).all())


class Others:
    """All rows are on another rank: what it adds up is told to this one, whose own rows add nothing."""

    alone, device = False, torch.device("cpu")

    def __init__(self, told):
        self.told = told

    def _next(self, own):
        others = next(self.told)
        assert all(not torch.isfinite(o).any() or not o.any() for o in own)
        return others

    def total(self, *own):
        return self._next(own)

    def largest(self, *own):
        return self._next(own)


class Recorded(Others):
    def _next(self, own):
        self.told.append(list(own))
        return list(own)


def test_a_rank_without_rows_has_the_scale_of_the_others():
    x, block, told = sequences(), Positionwise(Affine(4, 5)), []
    whole = Scaling.fit(block, x, comm=Recorded(told))
    found = Scaling.fit(block, x[:0], comm=Others(iter(told)))
    assert len(told) == 3
    torch.testing.assert_close((found.shift, found.scale), (whole.shift, whole.scale), rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["streaming", "accelerated", "convergent"])
@pytest.mark.parametrize("first", ["GRU", "positions"])
def test_units_and_origins_of_sequences_drop_out(mode, first):
    """What is trained does not depend on them, and what is handed out takes the inputs as they are."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 5, 3, generator=generator, dtype=F64)
    y = (x[:, :, 0].sum(1) > 0).long()

    def outputs(inputs):
        layers = {
            "GRU": [Recurrent(nn.GRU(3, 6, batch_first=True)), nn.Linear(6, 2)],
            "positions": [nn.Linear(3, 6), nn.ReLU(), nn.Flatten(), nn.Linear(30, 2)],
        }[first]
        module = nn.Sequential(*layers).double()
        train(module, inputs, y, mode=mode, max_iter=3, random_state=0, dtype="float64", device="cpu",
              scale_inputs=True)  # fmt: skip
        with torch.no_grad():
            return module(inputs)

    there = x * torch.tensor([1e4, 1e-4, 3.0]) + torch.tensor([7e4, -5e-4, 11.0])
    torch.testing.assert_close(outputs(there), outputs(x), rtol=1e-4, atol=1e-5)
