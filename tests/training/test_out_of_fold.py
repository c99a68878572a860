"""When a cross-fitted run ends, what it is judged by, and which parameters it keeps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dladmm.base.history import History, Status
from dladmm.callbacks.out_of_fold import PATIENCE, OutOfFold
from dladmm.engine.streaming import Streaming
from dladmm.losses import CrossFitted, get_loss

F64 = torch.float64


def looking(monkeypatch, values, counts=None, steps=1000):
    """The callback after looks that found these losses, the weights they were given, and the run's stand-in."""
    loss = CrossFitted(get_loss("squared"), 4, 1)
    target = loss.targets(torch.arange(3.0, dtype=F64)[:, None], torch.tensor([0, 1, 2]))
    callback, weights, stops, restored = OutOfFold(loss), [], [], []
    method = Streaming.__new__(Streaming)
    method.step_number = steps
    trainer = SimpleNamespace(
        engine=SimpleNamespace(risk=SimpleNamespace(target=target), counts=counts, samples=3.0),
        state=SimpleNamespace(
            outputs=[torch.zeros(3, 4, dtype=F64)], clone_parameters=lambda: [len(weights)]
        ),
        history=History(),
        method=method,
        request_stop=stops.append,
        restore=restored.append,
    )
    for value in values:
        trainer.history.append(iteration=trainer.history.n_iter + 1, objective=1.0)
        monkeypatch.setattr(
            callback, "_judged", lambda z, y, weight, value=value: weights.append(weight) or (value, 1.0)
        )
        callback.on_epoch_end(trainer)
    callback.on_loop_end(trainer)
    return callback, weights, stops, restored


@pytest.mark.parametrize(
    ("values", "stopped"),
    [([1.0, 0.995, 0.991], True), ([1.0, 0.995, 0.98], False), ([1.0, 0.999], False), ([1.0, 0.0005], True)],
)
def test_a_run_ends_after_two_looks_that_gain_less_than_a_hundredth(values, stopped, monkeypatch):
    callback, _, stops, _ = looking(monkeypatch, values)
    assert (stops == [Status.EARLY_STOPPED]) is stopped
    assert callback._waited == (PATIENCE if values == [1.0, 0.995, 0.991] else callback._waited)
    assert looking(monkeypatch, [1.0, 1.0, 1.0], steps=10)[2] == []


def test_the_best_parameters_are_put_back_and_the_last_ones_stay(monkeypatch):
    _, _, _, restored = looking(monkeypatch, [1.0, 0.5, 0.7])
    assert restored == [[2]]
    assert looking(monkeypatch, [1.0, 0.5])[3] == []


def test_rows_count_as_often_as_they_count(monkeypatch):
    counts = torch.tensor([[1.0], [2.0], [5.0]], dtype=F64)
    (weight,) = looking(monkeypatch, [1.0], counts)[1]
    assert weight.tolist() == [0.125, 0.25, 0.625]
    (alike,) = looking(monkeypatch, [1.0])[1]
    assert alike.tolist() == pytest.approx([1 / 3] * 3)
