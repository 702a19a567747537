"""Weights between models and NumPy, in one layout for every backend, and the values that a training starts from.

A weight's name is the path of its layer and what the tensor is there: `kernel`, `bias` and so on under Keras's names,
`embeddings` of an embedding; a tensor of another kind of layer keeps its own name and layout. Left out is what no
inference reads: torch's count of batches, the states of Keras's random generators. A tensor that two layers share
counts once, under the first one's path.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import numpy as np

from pipeline.errors import UserError
from pipeline.runs.weights import Weights

SHOWN = 5  # names of weights in a message

STATISTICS = ("moving_mean", "moving_variance")  # which no optimizer changes
ZEROS = ("bias", "beta", "moving_mean")
ONES = ("gamma", "moving_variance")
NORMALIZATION = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
# A framework's own name of a tensor -> the common name, and the axes to the common layout.
Names = dict[str, tuple[str, tuple[int, ...]]]
EMBEDDING_DEVIATION = 0.02  # as GPT-2's


def initial(like: Weights, seed: int) -> Weights:
    """Starting values that every backend shares, for the shapes and dtypes of `like`, by each weight's kind.

    Kernels Glorot uniform, biases zero, normalizations 1 and 0, embeddings normal. What has another name stays as the
    framework made it. Drawn in float64 from `seed` alone and cast last, so that every backend and precision starts from
    the same point. Sources: Glorot & Bengio, "Understanding the difficulty of training deep feedforward neural
    networks", eq. 16; Radford et al., "Improving language understanding by generative pre-training", section 4.1.
    """
    generator = np.random.default_rng([seed, 0])
    return {name: _start(kind_of(name), array, generator) for name, array in like.items()}


def kind_of(name: str) -> str:
    """`kernel` of `blocks.0.mlp.kernel`."""
    return name.rpartition(".")[2]


def own_start(like: Weights) -> list[str]:
    """The names of what keeps the start that its framework, or the model itself, gave it."""
    return [name for name, array in like.items() if _is_own(kind_of(name), array)]


def _is_own(kind: str, array: np.ndarray) -> bool:
    if kind in (*ZEROS, *ONES, "embeddings"):
        return False
    return not kind.endswith("kernel") or array.ndim < 2  # Keras has recurrent_kernel and the like


def _start(kind: str, array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    if kind in ZEROS:
        return np.zeros_like(array)
    if kind in ONES:
        return np.ones_like(array)
    if kind == "embeddings":
        return generator.normal(0, EMBEDDING_DEVIATION, array.shape).astype(array.dtype)
    if _is_own(kind, array):
        return array
    window = math.prod(array.shape[:-2])
    limit = math.sqrt(6 / (window * (array.shape[-2] + array.shape[-1])))
    return generator.uniform(-limit, limit, array.shape).astype(array.dtype)


def small_logits(name: str, drawn: np.ndarray) -> np.ndarray:
    """A weight of the shared start, of which the kernel (in, out) of the logits is made as small as embeddings.

    The logits of a fresh model are then near 0 and its loss is log(classes).
    """
    if name != "logits.kernel":
        return drawn
    return drawn * np.asarray(EMBEDDING_DEVIATION * math.sqrt(sum(drawn.shape) / 2), drawn.dtype)


def fit_to(weights: Weights, like: Weights, source: str) -> list[np.ndarray]:
    """The arrays of `weights` in the order of `like`. Raises UserError naming the first that does not fit.

    By name where both have the same names, in whatever order. Two frameworks may name the same layers differently: then
    every kind and every shape has to agree, in order.
    """
    if weights.keys() == like.keys():
        weights = {name: weights[name] for name in like}
    if [*map(kind_of, weights)] != [*map(kind_of, like)]:
        raise UserError(f"{source}: weights of another model: {_unlike(weights, like)}")
    for (name, array), (wanted, other) in zip(weights.items(), like.items(), strict=True):
        if array.shape != other.shape:
            also = "" if name == wanted else f"'s {wanted}"
            raise UserError(
                f"{source}: weights of another model: {name} has shape {array.shape}; "
                f"this model{also} has {other.shape}"
            )
    return list(weights.values())


def _unlike(weights: Weights, like: Weights) -> str:
    """What the one has and the other has not."""
    if not weights.keys() & like.keys():
        return f"it has {_names(weights)}; this model has {_names(like)}"
    more, lacking = ({name: a[name] for name in a if name not in b} for a, b in ((weights, like), (like, weights)))
    found = [f"it has {_names(more)}, which this model lacks"] if more else []
    found += [f"this model has {_names(lacking)}, which it lacks"] if lacking else []
    return "; ".join(found) or "the same names in another order"


def _names(weights: Weights) -> str:
    left = f" and {len(weights) - SHOWN} more" if len(weights) > SHOWN else ""
    return ", ".join(f"{name} {weights[name].shape}" for name in [*weights][:SHOWN]) + left


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


def torch_names(net: Any) -> Names:
    """The common names of what a torch module has, by its own names (those of `state_dict`)."""
    known = {id(tensor): (name, axes) for name, tensor, axes, _ in _torch_tensors(net)}
    state = net.state_dict(keep_vars=True)
    return {name: known[id(tensor)] for name, tensor in state.items() if id(tensor) in known}


def trained_torch(net: Any) -> list[str]:
    """The names of the weights that an optimizer changes."""
    return [name for name, tensor, *_ in _torch_tensors(net) if tensor.requires_grad]


def parameters_torch(net: Any) -> list[tuple[str, Any, tuple[int, ...]]]:
    """(name, parameter, shape) of a torch module, names and shapes as the common layout has them."""
    known = {id(parameter) for parameter in net.parameters()}
    return [
        (name, tensor, tuple(tensor.shape[axis] for axis in axes) if axes else tuple(tensor.shape))
        for name, tensor, axes, _ in _torch_tensors(net)
        if id(tensor) in known
    ]


def freeze_torch(net: Any, names: Collection[str]) -> None:
    """Let these weights of a torch module stay as they are. A layer all of whose weights and statistics are among them
    (a batch normalization) no longer gathers any; the layers inside it do as they did."""
    tensors = {id(tensor) for name, tensor, *_ in _torch_tensors(net) if name in names}
    for layer in net.modules():
        held = dict((*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)))
        held.pop("num_batches_tracked", None)
        for tensor in held.values():
            if id(tensor) in tensors and tensor.requires_grad:
                tensor.requires_grad_(False)
        statistics = any(id(tensor) in tensors for tensor in layer.buffers(recurse=False))
        if statistics and all(id(tensor) in tensors for tensor in held.values()):
            layer.training = False
            layer.train = partial(_stay, layer)  # Lightning calls it after each validation


def _stay(layer: Any, mode: bool = True) -> Any:
    for inside in layer.children():
        inside.train(mode)
    return layer


def _torch_tensors(net: Any) -> list[tuple[str, Any, tuple[int, ...], tuple[int, ...]]]:
    """(name, tensor, axes to the common layout, axes back) of all that is kept, in the order of the layers."""
    rows, seen = [], set[int]()
    for path, layer in net.named_modules():
        anew = {"num_batches_tracked", *layer._non_persistent_buffers_set}  # buffers that the model makes anew
        named = dict((*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)))
        for name, tensor in named.items():
            if name in anew or id(tensor) in seen:
                continue
            seen.add(id(tensor))  # tied weights are one
            common, *axes = _torch_layout(layer, name)
            if common != name and common in named:  # a layer of the user's own that has both
                common, axes = name, [(), ()]
            rows.append((f"{path}.{common}".removeprefix("."), tensor, *axes))
    return rows


def _torch_layout(layer: Any, name: str) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """The common name of a layer's tensor, and its axes there and back; its own name and layout where none is known."""
    from torch import nn

    if name == "weight" and isinstance(layer, nn.Linear):
        return "kernel", (1, 0), (1, 0)
    if name == "weight" and isinstance(layer, nn.Conv1d):
        return "kernel", (2, 1, 0), (2, 1, 0)
    if name == "weight" and isinstance(layer, nn.Conv2d):
        return "kernel", (2, 3, 1, 0), (3, 2, 0, 1)
    if name == "weight" and isinstance(layer, nn.Embedding):
        return "embeddings", (), ()
    normalizes = isinstance(layer, (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm))
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


def keras_names(model: Any) -> Names:
    """The common names of what a Keras model has, by its own names (the variables' paths)."""
    return {variable.path: (name, ()) for name, variable in _keras_variables(model)}


def freeze_keras(model: Any, names: Collection[str]) -> None:
    """Let these weights of a Keras model stay as they are; a layer with nothing else no longer gathers statistics."""
    frozen = {id(variable) for name, variable in _keras_variables(model) if name in names}
    for layer in model._flatten_layers():
        if layer.weights and all(id(variable) in frozen for variable in layer.weights):
            layer.trainable = False
    for variable in model.weights:
        if id(variable) in frozen:
            variable.trainable = False


def shapes_keras(model: Any) -> dict[str, tuple[int, ...]]:
    """By name, of all weights of a Keras model that an optimizer might change, the frozen ones included."""
    return {
        name: tuple(variable.shape) for name, variable in _keras_variables(model) if kind_of(name) not in STATISTICS
    }


def trained_keras(model: Any) -> list[str]:
    """The names of the weights that an optimizer changes."""
    return [name for name, _ in variables_keras(model)]


def variables_keras(model: Any) -> list[tuple[str, Any]]:
    """(name, variable) of what an optimizer changes in a Keras model."""
    return [(name, variable) for name, variable in _keras_variables(model) if variable.trainable]


def _keras_variables(model: Any) -> list[tuple[str, Any]]:
    """(name, variable) of all that is kept, layer by layer.

    Keras lets two weights have one path. Those after the first are numbered: `block.kernel`, `block#2.kernel`.
    """
    layers = list(dict.fromkeys(_keras_layers(model)))
    of_layers = [variable for layer in layers for variable in layer.weights]
    unique = list({id(variable): variable for variable in (*of_layers, *model.weights)}.values())
    named, times = [], Counter[str]()
    for variable in unique:
        name = variable.path.removeprefix(f"{model.name}/").replace("/", ".")
        times[name] += 1
        layer, dot, kind = name.rpartition(".")
        named.append((name if times[name] == 1 else f"{layer}#{times[name]}{dot or '.'}{kind}", variable))
    return named


def _keras_layers(model: Any) -> Iterator[Any]:
    """The layers of a model and of the models inside it."""
    for layer in model.layers:
        if hasattr(layer, "layers"):
            yield from _keras_layers(layer)
        else:
            yield layer
