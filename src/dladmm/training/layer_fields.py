"""The arguments of layers in a file, each with its type and bounds: what is built from them is small and works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dladmm.base.errors import DataError
from dladmm.base.fields import flag, items, real, text, whole

LARGEST, FARTHEST = 2**24, 2**16
"""Sizes of layers whose weights are in the file too; extents of windows, steps and pads."""

MODES = ("nearest", "linear", "bilinear", "bicubic", "trilinear", "nearest-exact")
PADDINGS = ("zeros", "reflect", "replicate", "circular")
Check = Callable[[str, Any, int], object]


def _one_or_each(least: int, most: int = FARTHEST) -> Check:
    """A whole number, or one per dimension of the layer."""

    def check(name: str, value: Any, dimensions: int) -> None:
        for item in items(name, value, dimensions, dimensions) if type(value) is list else [value]:
            whole(name, item, least, most)

    return check


def _optional(check: Check) -> Check:
    return lambda name, value, dimensions: None if value is None else check(name, value, dimensions)


def _size(name: str, value: Any, dimensions: int) -> None:
    whole(name, value, 1, LARGEST)


def _flag(name: str, value: Any, dimensions: int) -> None:
    flag(name, value)


def _share(name: str, value: Any, dimensions: int) -> None:
    real(name, value, 0.0, 1.0)


def _positive(name: str, value: Any, dimensions: int) -> None:
    real(name, value, 0.0, 1e30)


def _axis(name: str, value: Any, dimensions: int) -> None:
    whole(name, value, -8, 8)


def _padding(name: str, value: Any, dimensions: int) -> None:
    if type(value) is str:
        text(name, value, ("same", "valid"))
    else:
        _one_or_each(0)(name, value, dimensions)


def _border(name: str, value: Any, dimensions: int) -> None:
    for item in items(name, value, 2 * dimensions, 2 * dimensions) if type(value) is list else [value]:
        whole(name, item, -FARTHEST, FARTHEST)


def _outputs(name: str, value: Any, dimensions: int) -> None:
    for item in items(name, value, dimensions, dimensions) if type(value) is list else [value]:
        _optional(_one_or_each(1))(name, item, 1)


def _shape(name: str, value: Any, dimensions: int) -> None:
    for item in items(name, value, 8, 1):
        whole(name, item, -1, LARGEST)


def _factor(name: str, value: Any, dimensions: int) -> None:
    for item in items(name, value, 3, 1) if type(value) is list else [value]:
        real(name, item, 1e-3, 1e3)


def _extent(name: str, value: Any, dimensions: int) -> None:
    for item in items(name, value, 3, 1) if type(value) is list else [value]:
        whole(name, item, 1, FARTHEST)


def _one_of(*words: str) -> Check:
    return lambda name, value, dimensions: text(name, value, words)


CHECKS: dict[str, Check] = {
    **dict.fromkeys(("in_channels", "out_channels", "groups", "num_features", "num_groups", "num_channels"), _size),
    **dict.fromkeys(("num_embeddings", "embedding_dim", "num_parameters", "n_features", "n_knots"), _size),
    **dict.fromkeys(("upscale_factor", "downscale_factor", "input_size", "hidden_size"), _size),
    **dict.fromkeys(("bias", "affine", "track_running_stats", "elementwise_affine"), _flag),
    **dict.fromkeys(("ceil_mode", "count_include_pad"), _flag),
    **dict.fromkeys(("kernel_size", "dilation"), _one_or_each(1)),
    **dict.fromkeys(("start_dim", "end_dim"), _axis),
    "stride": _optional(_one_or_each(1)),
    "padding": _padding,
    "padding_mode": _one_of(*PADDINGS),
    "padding_idx": _optional(lambda name, value, dimensions: whole(name, value, 0, LARGEST)),
    "output_size": _outputs,
    "dim": _optional(_axis),
    "unflattened_size": _shape,
    "normalized_shape": _shape,
    "eps": _positive,
    "limit": _positive,
    "momentum": _optional(_share),
    "p": _share,
    "divisor_override": _optional(_size),
    "size": _optional(_extent),
    "scale_factor": _optional(_factor),
    "mode": _one_of(*MODES),
    "align_corners": _optional(_flag),
    "approximate": _one_of("none", "tanh"),
    "nonlinearity": _one_of("tanh", "relu"),
}  # fmt: skip
"""What each argument of a layer may be."""


def check_arguments(layer: str, arguments: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of a layer from a file, unless one is missing, unknown, or out of its bounds."""
    if type(arguments) is not dict or set(arguments) != set(names):
        raise DataError(f"{layer} must have the arguments {', '.join(names) or 'none'}")
    dimensions = int(layer[-2]) if layer[-2:] in ("1d", "2d", "3d") else 1
    for name, value in arguments.items():
        check = _border if layer.startswith("ZeroPad") else CHECKS[name]
        check(f"{name} of {layer}", value, dimensions)
    _check_together(layer, arguments, dimensions)
    return arguments


def _check_together(layer: str, arguments: dict[str, Any], dimensions: int) -> None:
    """What arguments must be beside each other."""
    kernel, padding = (_each(arguments.get(name, 1), dimensions) for name in ("kernel_size", "padding"))
    if (
        "Pool" in layer
        and "kernel_size" in arguments
        and any(2 * p > k for p, k in zip(padding, kernel, strict=True))
    ):
        raise DataError(f"padding of {layer} must be at most half of its kernel_size")
    if layer == "Upsample" and (arguments["size"] is None) == (arguments["scale_factor"] is None):
        raise DataError("Upsample must have either a size or a scale_factor")
    if arguments.get("padding_idx") is not None and arguments["padding_idx"] >= arguments["num_embeddings"]:
        raise DataError("padding_idx of Embedding must be one of its tokens")


def _each(value: Any, dimensions: int) -> list[int]:
    return value if type(value) is list else [value if type(value) is int else 0] * dimensions
