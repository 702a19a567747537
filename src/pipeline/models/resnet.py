"""Residual nets for small images.

He, Zhang, Ren and Sun, "Deep residual learning for image recognition", CVPR 2016, section 4.2: three stages of `blocks`
blocks make a net of 6 * blocks + 2 layers with weights.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveInt

from pipeline.contracts import Model
from pipeline.models import Shapes
from pipeline.spec import spec

MOMENTUM, EPSILON = 0.9, 1e-5  # of the batch normalisations: what is kept of a running statistic at each step


@spec
class Resnet(Model):
    """`blocks` blocks in each stage, of two 3x3 convolutions of the stage's `filters` and a shortcut without weights.

    Each stage but the first halves height and width (rounded up). The mean over what is left makes the logits.
    """

    shared_start: ClassVar[bool] = True
    takes = "numbers"

    blocks: PositiveInt = 3
    filters: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (16, 32, 64)

    def __post_init__(self) -> None:
        if any(after < before for before, after in pairwise(self.filters)):
            raise ValueError(
                f"filters={list(self.filters)}: a shortcut drops no channels; none may be fewer than before"
            )

    @property
    def stages(self) -> list[list[tuple[int, int]]]:
        """Of each stage, each block's filters and the stride of its first convolution."""
        return [
            [(filters, 2 if number and not block else 1) for block in range(self.blocks)]
            for number, filters in enumerate(self.filters)
        ]

    def check_shapes(self, shapes: Shapes) -> None:
        _ = shapes.image

    def least_batch(self, shapes: Shapes) -> int:
        """Two where the last images are a single pixel: one value in a channel has no variance."""
        height, width, _ = shapes.image
        return 2 if max(height, width) <= 2 ** (len(self.filters) - 1) else 1

    def torch(self, shapes: Shapes) -> Any:
        from pipeline.models.torch_resnet import Resnet as Net

        return Net(self.stages, shapes.image[2], shapes.classes, MOMENTUM, EPSILON)

    def keras(self, shapes: Shapes) -> Any:
        from pipeline.models.keras_resnet import resnet

        return resnet(self.stages, shapes.image, shapes.classes, MOMENTUM, EPSILON)
