"""Low-rank adapters on a Keras model (pipeline.models.adapters).

Not Keras's own `enable_lora`: it adds A B to the kernel before the product, which rounds small changes away in narrow
dtypes and computes the kernel's whole gradient, and keeps A and B in float32 at any precision.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from pipeline.models.weights import variables_keras
from pipeline.runs.adapters import Adapters


def dense_layers(model: Any) -> list[str]:
    """The paths of the dense layers that compute as Keras's do."""
    return list(_dense(model))


def adapt(model: Any, adapters: Adapters) -> None:
    """Give each of the layers its adapter."""
    found = _dense(model)
    for path in adapters.layers:
        layer = found[path]
        layer.__class__ = Adapted  # a layer that is part of a built model cannot be replaced
        layer.adapt(adapters, path)


def _dense(model: Any) -> dict[str, Any]:
    """By path. A second layer of the same path, which `#` numbers, is left out."""
    names = {id(variable): name for name, variable in variables_keras(model)}
    found = {}
    for layer in model._flatten_layers():
        if isinstance(layer, layers.Dense) and type(layer).call is layers.Dense.call:
            name = names.get(id(layer._kernel))
            if name is not None and "#" not in name:
                found[name.removesuffix(".kernel")] = layer
    return found


class Adapted(layers.Dense):
    """A dense layer that gives x W + scale (x A) B + bias."""

    def adapt(self, adapters: Adapters, path: str) -> None:
        """Make A and B, in the layer's dtype and under its path."""
        self.scale = adapters.scale
        parent, _, name = self._kernel.path.rpartition("/")[0].rpartition("/")
        self._tracker.unlock()
        with keras.name_scope(name, caller=self, override_parent=parent):
            self.adapter_a, self.adapter_b = (
                self._added(one, adapters.values[f"{path}.{one}"]) for one in ("adapter_a", "adapter_b")
            )
        self._tracker.lock()

    def _added(self, name: str, value: Any) -> Any:
        variable = self.add_weight(name=name, shape=value.shape, initializer="zeros")
        variable.assign(value)
        return variable

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """As a dense layer's."""
        x = ops.matmul(inputs, self.kernel)
        x = x + self.scale * ops.matmul(ops.matmul(inputs, self.adapter_a), self.adapter_b)
        if self.bias is not None:
            x = ops.add(x, self.bias)
        return x if self.activation is None else self.activation(x)
