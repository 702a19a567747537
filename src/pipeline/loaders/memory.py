"""The default: the whole set lies on the device as tensors, and a batch is gathered there. For data that fits."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt

from pipeline.contracts import Loader
from pipeline.spec import spec


@spec
class Memory(Loader):
    """`steps_per_execution` optimizer steps run before Python looks at their losses (Keras's term and meaning)."""

    backends: ClassVar[tuple[str, ...]] = ("torch", "tensorflow", "jax")

    steps_per_execution: PositiveInt = 64
