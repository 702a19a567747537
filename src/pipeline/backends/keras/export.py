"""A Keras model in formats that others read: weights (safetensors), Keras's own file, TensorFlow's SavedModel."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from pipeline.backends.keras import fit, net
from pipeline.backends.shared.exported import Exported
from pipeline.datasets import Data
from pipeline.errors import RunError
from pipeline.machine.capability import Resolved
from pipeline.models import weights
from pipeline.models.keras_layers import BatchNormalization, Convolution, gelu
from pipeline.runs.weights import Weights

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

STOCK = {Convolution: keras.layers.Conv2D, BatchNormalization: keras.layers.BatchNormalization}  # for layers of ours
PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")  # operations that call back into the process that made them


def write(
    experiment: Experiment,
    data: Data,
    saved: Weights,
    resolved: Resolved,
    form: str,
    folder: Path,
    x: np.ndarray,
) -> Exported:
    """Write the model with the weights `saved` as `form` into `folder`.

    A program takes x as `Data.scaled` gives it, and normalises it first. Raises RunError for a layer that the format
    cannot hold.
    """
    with fit.runtime_settings(experiment, resolved):
        model = net.made(experiment.data_model, data.task.shapes)
        weights.to_keras(model, saved, "the saved run")
        WRITERS[form](model, folder, data)
        dtypes = {str(layer.compute_dtype) for layer in model._flatten_layers() if layer.weights}
        tensors = {name: _widened(one) for name, one in _tensors(model).items()} if form == "safetensors" else {}
    return Exported(form != "safetensors", tuple(sorted(dtypes)), tensors)


def _tensors(model: Any) -> dict[str, np.ndarray]:
    return {variable.path: keras.ops.convert_to_numpy(variable.value) for variable in model.weights}


def _widened(tensor: np.ndarray) -> np.ndarray:
    return tensor.astype(np.float32) if tensor.dtype.name == "bfloat16" else tensor


def _program(model: Any, data: Data) -> Any:
    """The model behind two layers that normalise what it is given, where its inputs are normalised.

    Keras's `Normalization` would make float32 of the numbers first, in a float64 model too.
    """
    by = data.normalisation
    if by is None:
        return model
    shape = data.task.shapes.x
    along = (1,) * (len(shape) - 1) + (-1,)  # the last axis, whatever image layout the reader's Keras prefers
    mean, std = (np.array(each, np.float64).reshape(along) for each in (by.mean, by.std))
    first = [keras.layers.Rescaling(1.0, offset=-mean), keras.layers.Rescaling(1 / std)]
    return keras.Sequential([keras.Input(shape), *first, model])


def _safetensors(model: Any, folder: Path, data: Data) -> None:
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(one) for name, one in _tensors(model).items()}, folder / "model.safetensors")


def _keras(model: Any, folder: Path, data: Data) -> None:
    """Keras's own file names each layer's class, so all have to be Keras's."""
    for layer in model._flatten_layers():  # the model itself first
        kind = type(layer)
        if kind not in STOCK and kind.__module__.partition(".")[0] != "keras":
            what = "the model" if layer is model else f"layer {layer.name}"
            raise RunError(
                f"stage.format=keras: cannot hold {what} ({kind.__module__}.{kind.__name__}): the file names a class "
                "that a process without its code does not have; backend=tensorflow stage.format=saved_model holds it"
            )
    stock = keras.models.clone_model(model, clone_function=_stock)
    stock.set_weights(model.get_weights())
    _program(stock, data).save(folder / "model.keras")


def _stock(layer: Any) -> Any:
    """The layer as Keras itself has it: ours differ in how they are computed, or in training, alone."""
    config = layer.get_config()
    for name in ("activation", "recurrent_activation"):
        if getattr(layer, name, None) is gelu:
            config[name] = "gelu"
    return STOCK.get(type(layer), type(layer)).from_config(config)


def _saved_model(model: Any, folder: Path, data: Data) -> None:
    target = folder / "saved_model"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            _program(model, data).export(target, format="tf_saved_model", verbose=False)
    except Exception as error:  # whatever TensorFlow raises of a layer that it cannot trace
        said = " ".join(str(error).split())[:300] or type(error).__name__
        raise RunError(f"stage.format=saved_model: {said}") from error
    for node in _nodes(target):
        if node.op in PYTHON:
            raise RunError(
                f"stage.format=saved_model: cannot hold {node.op} of {node.name.rpartition('/')[0] or 'the model'}: it "
                "calls Python, which the file does not hold"
            )


def _nodes(target: Path) -> Iterator[Any]:
    """Every operation of a SavedModel, by its own list; a node's name begins with its layer's."""
    from tensorflow.core.protobuf import saved_model_pb2

    stored = saved_model_pb2.SavedModel.FromString((target / "saved_model.pb").read_bytes())
    for graph in stored.meta_graphs:
        for function in graph.graph_def.library.function:
            yield from function.node_def


WRITERS: dict[str, Callable[[Any, Path, Data], None]] = {
    "safetensors": _safetensors,
    "keras": _keras,
    "saved_model": _saved_model,
}
