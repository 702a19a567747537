"""Whether the model is for examples of the dataset's shape, as far as that can be said without building it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pipeline.errors import UserError
from pipeline.spec import choice

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.models import Shapes

FEW_CHANNELS = (1, 3, 4)  # what an axis of channels usually has: grey, colours, colours and transparency


def check_shapes(experiment: Experiment, shapes: Shapes) -> None:
    """Refuse examples that the model cannot be built for. Raises UserError."""
    model, dataset = choice(experiment.model), choice(experiment.dataset)
    try:
        experiment.data_model.check_shapes(shapes)
    except ValueError as error:
        if re.match(r"\w+=", str(error)):  # a field of the model, as `filters=[8, 8]: ...`
            raise UserError(f"model.{error}{_turned(experiment, shapes)}") from error
        hint = "; model=mlp and model=linear take any shape" if shapes.vocabulary is None else ""
        raise UserError(f"model={model} with dataset={dataset}: {error}{hint}") from error


def said_of_layout(experiment: Experiment, shapes: Shapes) -> str | None:
    """Where examples that are taken as images (height, width, channels) look like (channels, height, width)."""
    turned = _turned(experiment, shapes)
    if not turned:
        return None
    height, width, channels = shapes.x
    taken = f"examples of shape {shapes.x} are taken as {height}x{width} images of {channels} channels"
    return f"dataset={choice(experiment.dataset)}: {taken}{turned}"


def _turned(experiment: Experiment, shapes: Shapes) -> str:
    """A hint for datasets that have a layout, where the examples are probably of the other one."""
    if getattr(experiment.dataset, "layout", None) != "channels_last" or len(shapes.x) != 3:
        return ""
    first, _, last = shapes.x
    if first not in FEW_CHANNELS or last in FEW_CHANNELS:
        return ""
    return "; if they are (channels, height, width), set dataset.layout=channels_first"
