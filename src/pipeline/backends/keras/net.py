"""A Keras model as its builder makes it, ready to take the dataset's batches."""

from __future__ import annotations

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from pipeline.contracts import Model
from pipeline.errors import UserError
from pipeline.machine.memory import is_out_of_memory
from pipeline.machine.quiet import quiet_import
from pipeline.models import Shapes, built, check_outputs, fails_on, takes_channels_first

keras = quiet_import("keras")
global_state = quiet_import("keras.src.backend.common.global_state")

KERAS_NAMES = "object_name_uids"
WITHOUT_VALUES = "uninitialized_variables"  # which Keras gives values to when a later scope ends


def attention(model: Any) -> Counter[str]:
    """Layers of attention by the way in which they were computed."""
    return Counter(layer.way for layer in model._flatten_layers() if getattr(layer, "way", None))


def layer_dtypes(model: Any) -> Counter[tuple[str, str]]:
    """How many layers that hold a matrix of weights compute in which dtype, with weights in which."""
    return Counter(pair for layer in model._flatten_layers() for pair in _dtypes(layer))


def _dtypes(layer: Any) -> set[tuple[str, str]]:
    """Of a layer's own matrices: those of the layers in it are theirs."""
    own = [*layer._trainable_variables, *layer._non_trainable_variables]
    matrices = [keras.backend.standardize_dtype(one.dtype) for one in own if len(one.shape) > 1]
    return {(layer.compute_dtype, dtype) for dtype in matrices if "float" in dtype}


def made(model: Model, shapes: Shapes) -> Any:
    """The Keras model, built.

    Raises UserError for what is not an uncompiled keras.Model, fails on an example or gives another shape than the task
    compares.
    """
    with fresh_names():
        net = built(model.keras, shapes)
        _check_kind(net)
        if takes_channels_first(model, shapes):
            moved = keras.layers.Permute((3, 1, 2), input_shape=shapes.x, name="channels_first")
            net = keras.Sequential([keras.Input(shapes.x), moved, net])
        unbuilt = [layer.name for layer in net._flatten_layers() if not layer.built]
        if not net.built:  # a subclass of keras.Model that has not seen an input
            _tried(net, model, shapes)
        elif unbuilt:  # a Sequential passes over a layer whose build raises NotImplementedError, and those after it
            _tried(net, model, shapes, f"; Keras could not build its layers {', '.join(unbuilt)}")
    _check_losses(net)
    if hasattr(net, "output_shape"):  # a subclass of keras.Model need not know its own
        _check_shape(net.output_shape, shapes)
    return net


def sketch(model: Model, shapes: Shapes) -> Any:
    """The Keras model with variables that have a shape and no values; None where its builder works with values."""
    before = global_state.get_global_attribute(WITHOUT_VALUES)
    global_state.set_global_attribute(WITHOUT_VALUES, [])
    try:
        with keras.StatelessScope(initialize_variables=False):
            return made(model, shapes)
    except Exception:  # whatever it is, the model that has values says so too
        return None
    finally:
        global_state.set_global_attribute(WITHOUT_VALUES, before)


@contextlib.contextmanager
def fresh_names() -> Iterator[None]:
    """Let layers have the names of a fresh process: Keras counts over all that it has built."""
    before = global_state.get_global_attribute(KERAS_NAMES)
    global_state.set_global_attribute(KERAS_NAMES, defaultdict(int))
    try:
        yield
    finally:
        global_state.set_global_attribute(KERAS_NAMES, before)


def called(model: Any, trainable: Any, fixed: Any, x: Any, *, training: bool) -> Any:
    """Outputs, and the new values of what is not trained, for these values of the model's variables.

    A model whose `call` does not take `training` is called without.
    """
    mode = {"training": training} if model._call_has_training_arg else {}
    return model.stateless_call(trainable, fixed, x, **mode)


def description(net: Any) -> str:
    """The model as JSON, as far as Keras can describe it: a class of a user's own may have no `get_config`."""
    try:
        text: str = net.to_json(indent=2)
    except (NotImplementedError, TypeError, ValueError) as error:
        said = " ".join(str(error).split())
        text = json.dumps({"class_name": type(net).__name__, "name": net.name, "no_config": said}, indent=2)
    return text + "\n"


def _check_kind(net: Any) -> None:
    if not isinstance(net, keras.Model):
        raise UserError(f"model: keras() gives a {type(net).__name__}; give a keras.Model")
    if net.compiled:
        raise UserError(
            f"model: {net.name} is compiled, and this stage uses the loss and the optimizer of the config; "
            "give it uncompiled, or use stage=keras"
        )


def _check_losses(net: Any) -> None:
    """Refuse what would be added to the loss, such as regularizers: the loss is the config's."""
    adding = [layer.name for layer in net._flatten_layers() if getattr(layer, "activity_regularizer", None) is not None]
    if adding or net.losses:
        what = f" ({', '.join(adding)})" if adding else ""
        raise UserError(
            f"model: {net.name} adds losses{what}, and this stage trains by the loss of the config alone; take its "
            "regularizers out (optimizer=adamw has weight decay), or use stage=keras"
        )


def _tried(net: Any, model: Model, shapes: Shapes, why: str = "") -> None:
    """Show the model one example: it makes its weights then, and says what it gives. `why` ends the message if not."""
    tokens = shapes.vocabulary is not None
    x = keras.ops.zeros((1, *shapes.x), "int32" if tokens else keras.config.floatx())
    try:
        outputs = net(x)
    except Exception as error:
        if isinstance(error, UserError) or is_out_of_memory(error):
            raise
        raise UserError(f"{fails_on(shapes, error, model.layout)}{why}") from error
    _check_shape(getattr(outputs, "shape", type(outputs).__name__), shapes)


def _check_shape(shape: Any, shapes: Shapes) -> None:
    several = isinstance(shape, dict) or any(isinstance(size, (tuple, list)) for size in shape)
    if isinstance(shape, str) or several:
        raise UserError(
            f"model: gives {f'a {shape}' if isinstance(shape, str) else 'several tensors'}; give one tensor"
        )
    check_outputs(shape, shapes)
