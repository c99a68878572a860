"""The trainer of a network on samples: arguments checked, data prepared, nothing trained yet."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from dladmm.api.arguments import fresh_parameters, module_parameters, started
from dladmm.api.choosing import with_mode
from dladmm.api.given import RowChecks, check_chain, check_names, check_settings, init_of, is_stream
from dladmm.api.handing_back import COMPARED_ROWS
from dladmm.api.stream_batches import FirstRows
from dladmm.api.streams import (
    Stream,
    check_passes,
    first_batches,
    opened,
    stream_of_arrays,
    stream_of_source,
    unwrapped,
)
from dladmm.base.errors import InputError
from dladmm.base.parts import Parts
from dladmm.blocks import Whole
from dladmm.callbacks import Callback
from dladmm.compute.communicator import ALONE, Communicator
from dladmm.engine.ahead import make_kernels_ahead
from dladmm.engine.batches import Batch
from dladmm.engine.memory import known_widths, needs_of, streamed_peak
from dladmm.engine.memory_limit import bytes_of, check_streamed, chunk
from dladmm.engine.method import NOTHING, MethodFactory, wanted_by
from dladmm.engine.options import ACCELERATED, make_options
from dladmm.losses import (
    BatchLoss,
    CallableLoss,
    Loss,
    Risk,
    Units,
    foldable,
    get_loss,
    ignored_by_torch,
    loss_of_torch,
)
from dladmm.network.chain import Chain, from_module, own_settings
from dladmm.network.finite import with_weights
from dladmm.network.given_module import trained_layer
from dladmm.network.scaling import STREAMED_LENGTH, Scaling
from dladmm.network.whole import is_whole, streamed_network
from dladmm.regularizers import Regularizer
from dladmm.training.checks import (
    check_callbacks,
    check_device,
    check_dtype,
    check_fits,
    check_sample_weight,
    check_seed,
    check_several_classes,
    check_validation,
    to_array,
    to_tensor,
)
from dladmm.training.trainer import Trainer


class EstimatedConstant(UserWarning):
    """Warning: the Lipschitz constant H of a loss was estimated."""


@dataclass(frozen=True)
class Prepared:
    """A trainer that has not begun, the checks that its rows went through, and a few rows as they were given."""

    trainer: Trainer
    checks: RowChecks
    few: Tensor


def sample_trainer(
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
    method: MethodFactory | None = None,
    communicator: Communicator | None = None,
    one_class: bool = False,
    weights: Any = None,
    **options: Any,
) -> Prepared:
    """The trainer of :func:`dladmm.train`, whose arguments these are.

    ``one_class``: targets may be of one class only, as those of one call of ``partial_fit``.
    """
    comm = ALONE if communicator is None else communicator
    others = {"scale_targets": scale_targets, "device": device, "regularizer": regularizer}
    check_settings({"preset": preset, "init": init, "prox": prox}, method, options | others)
    options = with_mode(options, preset=preset, method=method)
    streams = options.get("mode") == "streaming"
    torch_dtype, torch_device = check_dtype(dtype), check_device(device)
    random_state, callbacks = check_seed(random_state), check_callbacks(callbacks)
    if preset == "authors" or options.get("w_penalty", "prox") == "gradient":
        what = "preset='authors'" if preset == "authors" else "w_penalty='gradient'"
        raise InputError(
            f"{what} is for graphs (train_graph); the paper's settings for MLPs are preset='paper'."
        )
    make_options(preset, **options)  # nothing is read of a stream before all else has been checked
    held = None if validation is None else check_validation(validation)
    the_loss = _loss(loss)
    check_names(model, init, prox, method, streams)
    if scale_targets not in (None, True, False):
        raise InputError(f"scale_targets must be True, False or None, got {scale_targets!r}.")
    source = None
    inputs = targets = None
    own_loss = streams and isinstance(model, nn.Module) and _is_function(loss, the_loss)
    if streams:
        X, y, sample_weight = unwrapped(X, y, sample_weight)
        (X, inputs), (y, targets) = packed(X, "X"), packed(y, "y")
        source = opened(X, y, sample_weight, options, random_state, torch_device)
        if source is not None and target_mask is not None:
            raise InputError("target_mask goes with arrays X and y in memory; it cannot be streamed.")
        options = check_passes(source, options)
    elif is_stream(X):
        raise InputError(
            f"X is a {type(X).__name__}, a stream of batches: it needs mode='streaming', or arrays X and y."
        )
    chosen = make_options(preset, **options)
    first = None if source is None else FirstRows.read(source)
    X, some_y = (X, y) if first is None else first.batches[0][:2]
    if first is not None:
        inputs, targets = first.inputs, first.targets
    if held is not None and (inputs is not None or targets is not None):
        held = (packed(held[0], "X")[0], packed(held[1], "y")[0], *held[2:])
    if targets is not None and not own_loss:
        raise InputError(
            "y has several parts: give a loss of your own, fn(outputs, targets), that says how they count."
        )
    X = to_array(X, "X")
    # What is no table of real numbers is refused below, by name
    usable = X.ndim > 0 and not to_tensor(X[:1], "X").is_complex()
    tried = _few(X, torch_dtype, torch.device("cpu")) if usable else None
    as_it_is = streams and weights is None
    chain = _network(model, X, some_y, tried, as_it_is=as_it_is, inputs=inputs, own_loss=own_loss)
    if own_loss:
        outputs = cast(Whole, chain.blocks[0]).outputs
        assert outputs is not None
        the_loss = BatchLoss(loss, outputs, targets or cast(Parts, Parts.of((some_y,))))  # type: ignore[arg-type]
    chain = chain if weights is None else with_weights(chain, weights)
    if chosen.mode == "accelerated":
        chosen = make_options(preset, **own_settings(chain) | options)
    check_chain(chain, chosen, method)
    penalty, n_outputs = chosen.penalty(regularizer), _n_outputs(chain, tried)
    if is_whole(chain):
        # Its own weights; those that were not trained yet are a start for inputs and targets at a common scale
        generator = torch.Generator().manual_seed(random_state) if init == "fresh" else None
        if init == "auto":
            init = "fresh" if trained_layer(cast(Whole, chain.blocks[0]).module) is None else "keep"
        params = chain.initial_parameters(generator, 1.0, dtype=torch_dtype, device=torch_device)
    elif (init := init_of(init, model)) == "keep" and isinstance(model, nn.Module):
        params = module_parameters(model, chain, torch_dtype, torch_device)
    else:
        drawn = chosen.init_scale, chosen.init_std, torch_dtype, torch_device, chosen.init_rule
        params = fresh_parameters(chain, random_state, *drawn)

    if torch_device.type == "cuda" and method is None and usable:  # the trainer asks again, with its data
        make_kernels_ahead(chain, the_loss, len(X), params, chosen, torch_device)

    at_once = None
    if chosen.max_memory is not None and first is not None:
        widths = None if is_whole(chain) else known_widths(chain)
        sizes = [len(x) for x, _, _ in first.batches]
        n_held, gpu = 0 if held is None else len(held[0]), torch_device.type == "cuda"
        known = None if widths is None else (widths, sum(sizes), max(sizes), torch_dtype.itemsize)
        peak = None if known is None else streamed_peak(*known, n_validation=n_held, on_gpu=gpu)
        check_streamed(peak, bytes_of(chosen.max_memory))
    elif chosen.max_memory is not None:
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

    ignored = ignored_by_torch(loss)
    some_labels = None if ignored is None or own_loss else to_tensor(some_y, "y")
    uses_it = some_labels is not None and bool(torch.eq(some_labels, ignored or 0).any())
    checks = RowChecks(chain, params, the_loss, n_outputs, torch_dtype, torch_device, at_once, comm)
    checks = replace(checks, ignored=ignored if uses_it else None)
    if first is None:
        x, target, counts = checks.whole(X, y, target_mask)
        row_weight = None if sample_weight is None else check_sample_weight(sample_weight, x)
        rows = Batch(x, target, counts, row_weight)
    else:
        check_fits(chain, params, _few(X, torch_dtype, torch_device), n_outputs, "X")
        rows = first_batches(first, checks.batch)
        x, target, counts, row_weight = rows.on(torch_device)
    the_loss = the_loss.understood(rows.target)
    checks = replace(checks, loss=the_loss)
    held_rows = None if held is None else checks.whole(*held, " of validation")
    comm.all_clear()
    units = None
    scaled = method is None and chosen.mode != "convergent" if scale_targets is None else scale_targets
    if scaled and the_loss.kind == "regression":
        exact = rows.target.double() if first is not None else _exact_targets(checks, y, rows)
        units = _units(checks, exact, rows)
    if units is not None:
        checks = replace(checks, units=units)
        if first is None:
            rows = rows._replace(target=units.apply(exact).to(torch_dtype))
        else:
            rows = first_batches(first, checks.batch)
        target = rows.target.to(torch_device)
        held_rows = None if held is None else checks.whole(*held, " of validation")
    if the_loss.lacks_H:
        if not comm.alone:
            raise InputError("H of a loss is estimated in one process only; give CallableLoss an H.")
        the_loss = the_loss.with_estimated_H(target)
        warnings.warn(
            f"H of the loss was not given and is estimated as {the_loss.H:.4g}, twice the largest curvature seen: the "
            "certificate is as good as this estimate. Give CallableLoss an H where you know one.",
            EstimatedConstant,
            stacklevel=4,
        )
    solver: Literal["auto", "fista"] = "fista" if prox == "fista" else "auto"
    risk = Risk(the_loss, target, counts, solver, comm)
    held_out = None
    if held_rows is not None:
        held_out = held_rows[0], Risk(the_loss, held_rows[1], held_rows[2])
    wanted = NOTHING if method is None else wanted_by(method)
    streamed = chosen.mode == "streaming" or (method is not None and not wanted.accelerated)
    calls: list[Callable[[], Any]] = [
        partial(comm.from_first, *(p for block in params for p in block.values())),
        partial(risk.n_labelled, row_weight),
    ]
    if not one_class:
        counted = target if counts is None else target[counts[:, 0] > 0]
        calls.append(partial(check_several_classes, the_loss, counted, comm))
    if chosen.scale_inputs:
        length = STREAMED_LENGTH if streamed else None
        calls.append(partial(Scaling.fit, chain.blocks[0], x, row_weight, at_once, comm, length))
    if chosen.mode == "streaming" and first is None:
        calls.append(partial(stream_of_arrays, rows, chain, chosen, random_state, comm))
    _, n_labelled, *more = comm.at_once(*calls)
    stream: Stream | None = more.pop() if chosen.mode == "streaming" and first is None else None
    scaling: Scaling | None = more[-1] if chosen.scale_inputs else None
    judged = ACCELERATED if wanted.accelerated else chosen
    batches = None
    if chosen.mode == "streaming":
        if stream is None:
            assert first is not None
            stream = stream_of_source(first, rows, checks.batch, chain, torch_device, random_state, comm)
        batches = stream.batches
        if options.get("max_iter") is None:
            chosen = replace(chosen, max_iter=stream.passes)
        x, target, counts, row_weight = stream.monitor.on(torch_device)
        risk = replace(risk, target=target, weight=counts)
    if scaling is not None:
        x = scaling.apply(x)
        held_out = None if held_out is None else (scaling.apply(held_out[0]), held_out[1])
    if init == "keep":
        params = params if units is None else units.unfold(params)
        params = params if scaling is None else scaling.unfold(params)
    elif chosen.init_std is None and not is_whole(chain):
        params = started(chain, params, x)
    trainer = Trainer(
        chain,
        x,
        risk,
        chosen,
        penalty=judged.penalty(regularizer, n_labelled),
        params=params,
        counts=row_weight,
        validation=held_out,
        callbacks=callbacks,
        method=method,
        scaling=scaling,
        units=units,
        seed=random_state,
        chunk_rows=at_once,
        batches=batches,
        comm=comm,
    )
    if first is None:  # a stream is not compared: it may come in another order every time
        trainer.given = {"X": X, "y": y, "sample_weight": sample_weight, "target_mask": target_mask}
    return Prepared(trainer, checks, _few(X, torch_dtype, torch_device, COMPARED_ROWS))


def packed(value: Any, name: str) -> tuple[Any, Parts | None]:
    """A tuple or dictionary of arrays as one array, and what it was; anything else as it is."""
    if not isinstance(value, (tuple, dict)) or is_stream(value):
        return value, None
    found = Parts.of(value)
    return (value, None) if found is None else (found.pack(value, name), found)


def _is_function(given: Any, loss: Loss) -> bool:
    """Whether a loss is a plain function of outputs and targets, of which nothing is known."""
    return isinstance(loss, CallableLoss) and not isinstance(given, Loss)


def _network(
    model: nn.Module | Chain,
    X: Any,
    y: Any,
    tried: Tensor | None,
    *,
    as_it_is: bool,
    inputs: Parts | None,
    own_loss: bool,
) -> Chain:
    """The chain of a module; in streaming mode the module ``as_it_is`` where it is none."""
    if isinstance(model, Chain):
        return model
    if not as_it_is:
        return from_module(model, sequences=X.ndim == 3, sample=tried)
    tokens = not to_tensor(X[:1], "X").is_floating_point()
    positions = np.shape(y)[1:] if hasattr(y, "__len__") else ()
    return streamed_network(
        model,
        tried,
        positions=positions,
        tokens=tokens,
        sequences=X.ndim == 3,
        inputs=inputs,
        own_loss=own_loss,
    )


def _exact_targets(checks: RowChecks, y: Any, rows: Batch) -> Tensor:
    """The encoded targets of arrays in float64."""
    positions = check_fits(checks.chain, checks.params, rows.x, checks.n_outputs, "X")
    return checks.targets(y, len(rows.x), positions, "y", torch.float64, rows.target.device)


def _units(checks: RowChecks, target: Tensor, rows: Batch) -> Units | None:
    """The units of a regression's targets, by all rows of arrays or by the first rows of a stream."""
    names = checks.chain.blocks[-1].of_outputs
    if names is None or not foldable(dict(checks.params[-1]), checks.n_outputs, names):
        return None
    weight = None if rows.counts is None else rows.counts.double()
    if weight is not None:
        weight = weight.repeat_interleave(len(target) // max(1, len(weight)), 0)
    if rows.weight is not None:
        weight = rows.weight.double() if weight is None else weight * rows.weight.double()
    found = checks.loss.units(target, weight, checks.comm)
    return None if found is None else replace(found.check(checks.dtype), names=names)


def _few(X: Any, dtype: torch.dtype, device: torch.device, n: int = 2) -> Tensor:
    """A few rows, with which to try the network."""
    return to_tensor(X[:n], "X").to(device=device, dtype=dtype)


def _loss(spec: Any) -> Loss:
    if callable(spec) and not isinstance(spec, Loss):
        return loss_of_torch(spec) or CallableLoss(spec)
    return get_loss(spec)


def _n_outputs(chain: Chain, tried: Tensor | None) -> int:
    last = chain.blocks[-1]
    if is_whole(chain):
        assert tried is not None
        return int(last.forward(last.initial_parameters(None, 1.0), tried.double()).shape[-1])
    if last.n_out is not None:
        return last.n_out
    raise InputError(f"cannot tell the number of outputs of the last block {last!r}; end with a Linear.")
