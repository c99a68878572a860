"""A trained network of whole-numbered weights as an ONNX file with integer types.

Every hidden layer is ``MatMulInteger`` of bytes (rows are uint8, weights int8, sums int32), compared with int32
thresholds (:mod:`dladmm.api.packing`); how many of them a sum has reached is the next layer's uint8 input. With c that
number, ``q = 2 c - (n - 1)`` and ``W q >= t`` exactly where ``W c >= ceil((t + (n - 1) W 1) / 2)``, so that the numbers
themselves are multiplied. The last layer is real, as it is in the network.
"""

from __future__ import annotations

import json
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from dladmm.api.packing import names_of, parts_of, turned_layers
from dladmm.base.atomic import replacing
from dladmm.base.errors import DataError, InputError

Array = NDArray[Any]
OPSET, IR_VERSION = 17, 8
"""Of 2022: no operator here is younger, and older runtimes read the file too."""

SOME_ROWS = 256
"""Rows that are compared where onnxruntime is not installed: onnx itself takes a millisecond for each."""

LARGEST = 63
"""Two products of a uint8 and an int8 up to it fit into 16 bits, in which some processors add them up in pairs."""


def save_packed_onnx(
    module: nn.Module, path: str | os.PathLike[str], *, unit: float = 1.0, classes: Any = None
) -> int:
    """Write a network as ONNX with integer types, and return how many bytes its numbers take.

    The file's input ``x`` (rows, n_in) is uint8: rows in units. Its ``output`` (rows, n_outputs) is float32, the
    network's own. ``unit`` and ``classes`` are in the file's metadata. Needs the package onnx.

    Parameters
    ----------
    module : nn.Sequential
        As for :func:`~dladmm.api.packing.save_packed`, with weights of at most 6 bits.
    path : str or path
    unit : float, default 1.0
        Rows are whole multiples of it, from 0 to 255 of them.
    classes : sequence of int or str, optional
        What the outputs stand for.
    """
    from onnx import ModelProto, checker, helper

    layers, last = parts_of(module)
    graph = _Graph(last, layers[0].linear.in_features)
    name, levels_before = "x", 0
    for l, (layer, (weights, thresholds)) in enumerate(zip(layers, turned_layers(layers, unit), strict=True)):
        if np.abs(weights).max() > LARGEST:
            raise InputError(
                f"{layer.linear} has weights of more than 6 bits: integer products of ONNX runtimes may round those."
            )
        if levels_before:
            shift = (levels_before - 1) * weights.sum(1)
            thresholds = -(-(thresholds + shift) // 2)
        name = graph.hidden(l, name, weights, thresholds)
        levels_before = layer.n_levels
    alpha, beta = layers[-1].levels
    graph.last(name, 2 * alpha, beta - alpha * (levels_before - 1))
    found: ModelProto = graph.model()
    names = names_of(classes, last)
    helper.set_model_props(found, {"unit": repr(float(unit)), "classes": json.dumps(names)})
    checker.check_model(found, full_check=True)
    try:
        with replacing(Path(path)) as file:
            file.write(found.SerializeToString())
    except OSError as error:
        raise DataError(f"{path} could not be written: {error}") from error
    return sum(len(each.raw_data) for each in found.graph.initializer)


def run_packed_onnx(path: str | os.PathLike[str], X: Any, unit: float) -> Array:
    """Outputs (N, n_outputs) of such a file for rows X: by onnxruntime if there is one, else by onnx for some rows."""
    whole = np.rint(np.asarray(X, dtype=np.float64) / unit)
    if whole.min() < 0 or whole.max() > 255:
        raise InputError(
            f"rows are from {whole.min():g} to {whole.max():g} units of {unit:g}; the bytes of packed ONNX are from 0 "
            "to 255. Shift and round the features before training, or use --packed."
        )
    rows = whole.astype(np.uint8)
    if find_spec("onnxruntime") is not None:
        runtime: Any = import_module("onnxruntime")
        session = runtime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
        found: Array = session.run(None, {"x": rows})[0]
        return found
    from onnx.reference import ReferenceEvaluator

    computed: Array = ReferenceEvaluator(os.fspath(path)).run(None, {"x": rows[:SOME_ROWS]})[0]  # type: ignore[index]
    return computed


class _Graph:
    """Nodes and initialisers of the file, in order."""

    def __init__(self, linear: nn.Linear, n_in: int) -> None:
        self.linear, self.n_in = linear, n_in
        self.nodes: list[Any] = []
        self.arrays: list[Any] = []

    def array(self, name: str, value: Array) -> str:
        from onnx import numpy_helper

        self.arrays.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, kind: str, inputs: list[str], output: str, **settings: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, [output], **settings))
        return output

    def hidden(self, l: int, name: str, weights: Array, thresholds: Array) -> str:
        """The numbers of thresholds that the sums of a layer have reached, uint8."""
        from onnx import TensorProto

        W = self.array(f"weights_{l}", weights.T.astype(np.int8))
        sums = self.node("MatMulInteger", [name, W], f"sums_{l}")
        many = len(thresholds) > 1
        if many:
            sums = self.node("Unsqueeze", [sums, self.array(f"axis_{l}", np.array([1]))], f"rows_{l}")
        bounds = self.array(f"thresholds_{l}", (thresholds if many else thresholds[0]).astype(np.int32))
        reached = self.node("GreaterOrEqual", [sums, bounds], f"reached_{l}")
        if many:
            each = self.node(
                "Cast",
                [
                    reached,
                ],
                f"ones_{l}",
                to=TensorProto.INT32,
            )
            reached = self.node("ReduceSum", [each, f"axis_{l}"], f"number_{l}", keepdims=0)
        return self.node("Cast", [reached], f"codes_{l}", to=TensorProto.UINT8)

    def last(self, name: str, step: float, lowest: float) -> None:
        """``levels W^T + b`` in float32, which rounds no sum of these, with ``levels = step number + lowest``."""
        from onnx import TensorProto

        numbers = self.node("Cast", [name], "numbers", to=TensorProto.FLOAT)
        steps = self.node("Mul", [numbers, self.array("step", np.array(step, np.float32))], "steps")
        levels = self.node("Add", [steps, self.array("lowest", np.array(lowest, np.float32))], "levels")
        parameters = [self.linear.weight, *([] if self.linear.bias is None else [self.linear.bias])]
        values = [p.detach().float().cpu().numpy() for p in parameters]
        given = [self.array(f"last_{i}", value) for i, value in enumerate(values)]
        self.node("Gemm", [levels, *given], "output", transB=1)

    def model(self) -> Any:
        from onnx import TensorProto, helper

        x = helper.make_tensor_value_info("x", TensorProto.UINT8, ["rows", self.n_in])
        output = helper.make_tensor_value_info(
            "output", TensorProto.FLOAT, ["rows", self.linear.out_features]
        )
        graph = helper.make_graph(self.nodes, "packed", [x], [output], self.arrays)
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="dladmm")
