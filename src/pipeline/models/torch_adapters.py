"""Low-rank adapters on a torch module (pipeline.models.adapters)."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from pipeline.errors import UserError
from pipeline.runs.adapters import Adapters


def dense_layers(net: nn.Module) -> list[str]:
    """The paths of the dense layers, but for those that share their kernel with another layer.

    Nor the one inside torch's MultiheadAttention, whose weight is read and which is never called.
    """
    shared = Counter(id(one) for layer in net.modules() for one in layer.parameters(recurse=False))
    return [
        path
        for path, layer in net.named_modules()
        if isinstance(layer, nn.Linear) and not isinstance(layer, NonDynamicallyQuantizableLinear)
        if path and shared[id(layer.weight)] == 1
    ]


def adapted(net: nn.Module, adapters: Adapters) -> contextlib.AbstractContextManager[None]:
    """Give each of the layers its adapter: two parameters in the common layout, and a hook behind its forward pass.

    Inside the context that it returns there has to be a forward pass, which calls them all: see `_all_called`.
    """
    for path in adapters.layers:
        layer = net.get_submodule(path)
        for name in ("adapter_a", "adapter_b"):
            array = adapters.values[f"{path}.{name}"]
            layer.register_parameter(name, nn.Parameter(torch.from_numpy(array).to(layer.weight)))  # type: ignore[arg-type]
        layer.register_forward_hook(Added(adapters.scale))
    return _all_called(net, adapters)


class Added:
    """To what a dense layer gives: scale (x A) B."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, layer: Any, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor) -> torch.Tensor:
        return outputs + self.scale * ((inputs[0] @ layer.adapter_a) @ layer.adapter_b)


@contextlib.contextmanager
def _all_called(net: nn.Module, adapters: Adapters) -> Iterator[None]:
    """A forward pass in which every adapted layer has to be called. Raises UserError."""
    called: set[str] = set()

    def note(path: str) -> Any:
        return lambda *_: called.add(path)

    hooks = [net.get_submodule(path).register_forward_hook(note(path)) for path in adapters.layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    for path in adapters.layers:
        if path not in called:
            raise UserError(
                f"model.adapters: the model never calls its layer {path}, so that no adapter can be beside it; "
                "name others in model.adapters.layers"
            )
