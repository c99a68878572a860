"""``train``: trains a torch module or a chain on samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from dladmm.api.arguments import copy_into, fresh_parameters, module_parameters, shard_samples
from dladmm.api.streams import stream_of_arrays
from dladmm.base.errors import InputError
from dladmm.callbacks import Callback
from dladmm.compute.communicator import ALONE, Communicator
from dladmm.engine.memory_limit import bytes_of, chunk, needs_of
from dladmm.engine.method import MethodFactory
from dladmm.engine.options import make_options
from dladmm.losses import CallableLoss, Loss, Risk, get_loss
from dladmm.network.chain import Chain, from_module, jump_settings
from dladmm.network.scaling import STREAMED_LENGTH, Scaling
from dladmm.regularizers import Regularizer
from dladmm.training.checks import (
    check_callbacks,
    check_device,
    check_dtype,
    check_features,
    check_fits,
    check_sample_weight,
    check_seed,
    check_several_classes,
    check_source,
    check_target_mask,
    check_targets,
    check_validation,
    to_array,
)
from dladmm.training.trainer import Result, Trainer


class EstimatedConstant(UserWarning):
    """Warning: the Lipschitz constant H of a loss was estimated."""


@shard_samples
def train(
    model: nn.Module | Chain,
    X: Any,
    y: Any = None,
    *,
    loss: str | dict[str, Any] | Loss | Callable[[Tensor, Tensor], Tensor] = "cross_entropy",
    regularizer: str | dict[str, Any] | Regularizer | None = "auto",
    preset: str = "default",
    init: str = "fresh",
    prox: str = "auto",
    random_state: int = 0,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "float32",
    sample_weight: Any = None,
    target_mask: Any = None,
    validation: tuple[Any, ...] | Callable[[int, int], tuple[Any, ...]] | None = None,
    callbacks: Sequence[Callback] = (),
    method: MethodFactory | None = None,
    communicator: Communicator | None = None,
    **options: Any,
) -> Result:
    """Train a network with dlADMM (Algorithms 1 and 2 of the paper).

    Parameters
    ----------
    model : nn.Module or Chain
        An ``nn.Sequential`` that ends in ``nn.Linear``, trained in place, or a :class:`~dladmm.Chain` such as
        :func:`dladmm.mlp` builds. It may contain convolutions, pooling, :class:`~dladmm.Recurrent` layers and modules
        of your own (docs/any_network.md).
    X : array or Tensor of shape (n_samples, ...)
        Inputs of any shape the network takes. A function ``X(rank, world)`` returns ``(X, y)`` or
        ``(X, y, sample_weight)`` of one rank's samples.
    y : array or Tensor of shape (n_samples,) or (n_samples, n_outputs)
        Class indices, or real targets for a regression loss; with a further axis after the samples, (n_samples, time),
        for a network with one output per time step.
    loss : str, dict, Loss or callable, default "cross_entropy"
        A function ``fn(outputs, targets)`` must be convex in the outputs (:class:`~dladmm.CallableLoss`).
    regularizer : str, dict, Regularizer or None, default "auto"
        Penalty on the weights. "auto" is the default of the mode (none in convergent mode), None is no penalty.
    preset : {"default", "paper"}
        Starting point for the options.
    init : {"fresh", "keep"}
        "fresh" draws new weights from ``random_state``, "keep" starts from the module's own weights.
    prox : {"auto", "fista"}
        How the z_L-update is solved: by the loss's exact prox where it has one, or as the paper does.
    random_state : int, default 0
    device : str or torch.device, default "auto"
        "auto" is CUDA where available, else the CPU.
    dtype : {"float32", "float64"} or torch.dtype
    sample_weight : array of shape (n_samples,), optional
        How often each sample counts; positive.
    target_mask : array of the shape of y without outputs, optional
        Which targets count: (n_samples,), or (n_samples, time).
    validation : tuple, optional
        ``(X, y)`` or ``(X, y, target_mask)``, evaluated for the history; or a function of ``(rank, world)``.
    callbacks : sequence of Callback
    method : MethodFactory, optional
        Another training method in the same loop, as in :mod:`dladmm.baselines`.
    communicator : Communicator, optional
        The ranks to train on; the default process group of ``torch.distributed`` where it is initialised.
    options
        Fields of :class:`~dladmm.TrainOptions` and :class:`~dladmm.SubproblemOptions`.

    Returns
    -------
    Result
        Status, history, certificate, the trained module and the last iterate.

    Notes
    -----
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
    comm = ALONE if communicator is None else communicator
    chosen = make_options(preset, **options)
    torch_dtype, torch_device = check_dtype(dtype), check_device(device)
    random_state, callbacks = check_seed(random_state), check_callbacks(callbacks)
    X = to_array(X, "X")
    held = None if validation is None else check_validation(validation)
    chain = model if isinstance(model, Chain) else from_module(model, sequences=X.ndim == 3)
    if chosen.mode == "accelerated":
        chosen = make_options(preset, **jump_settings(chain) | options)
    the_loss, penalty = _loss(loss), chosen.penalty(regularizer)
    n_outputs = _n_outputs(chain)
    if init not in ("fresh", "keep"):
        raise InputError(f"init must be 'fresh' or 'keep', got {init!r}.")
    if init == "keep" and isinstance(model, Chain):
        raise InputError("init='keep' needs a torch module to keep the weights of; a chain has none.")
    if prox not in ("auto", "fista"):
        raise InputError(f"prox must be 'auto' or 'fista', got {prox!r}.")

    if init == "keep" and isinstance(model, nn.Module):
        params = module_parameters(model, chain, torch_dtype, torch_device)
    else:
        params = fresh_parameters(
            chain, random_state, chosen.init_scale, chosen.init_std, torch_dtype, torch_device
        )

    at_once = None
    if chosen.max_memory is not None:
        needs = needs_of(
            chain,
            X,
            chosen,
            penalty,
            dtype=torch_dtype,
            device=torch_device,
            n_validation=0 if held is None else len(held[0]),
            counts=sample_weight is not None,
        )
        at_once = chunk(needs, bytes_of(chosen.max_memory), X, method)

    def prepare(features: Any, targets: Any, mask: Any, suffix: str) -> tuple[Tensor, Tensor, Tensor | None]:
        where: dict[str, Any] = {"dtype": torch_dtype, "device": torch_device}
        named: dict[str, Any] = {"name": "X" + suffix, "may_be_empty": not comm.alone, **where}
        if at_once is None:
            x = check_features(features, chain, **named)
        else:  # the engine accepts a source of rows in place of a tensor
            x = cast(Tensor, check_source(features, chain, at_once=at_once, **named))
        positions = check_fits(chain, params, x, n_outputs, "X" + suffix)
        target = check_targets(
            targets, the_loss, len(x), n_outputs, name="y" + suffix, positions=positions, **where
        )
        if mask is None:
            return x, target, None
        return (
            x,
            target,
            check_target_mask(mask, len(x), positions, x, "target_mask" + suffix, not comm.alone),
        )

    x, target, counts = prepare(X, y, target_mask, "")
    if the_loss.lacks_H:
        if not comm.alone:
            raise InputError("H of a loss is estimated in one process only; give CallableLoss an H.")
        the_loss = the_loss.with_estimated_H(target)
        warnings.warn(
            f"H of the loss was not given and is estimated as {the_loss.H:.4g}, twice the largest curvature seen: the "
            "certificate is as good as this estimate. Give CallableLoss an H where you know one.",
            EstimatedConstant,
            stacklevel=2,
        )
    solver: Literal["auto", "fista"] = "fista" if prox == "fista" else "auto"
    risk = Risk(the_loss, target, counts, solver, comm)
    row_weight = None if sample_weight is None else check_sample_weight(sample_weight, x)
    held_out = None
    if held is not None:
        held_x, held_y, held_counts = prepare(*held, " of validation")
        held_out = held_x, Risk(the_loss, held_y, held_counts)
    comm.all_clear()
    comm.from_first(*(p for block in params for p in block.values()))
    check_several_classes(the_loss, target if counts is None else target[counts[:, 0] > 0], comm)
    scaling = None
    if chosen.scale_inputs:
        length = STREAMED_LENGTH if chosen.mode == "streaming" or method is not None else None
        scaling = Scaling.fit(chain.blocks[0], x, row_weight, at_once, comm, length)
    n_labelled = risk.n_labelled(row_weight)
    batches = None
    if chosen.mode == "streaming":
        stream = stream_of_arrays(x, target, counts, row_weight, chain, chosen, random_state)
        batches, x, row_weight = stream.batches, stream.x, stream.counts
        risk = replace(risk, target=stream.target, weight=stream.weight)
    if scaling is not None:
        x = scaling.apply(x)
        held_out = None if held_out is None else (scaling.apply(held_out[0]), held_out[1])
        params = scaling.unfold(params) if init == "keep" else params
    trainer = Trainer(
        chain,
        x,
        risk,
        chosen,
        penalty=chosen.penalty(regularizer, n_labelled),
        params=params,
        counts=row_weight,
        validation=held_out,
        callbacks=callbacks,
        method=method,
        scaling=scaling,
        seed=random_state,
        chunk_rows=at_once,
        batches=batches,
        comm=comm,
    )
    result = trainer.fit()
    if isinstance(model, nn.Module):
        copy_into(model, result.module)
    return result


def _loss(spec: Any) -> Loss:
    is_function = callable(spec) and not isinstance(spec, Loss)
    return CallableLoss(spec) if is_function else get_loss(spec)


def _n_outputs(chain: Chain) -> int:
    last = chain.blocks[-1]
    if last.n_out is not None:
        return last.n_out
    raise InputError(f"cannot tell the number of outputs of the last block {last!r}; end with a Linear.")
