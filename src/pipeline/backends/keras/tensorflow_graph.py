"""Reading a TensorFlow graph: its operations with their devices and dtypes, its matrix products with their sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from pipeline.backends.keras.hlo import Sizes

FUSED = 3  # operations that follow a product and may be fused with it: bias, activation, a cast between


def operations(graph: Any, home: str) -> Iterator[tuple[str, str, str]]:
    """(name, device, dtype) of every operation of a tf.Graph and of the functions that it calls.

    `home` is where the whole graph ran: the device of what is not bound to one of its own, and the rest of a device's
    name that leaves something out (/device:CPU:1).
    """
    around = tf.DeviceSpec.from_string(home)
    definition = graph.as_graph_def()
    for body in (definition.node, *(inner.node_def for inner in definition.library.function)):
        for node in body:
            device = around.make_merged_spec(tf.DeviceSpec.from_string(node.device))
            yield node.op, device.to_string(), dtype(node)


def dtype(node: Any) -> str:
    """The dtype of a node's first output, or where it has none (an assignment) of its last input; `-` without either.

    Which of a node's attributes says it is another one for each operation (T, dtype, DstT, Tparams, ...): TensorFlow's
    own definition of the operation knows.
    """
    known = op_def_registry.get(node.op)
    for argument in (*known.output_arg, *reversed(known.input_arg)) if known else ():
        if argument.type:
            number = argument.type
        elif argument.type_attr:
            number = node.attr[argument.type_attr].type
        else:
            number = next(iter(node.attr[argument.type_list_attr].list.type), 0)
        if number:
            return tf.dtypes.as_dtype(number).name
    return "-"


class Products:
    """The matrix products of a tf.Graph and of the functions that it calls, with their sizes."""

    def __init__(self, graph: Any) -> None:
        definition = graph.as_graph_def(add_shapes=True)
        bodies = (definition.node, *(inner.node_def for inner in definition.library.function))
        self.nodes = {node.name: node for body in bodies for node in body}

    def sizes(self, name: str) -> Sizes | None:
        """The product that a node of the graph that runs is; `name` begins with the calls that lead to it.

        TensorFlow fuses a product with the bias and the activation that follow, under the name of the last.
        """
        parts = name.split("/")
        node = next(filter(None, (self.nodes.get("/".join(parts[first:])) for first in range(len(parts)))), None)
        for _ in range(1 + FUSED):
            if node is None or "Conv2D" in node.op or "MatMul" in node.op:
                break
            node = self._input(node, 0)
        else:
            return None
        return self._sizes(node) if node is not None else None

    def _sizes(self, node: Any) -> Sizes | None:
        if "Conv2D" in node.op:
            backward = "Backprop" in node.op
            output = self._shape(node, 2) if backward else _shape(node)
            kernel = _shape(node) if node.op.endswith("Filter") else self._shape(node, 1)
            if not output or not kernel:
                return None
            name = "convolution's gradients" if backward else "convolution"
            return name, math.prod(output) // kernel[-1], kernel[-1], math.prod(kernel[:-1]), 1
        left, right = self._shape(node, 0), self._shape(node, 1)
        if not left or not right:
            return None
        if node.attr["transpose_a"].b or node.attr["adj_x"].b:
            left = (*left[:-2], left[-1], left[-2])
        n = right[-2] if node.attr["transpose_b"].b or node.attr["adj_y"].b else right[-1]
        return "product", left[-2], n, left[-1], math.prod(left[:-2])

    def _input(self, node: Any, number: int) -> Any:
        """The node that an input comes from; None for an argument of the function."""
        return self.nodes.get(node.input[number].partition(":")[0]) if len(node.input) > number else None

    def _shape(self, node: Any, number: int) -> tuple[int, ...]:
        source = self._input(node, number)
        return _shape(source) if source is not None else ()


def _shape(node: Any) -> tuple[int, ...]:
    """The shape of a node's first output; empty where the graph leaves it, or a side of it, open."""
    shapes = node.attr["_output_shapes"].list.shape
    sides = tuple(side.size for side in shapes[0].dim) if shapes else ()
    return sides if all(side > 0 for side in sides) else ()
