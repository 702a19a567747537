"""TensorFlow's own operations in its profiler's trace: what runs without XLA."""

from __future__ import annotations

import re
from typing import Any

from pipeline.backends.keras.hlo import Sizes, part_of_step
from pipeline.backends.keras.tensorflow_graph import Products
from pipeline.backends.shared import gpu_kernels
from pipeline.backends.shared.trace import Event

_NAME = re.compile(r"^(?P<node>[^:]+):(?P<operation>_?[A-Z]\w*)$")
WRAPPERS = re.compile(r"While$|If$|Case$|PartitionedCall$|^_?Xla")  # their operations are timed one by one
PRODUCTS = re.compile(r"MatMul|Conv2D")  # the fused ones and oneDNN's have longer names with these in them
COPIES = re.compile(r"^(?:_Mkl)?(?:Cast|Transpose|DeepCopy|ToMkl|ToTf)$")


class Operations:
    """The operations of a graph, as `node:operation`."""

    def __init__(self, graph: Any) -> None:
        self.products = Products(graph)

    def owner(self, event: Event) -> str | None:
        """The operation that an event is of; on a GPU a kernel's name where it names none."""
        name = str(event.stats.get("tf_op", event.name))
        found = _NAME.match(name)
        if found and not WRAPPERS.search(found["operation"]):
            return name
        return event.name if event.on_gpu else None

    def kind(self, name: str) -> str:
        """The kind of an operation, by its name in the profile."""
        node, _, operation = name.rpartition(":")
        part = part_of_step(node)
        if part is not None:
            return part
        if not node:
            return gpu_kernels.kind(name)
        if PRODUCTS.search(operation):
            return "products"
        return "copies" if COPIES.match(operation) else "other"

    def label(self, name: str) -> str:
        """The operation without the loop that it is in."""
        return re.sub(r"^while/body/_\d+/", "", name)

    def sizes(self, name: str) -> list[Sizes]:
        """The sizes of the matrix product that an operation computes; empty for any other."""
        found = self.products.sizes(name.rpartition(":")[0])
        return [found] if found is not None else []
