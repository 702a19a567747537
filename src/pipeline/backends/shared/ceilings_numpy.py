"""NumPy's ceilings: its BLAS in the dtypes that BLAS has, loops in float16."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from pipeline.backends.shared.arrays_numpy import Arrays
from pipeline.backends.shared.ceiling_bench import Bench, Call, Operations
from pipeline.machine.ceilings import Ceiling


class Numpy(Arrays, Operations):
    """On the CPU."""

    name: ClassVar[str] = "numpy"
    missing: ClassVar[Mapping[str, str]] = {
        "convolution": "NumPy has no convolution of images",
        "bfloat16": "NumPy has no bfloat16",
    }

    def cast(self, array: Any, dtype: str) -> np.ndarray:
        return np.asarray(array).astype(dtype)

    def product(self, a: Any, b: Any) -> Call:
        return lambda: a @ b

    def add(self, a: Any, b: Any) -> Call:
        return lambda: a + b


def measured(place: str, rounds: int) -> Iterator[list[Ceiling]]:
    """The ceilings on `place`, which is `cpu`: what is known so far, after each of them."""
    return Bench(Numpy(), place).measured(rounds)
