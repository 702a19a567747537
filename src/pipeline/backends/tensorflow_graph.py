"""Reading a TensorFlow graph: every operation with the device that it is bound to and its dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry


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
