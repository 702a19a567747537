"""DeepXDE's network on any of its backends, read as NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.pinn.solution import Fitted, Layers


def fitted_of(learner: Any, backend: str, unknowns: Mapping[str, Any], hard: bool) -> Fitted:
    """The network itself; `hard`: DeepXDE puts its outputs through the problem's hard conditions."""
    plain = {name: value.value if backend == "jax" else value for name, value in unknowns.items()}
    found = {name: float(_numpy(value, backend)) for name, value in plain.items()}
    return Fitted(layers_of(learner.net, backend), unknowns=found, hard=hard)


def layers_of(net: Any, backend: str) -> Layers:
    """The layers as kernels (inputs, outputs) and biases."""
    if backend == "torch":
        return tuple((_numpy(layer.weight, backend).T.copy(), _numpy(layer.bias, backend)) for layer in net.linears)
    if backend == "tensorflow":
        return tuple((layer.kernel.numpy(), layer.bias.numpy()) for layer in net.denses)
    tree = net.params["params"]
    layers = [tree[f"denses_{number}"] for number in range(len(tree))]
    return tuple((np.asarray(layer["kernel"]), np.asarray(layer["bias"])) for layer in layers)


def _numpy(value: Any, backend: str) -> np.ndarray:
    if backend == "torch":
        return value.detach().cpu().numpy().copy()
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def device_of(learner: Any, backend: str) -> str:
    """Where the parameters lie, by the framework's name."""
    if backend == "torch":
        return str(learner.net.linears[0].weight.device)
    if backend == "tensorflow":
        return str(learner.net.denses[0].kernel.value.device)
    (device,) = learner.net.params["params"]["denses_0"]["kernel"].devices()
    return str(device)
