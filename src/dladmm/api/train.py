"""``train``: trains a torch module or a chain on samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dladmm.api.arguments import fresh_parameters, shard_samples
from dladmm.api.handing_back import check_same_outputs, copy_into
from dladmm.api.sample_problem import EstimatedConstant, sample_trainer
from dladmm.base.errors import BatchError, InputTypeError
from dladmm.callbacks import Callback, ProgressBar
from dladmm.compute.communicator import Communicator
from dladmm.engine.method import MethodFactory
from dladmm.losses import Loss
from dladmm.network.chain import Chain
from dladmm.network.whole import inner_module, is_whole
from dladmm.regularizers import Regularizer
from dladmm.training.checks import check_callbacks
from dladmm.training.result import Result


@shard_samples
def train(
    model: nn.Module | Chain,
    X: Any,
    y: Any = None,
    *,
    loss: str | dict[str, Any] | Loss | Callable[[Tensor, Tensor], Tensor] = "cross_entropy",
    regularizer: str | dict[str, Any] | Regularizer | None = "auto",
    preset: str = "default",
    init: str = "auto",
    prox: str = "auto",
    random_state: int = 0,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "float32",
    sample_weight: Any = None,
    scale_targets: bool | None = None,
    target_mask: Any = None,
    validation: tuple[Any, ...] | Callable[[int, int], tuple[Any, ...]] | None = None,
    callbacks: Sequence[Callback] = (),
    verbose: bool = False,
    method: MethodFactory | None = None,
    communicator: Communicator | None = None,
    weights: Any = None,
    **options: Any,
) -> Result:
    """Train a network with dlADMM.

    Parameters
    ----------
    model : nn.Module or Chain
        Any module, trained in place, or a :class:`~dladmm.Chain` such as :func:`dladmm.mlp` builds. Convergent and
        accelerated mode need one that is a chain of layers and ends in ``nn.Linear`` (docs/any_network.md).
    X : array or Tensor of shape (n_samples, ...), or a stream
        Inputs of any shape the network takes; of several inputs a tuple or a dictionary of arrays. A function
        ``X(rank, world)`` returns ``(X, y)`` or ``(X, y, sample_weight)`` of one rank's samples. With
        ``mode="streaming"`` also a sparse matrix, or without y a stream: a ``DataLoader``, a ``Dataset``, an iterable
        of batches ``(x, y)`` or ``(x, y, weight)``, or a function without arguments that returns one (see Notes).
    y : array or Tensor of shape (n_samples,) or (n_samples, n_outputs)
        Class indices, or real targets for a regression loss; with a further axis after the samples, (n_samples, time),
        for a network with one output per time step.
    loss : str, dict, Loss or callable, default "cross_entropy"
        Also a loss of torch, such as ``nn.CrossEntropyLoss(label_smoothing=0.1)`` or ``F.mse_loss``. A function
        ``fn(outputs, targets)`` of your own returns one number for the batch, or one per row; in convergent and
        accelerated mode it must be convex in the outputs (:class:`~dladmm.CallableLoss`).
    regularizer : str, dict, Regularizer or None, default "auto"
        Penalty on the weights. "auto" is the default of the mode (none in convergent mode), None is no penalty.
    preset : {"default", "paper"}
        Starting point for the options.
    init : {"auto", "fresh", "keep"}
        "fresh" draws new weights from ``random_state``, "keep" starts from the module's own weights. "auto" keeps those
        of a module that is no chain of layers, and of a chain where a layer's weights are not as torch's own
        initialisation draws them (the network was trained before, or initialised by you), with a warning; else it
        draws. Parameters with ``requires_grad=False`` are never changed.
    prox : {"auto", "fista"}
        How the z_L-update is solved: by the loss's exact prox where it has one, or as the paper does.
    random_state : int, default 0
    device : str or torch.device, default "auto"
        "auto" is CUDA where available, else the CPU.
    dtype : {"float32", "float64"} or torch.dtype
    sample_weight : array of shape (n_samples,), optional
        How often each sample counts; positive.
    scale_targets : bool, optional
        Regression: train on targets at a common scale, which the last layer undoes, so that y may have any unit; the
        history's losses, and the bend of Huber's loss, are then in units of that scale. None is True but for the
        paper's algorithm (``mode="convergent"``) and for baselines.
    target_mask : array of the shape of y without outputs, optional
        Which targets count: (n_samples,), or (n_samples, time).
    validation : tuple, optional
        ``(X, y)`` or ``(X, y, target_mask)``, evaluated for the history; or a function of ``(rank, world)``.
    callbacks : sequence of Callback
    verbose : bool, default False
        Show a progress bar on a terminal, lines elsewhere (:class:`~dladmm.callbacks.ProgressBar`).
    method : MethodFactory, optional
        Another training method in the same loop, as in :mod:`dladmm.baselines`.
    communicator : Communicator, optional
        The ranks to train on; the default process group of ``torch.distributed`` where it is initialised.
    weights : {"real", "binary", "ternary"}, int, dict, WeightSet or a list of these, optional
        The set that the weights of linear layers are of: +1 and -1, also 0, a grid of so many bits, or at most
        ``per_unit`` weights per unit (:class:`~dladmm.regularizers.WeightSet`). One is for all layers but the last; a
        list has one for each. Trained with ``mode="streaming"``.
    options
        Fields of :class:`~dladmm.TrainOptions` and :class:`~dladmm.SubproblemOptions`, such as ``max_iter``:
        iterations, or passes over the data with ``mode="streaming"``, which is what "auto", the default, stands for.
        "convergent" is the paper's algorithm (Algorithms 1 and 2), whose theorems the certificate checks;
        "accelerated" sees all rows in every iteration (docs/choosing.md).

    Returns
    -------
    Result
        Status, history, certificate, the trained module and the last iterate.

    Notes
    -----
    ``mode="streaming"`` makes a sweep per mini-batch, and ``max_iter`` counts passes over the data: 10 for images
    and for 50,000 rows or more, else 20, or as many as make 300 steps, at most 100. Rows of arrays, memmaps, sparse
    matrices and map-style data sets are shuffled from ``random_state``; of a memmap only the rows of a batch are
    read. Other streams keep their own order and batches, which may differ in size. An iterator or generator gives
    one pass. Inputs are scaled by all rows of arrays in memory, else by the first rows of the stream (up to
    16,384), from which the monitor sample of the history is drawn too; memory does not grow with the rows. On
    several ranks every rank brings a stream of its own, and a pass ends when the first of them does.

    Where ``torch.distributed`` has been initialised, every rank calls this function with the same arrays and trains on
    its own share of the samples (docs/distributed.md).

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> result = train(mlp([64, 30, 10]), X / 16, y, max_iter=5)
    >>> result.status.name
    'MAX_ITER'
    """
    if not isinstance(verbose, (bool, int)):
        raise InputTypeError(f"verbose must be True or False, got {verbose!r}.")
    model = inner_module(model)
    prepared = sample_trainer(
        model,
        X,
        y,
        loss=loss,
        regularizer=regularizer,
        preset=preset,
        init=init,
        prox=prox,
        random_state=random_state,
        device=device,
        dtype=dtype,
        sample_weight=sample_weight,
        scale_targets=scale_targets,
        target_mask=target_mask,
        validation=validation,
        callbacks=[ProgressBar(), *check_callbacks(callbacks)] if verbose else callbacks,
        method=method,
        communicator=communicator,
        weights=weights,
        **options,
    )
    trainer = prepared.trainer
    try:
        result = trainer.fit()
    except BatchError:
        if isinstance(model, nn.Module):
            copy_into(model, trainer.present_network())
        raise
    given = model if isinstance(model, nn.Module) else result.module
    if given is model:
        copy_into(given, result.module)
    if is_whole(trainer.engine.chain):
        return result
    if given is model or (trainer.scaling is not None and trainer.scaling.far):
        params = trainer.state.params if trainer.units is None else trainer.units.fold(trainer.state.params)
        check_same_outputs(given, result.module, trainer.engine.chain, params, trainer.scaling, prepared.few)
    return result


__all__ = ["EstimatedConstant", "fresh_parameters", "train"]
