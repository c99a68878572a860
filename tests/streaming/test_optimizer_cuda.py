"""StreamingADMM on a GPU: the steps of a CPU, recorded steps, layers that cuDNN runs in one node."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dladmm import StreamingADMM
from dladmm.streaming.uses import uses_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def made(dtype=torch.float32):
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 8, 3, stride=2), nn.GELU())
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(72, 80), nn.GELU(), nn.Linear(80, 4)).to(dtype)


def batch(i, dtype=torch.float32):
    generator = torch.Generator().manual_seed(i)
    x = torch.randn(16, 3, 8, 8, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, 4, (16,), generator=generator)


def test_steps_of_a_cpu():
    ours, theirs = made(torch.float64), made(torch.float64).cuda()
    for module, device in ((ours, "cpu"), (theirs, "cuda")):
        optimizer = StreamingADMM(module, total_steps=20)
        for i in range(20):
            x, y = (t.to(device) for t in batch(i, torch.float64))
            optimizer.zero_grad()
            F.cross_entropy(module(x), y).backward()
            optimizer.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q.cpu(), rtol=1e-6, atol=1e-8)


def test_recorded_steps_are_eager_ones():
    module = made().cuda()
    optimizer = StreamingADMM(module, total_steps=60)
    x, y = (t.cuda() for t in batch(0))

    def step(module=module, optimizer=optimizer):
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(module(x), y).backward()
        optimizer.step()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(9):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    again, other = copy.deepcopy((module, optimizer))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for i in (10, 11):
        x_new, y_new = (t.cuda() for t in batch(i))
        x.copy_(x_new)
        y.copy_(y_new)
        graph.replay()
        step(again, other)
    step()  # one that is not recorded observes
    step(again, other)
    assert optimizer.param_groups[0]["steps"] == other.param_groups[0]["steps"] == 12
    for p, q in zip(module.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("packed", [False, True])
def test_recurrent_layers_in_one_node(kind, packed):
    """cuDNN's node holds all layers: the rows are those of a CPU, where every step in time is a node."""
    torch.manual_seed(0)
    module = kind(5, 6, 2, bidirectional=True).double()
    x = torch.randn(4, 3, 5, dtype=torch.float64)
    x = nn.utils.rnn.pack_sequence(list(x.unbind(1))) if packed else x
    grams = []
    for device in ("cpu", "cuda"):
        module = module.to(device)
        out = module(x.to(device))[0]
        weights = {id(p): p for p in module.parameters()}
        uses, _ = uses_of([out.data if packed else out], weights)
        names, gram = {id(p): n for n, p in module.named_parameters()}, {}
        for use in uses:
            A = use.inputs(10**9)[0].cpu()
            name = names[id(use.weight)]
            gram[name] = gram.get(name, 0) + A.mT @ A
        grams.append(gram)
    assert len(grams[0]) == 8
    assert {use.node.name() for use in uses} == {"CudnnRnnBackward0"}
    for name, gram in grams[0].items():
        if not packed or "_ih_" in name:  # of packed rows the outputs stand for the states one step earlier
            torch.testing.assert_close(grams[1][name], gram, rtol=1e-6, atol=1e-8)
