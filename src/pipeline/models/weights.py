"""Weights as NumPy arrays in one layout for every backend: what is initialised, moved, hashed, saved and loaded.

A set of weights is a dict from `<layer>.<kernel|bias|...>` to an array, in the order of the layers. Saved as .npz
without pickles, so that loading one runs no code.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import UserError

Weights = dict[str, np.ndarray]


def initial(like: Weights, seed: int) -> Weights:
    """Starting values for the shapes and dtypes of `like`: kernels Glorot uniform, biases zero, the rest as they are.

    Drawn in float64 from `seed` alone and cast last, so that every backend and precision starts from the same point.
    Source: Glorot & Bengio, "Understanding the difficulty of training deep feedforward neural networks", eq. 16.
    """
    generator = np.random.default_rng([seed, 0])
    return {name: _start(name, array, generator) for name, array in like.items()}


def _start(name: str, array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    if name.endswith(".bias"):
        return np.zeros_like(array)
    if array.ndim < 2:
        return array
    window = math.prod(array.shape[:-2])
    limit = math.sqrt(6 / (window * (array.shape[-2] + array.shape[-1])))
    return generator.uniform(-limit, limit, array.shape).astype(array.dtype)


def digest(weights: Weights) -> str:
    """sha256 over names, dtypes, shapes and bytes: two runs with one digest ended with the same weights to the bit."""
    total = hashlib.sha256()
    for name, array in weights.items():
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def save(path: Path, weights: Weights) -> None:
    """Write `weights` as an .npz of plain arrays."""
    np.savez(path, **weights)  # type: ignore[arg-type]


def load(path: Path) -> Weights:
    """Read what `save` wrote. Raises UserError for a file that is missing, damaged or holds pickled objects."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise UserError(f"{path}: not a readable set of weights ({error})") from error
    except Exception as error:  # zipfile and zlib raise types of their own for damaged files
        raise UserError(f"{path}: damaged ({type(error).__name__}: {error})") from error


def fit_to(weights: Weights, like: Weights, source: str) -> list[np.ndarray]:
    """The arrays of `weights` in the order of `like`. Raises UserError naming the first that does not fit."""
    if list(weights) != list(like):
        raise UserError(f"{source}: weights of another model: it has {_names(weights)}; this model has {_names(like)}")
    for name, array in weights.items():
        if array.shape != like[name].shape:
            raise UserError(
                f"{source}: weights of another model: {name} has shape {array.shape}; this model has {like[name].shape}"
            )
    return list(weights.values())


def _names(weights: Weights) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in weights.items())


def of_torch(net: Any) -> Weights:
    """The weights of a torch module, transposed to the common layout (float32 for what NumPy has no dtype for)."""
    import torch

    found: Weights = {}
    for name, parameter, to_common, _ in _torch_parameters(net):
        tensor = parameter.detach()
        if tensor.dtype in (torch.bfloat16, torch.float16):
            tensor = tensor.float()  # exact, and every reader has float32
        shaped = tensor.permute(*to_common) if to_common else tensor
        found[name] = np.empty(shaped.shape, str(tensor.dtype)[6:]) if tensor.is_meta else shaped.cpu().numpy().copy()
    return found


def into_torch(net: Any, weights: Weights, source: str) -> None:
    """Set the weights of a torch module from the common layout, rounding to each parameter's dtype."""
    import torch

    arrays = fit_to(weights, of_torch(net), source)
    with torch.no_grad():
        for (_, parameter, _, to_torch), array in zip(_torch_parameters(net), arrays, strict=True):
            tensor = torch.from_numpy(np.ascontiguousarray(array))
            parameter.copy_(tensor.permute(*to_torch) if to_torch else tensor)


def _torch_parameters(net: Any) -> list[tuple[str, Any, tuple[int, ...], tuple[int, ...]]]:
    """(common name, parameter, axes to the common layout, axes back) of every parameter, in the order of the layers."""
    from torch import nn

    kernels: dict[type, tuple[tuple[int, ...], tuple[int, ...]]] = {
        nn.Linear: ((1, 0), (1, 0)),
        nn.Conv2d: ((2, 3, 1, 0), (3, 2, 0, 1)),
    }
    rows = []
    layers = [layer for layer in net.modules() if any(True for _ in layer.parameters(recurse=False))]
    for number, layer in enumerate(layers):
        for name, parameter in layer.named_parameters(recurse=False):
            to_common, to_torch = kernels.get(type(layer), ((), ())) if name == "weight" else ((), ())
            rows.append((f"{number:02d}.{'kernel' if to_common else name}", parameter, to_common, to_torch))
    return rows


def of_keras(model: Any) -> Weights:
    """The weights of a Keras model (float32 for what NumPy has no dtype for)."""
    found: Weights = {}
    for name, variable in _keras_variables(model):
        array = np.asarray(variable.value if not hasattr(variable, "numpy") else variable.numpy())
        found[name] = array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)
    return found


def into_keras(model: Any, weights: Weights, source: str) -> None:
    """Set the weights of a Keras model from the common layout, rounding to each variable's dtype."""
    arrays = fit_to(weights, of_keras(model), source)
    for (_, variable), array in zip(_keras_variables(model), arrays, strict=True):
        variable.assign(array)


def _keras_variables(model: Any) -> list[tuple[str, Any]]:
    layers = [layer for layer in model.layers if layer.trainable_variables]
    return [(f"{number:02d}.{v.name}", v) for number, layer in enumerate(layers) for v in layer.trainable_variables]
