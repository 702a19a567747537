"""Models: one file each, a spec with its torch and Keras builders side by side.

Images travel as (N, H, W, C) in every backend, so that a flattened image, and with it a Dense kernel, means the same in
each. Weights are exchanged in Keras's layout: a Dense kernel is (in, out), a convolution's is (height, width, in, out).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import Field

from pipeline.contracts import Model
from pipeline.errors import UserError, cut, shown
from pipeline.raised import COLOURS, in_words, place, where

Activation = Literal["relu", "tanh", "sigmoid", "gelu", "silu", "elu"]
KERAS_BEGINS = re.compile(r"Exception encountered when calling ")  # the line above what is said of it
WIDE = 4096  # a square matrix of this width takes 0.25 GiB with gradients and Adam's moments, for which there is room
PADDING = 0  # the token that sequences of different lengths are filled up with
LayerDtype = Literal["float16", "bfloat16", "float32", "float64"]
Rate = Annotated[float, Field(ge=0, lt=1)]  # of a dropout


@dataclass(frozen=True)
class Shapes:
    """What a model is built for: the shape of one example, of its output, and what the example is made of.

    `vocabulary`: x holds integers below it (tokens); None: x holds real numbers.
    """

    x: tuple[int, ...]
    outputs: tuple[int, ...]
    vocabulary: int | None = None

    @property
    def image(self) -> tuple[int, int, int]:
        """Height, width and channels. Raises ValueError where an example is not an image."""
        if len(self.x) != 3 or self.vocabulary is not None:
            what = f"shape {self.x}" + (" and hold tokens" if self.vocabulary is not None else "")
            raise ValueError(f"takes images (height, width, channels); the examples of this dataset have {what}")
        height, width, channels = self.x
        return height, width, channels

    @property
    def numbers(self) -> tuple[int, ...]:
        """The shape of an example of real numbers, whatever it is. Raises ValueError where an example is of tokens."""
        if self.vocabulary is not None:
            raise ValueError("takes numbers; the examples of this dataset hold tokens")
        return self.x

    @property
    def sequence(self) -> tuple[int, int]:
        """Length of a sequence of tokens, and their vocabulary. Raises ValueError where an example is none."""
        if self.vocabulary is None or len(self.x) != 1:
            raise ValueError(
                f"takes tokens, and the examples of this dataset have shape {self.x}; "
                "choose a dataset of text, such as dataset=moby_dick"
            )
        return self.x[0], self.vocabulary

    @property
    def classes(self) -> int:
        """How many numbers the last axis of the output has: one logit for each class."""
        return self.outputs[-1]


def built(builder: Callable[[Shapes], Any], shapes: Shapes) -> Any:
    """What a model's builder makes of `shapes`. Its ValueError (a model too deep for the images) is a UserError.

    So is whatever a builder of the user's raises, with the line of their file.
    """
    try:
        return builder(shapes)
    except ValueError as error:
        message = " ".join(str(error).split())
        names_a_field = re.match(r"\w+=", message)
        raise UserError(f"model{'.' if names_a_field else ': '}{message}{where(error)}") from error
    except Exception as error:
        if place(error) is None:
            raise
        raise UserError(f"model: its builder fails: {in_words(error)}") from error


def largest_setting(model: Model) -> str:
    """The setting with the largest integer, which mostly decides the size, with its key: `model.width=512`."""
    largest = _largest(model)
    if not largest:
        return "the model"
    name = max(largest, key=lambda one: largest[one])
    return f"model.{name}={shown(getattr(model, name))}"


def may_be_too_large(model: Model) -> bool:
    """Whether a model has a setting so large that it is worth asking for its size before a run begins."""
    return max(_largest(model).values(), default=0) > WIDE


def _largest(model: Model) -> dict[str, int]:
    """The largest integer of each setting that has any."""
    settings = {field.name: getattr(model, field.name) for field in fields(model)}  # type: ignore[arg-type]  # a spec
    return {name: max(found) for name, value in settings.items() if (found := _integers(value))}


def _integers(value: object) -> list[int]:
    """Those that a setting consists of."""
    items = value if isinstance(value, tuple | list) else (value,)
    return [item for item in items if isinstance(item, int) and not isinstance(item, bool)]


def takes_channels_first(model: Model, shapes: Shapes) -> bool:
    """Whether a model's module takes (N, C, H, W). Raises UserError where the examples are not images."""
    if model.layout == "channels_first":
        try:
            return bool(shapes.image)
        except ValueError as error:
            raise UserError(f"model: layout=channels_first {error}") from error
    return False


def fails_on(shapes: Shapes, error: Exception, layout: str, *, if_turned: bool = False) -> UserError:
    """A model's own error on one example, with what it was given; `if_turned`: it takes the other order of axes."""
    height, width, channels = shapes.x if len(shapes.x) == 3 else (0, 0, 0)
    sizes = (channels, height, width) if layout == "channels_first" else shapes.x
    given = f"a batch of shape ({', '.join(map(str, (1, *sizes)))})"
    if if_turned:
        given += f", but takes ({', '.join(map(str, (1, channels, height, width)))}): images are (N, H, W, C) here"
        return UserError(f'model: fails on {given}; write layout: ClassVar = "channels_first" in its class')
    lines = [line for line in COLOURS.sub("", str(error)).splitlines() if line.strip() and not KERAS_BEGINS.match(line)]
    said = lines[0].strip() if lines else ""
    return UserError(f"model: fails on {given}: {type(error).__name__}: {cut(said, 300)}{where(error)}")


def check_outputs(shape: Sequence[int | None], shapes: Shapes) -> None:
    """Refuse a model whose output is not what the task compares: a loss would crash on it, or take it."""
    if tuple(shape[1:]) != shapes.outputs:
        found, wanted = (", ".join(["N", *map(str, sizes)]) for sizes in (shape[1:], shapes.outputs))
        raise UserError(f"model: gives ({found}); the dataset's task needs ({wanted})")
