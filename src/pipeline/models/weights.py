"""Weights as NumPy arrays in one layout for every backend: what is initialised, moved, hashed, saved and loaded.

A set of weights is a dict from `<layer>.<kernel|bias|...>` to an array, in the order of the layers: what is trained,
and what a layer gathers beside it (the running mean and variance of a batch normalization), under Keras's names. Left
out is what no inference reads: torch's count of batches, the states of Keras's random generators. Saved as .npz without
pickles, so that loading one runs no code.
"""

from __future__ import annotations

import hashlib
import math
import os
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pipeline.errors import UserError
from pipeline.machine.regular_file import open_regular

Weights = dict[str, np.ndarray]

ZEROS = ("bias", "beta", "moving_mean")
ONES = ("gamma", "moving_variance")
NORMALIZATION = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}


def initial(like: Weights, seed: int) -> Weights:
    """Starting values for the shapes and dtypes of `like`: kernels Glorot uniform, biases zero, normalizations 1 and 0.

    What has another name stays as the framework made it. Drawn in float64 from `seed` alone and cast last, so that
    every backend and precision starts from the same point.
    Source: Glorot & Bengio, "Understanding the difficulty of training deep feedforward neural networks", eq. 16.
    """
    generator = np.random.default_rng([seed, 0])
    return {name: _start(name, array, generator) for name, array in like.items()}


def _start(name: str, array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    kind = name.rpartition(".")[2]
    if kind in ZEROS:
        return np.zeros_like(array)
    if kind in ONES:
        return np.ones_like(array)
    if not kind.endswith("kernel"):  # Keras has recurrent_kernel and the like
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
    """Read what `save` wrote. Raises UserError for a file that is missing, damaged or holds pickled objects.

    Nothing is unpacked that would take more memory than the file takes on the disk.
    """
    try:
        with open_regular(path) as file:
            _check_sizes(file)
            with np.load(file, allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise UserError(f"{path}: not a readable set of weights ({error})") from error
    except Exception as error:  # zipfile and zlib raise types of their own for damaged files
        raise UserError(f"{path}: damaged ({type(error).__name__}: {error})") from error


def _check_sizes(file: BinaryIO) -> None:
    """Refuse an archive that unpacks to more than it is, by its own list of contents: `save` compresses nothing."""
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if unpacked > size:
        raise ValueError(f"it unpacks to {unpacked:,} bytes from {size:,}, and a run's weights are not compressed")


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


def from_torch(net: Any) -> Weights:
    """The weights of a torch module, transposed to the common layout (float32 for what NumPy has no dtype for)."""
    import torch

    found: Weights = {}
    for name, kept, to_common, _ in _torch_tensors(net):
        tensor = kept.detach()
        if tensor.dtype in (torch.bfloat16, torch.float16):
            tensor = tensor.float()  # exact, and every reader has float32
        shaped = tensor.permute(*to_common) if to_common else tensor
        found[name] = np.empty(shaped.shape, str(tensor.dtype)[6:]) if tensor.is_meta else shaped.cpu().numpy().copy()
    return found


def to_torch(net: Any, weights: Weights, source: str) -> None:
    """Set the weights of a torch module from the common layout, rounding to each tensor's dtype."""
    import torch

    arrays = fit_to(weights, from_torch(net), source)
    with torch.no_grad():
        for (_, kept, _, to_torch), array in zip(_torch_tensors(net), arrays, strict=True):
            tensor = torch.from_numpy(
                np.asarray(array, order="C")
            )  # ascontiguousarray would make a scalar an array of one
            kept.copy_(tensor.permute(*to_torch) if to_torch else tensor)


def _torch_tensors(net: Any) -> list[tuple[str, Any, tuple[int, ...], tuple[int, ...]]]:
    """(common name, tensor, axes to the common layout, axes back) of all that is kept, in the order of the layers."""
    saved = net.state_dict(keep_vars=True).keys()  # a buffer that is not saved is one that the model makes anew
    rows = []
    number = 0
    for path, layer in net.named_modules():
        own = dict((*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)))
        kept = [name for name in own if f"{path}.{name}".removeprefix(".") in saved and name != "num_batches_tracked"]
        for name in kept:
            common, *axes = _torch_layout(path, layer, name, own[name])
            rows.append((f"{number:02d}.{common}", own[name], *axes))
        number += bool(kept)
    return rows


def _torch_layout(path: str, layer: Any, name: str, tensor: Any) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """The common name of a layer's tensor, and its axes there and back. Raises UserError for a layout not known here.

    It must not be guessed: the axes say how many inputs and outputs a kernel has, and so what it starts from.
    """
    from torch import nn

    if name == "weight" and isinstance(layer, nn.Linear):
        return "kernel", (1, 0), (1, 0)
    if name == "weight" and isinstance(layer, nn.Conv2d):
        return "kernel", (2, 3, 1, 0), (3, 2, 0, 1)
    if isinstance(tensor, nn.Parameter) and tensor.ndim > 1:
        raise UserError(
            f"model: layer {path or 'itself'} is a torch {type(layer).__name__}, whose {name} of shape "
            f"{tuple(tensor.shape)} has no known layout; use Linear, Conv2d, normalizations and layers without weights"
        )
    normalizes = isinstance(layer, (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm))
    return (NORMALIZATION.get(name, name) if normalizes else name), (), ()


def from_keras(model: Any) -> Weights:
    """The weights of a Keras model (float32 for what NumPy has no dtype for)."""
    found: Weights = {}
    for name, variable in _keras_variables(model):
        array = np.asarray(variable.value if not hasattr(variable, "numpy") else variable.numpy())
        found[name] = array.astype(np.float32) if str(array.dtype) in ("float16", "bfloat16") else array
    return found


def to_keras(model: Any, weights: Weights, source: str) -> None:
    """Set the weights of a Keras model from the common layout, rounding to each variable's dtype."""
    arrays = fit_to(weights, from_keras(model), source)
    for (_, variable), array in zip(_keras_variables(model), arrays, strict=True):
        variable.assign(array)


def _keras_variables(model: Any) -> list[tuple[str, Any]]:
    """(common name, variable) of all that is kept. Raises UserError for a layer two of whose weights have one name."""
    layers = [layer for layer in dict.fromkeys(_keras_layers(model)) if layer.weights]
    for layer in layers:
        name, count = Counter(variable.name for variable in layer.weights).most_common(1)[0]
        if count > 1:
            raise UserError(
                f"model: layer {layer.name} is a Keras {type(layer).__name__} with {count} weights called {name}; "
                "use layers that hold no others, or models of such"
            )
    return [(f"{number:02d}.{v.name}", v) for number, layer in enumerate(layers) for v in layer.weights]


def _keras_layers(model: Any) -> Iterator[Any]:
    """The layers of a model and of the models inside it."""
    for layer in model.layers:
        if hasattr(layer, "layers"):
            yield from _keras_layers(layer)
        else:
            yield layer
