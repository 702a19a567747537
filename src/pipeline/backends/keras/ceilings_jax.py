"""JAX's ceilings on a device: operations compiled by XLA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from pipeline.backends.keras.arrays_jax import Arrays
from pipeline.backends.shared.ceiling_bench import Bench, Call, Operations
from pipeline.machine import energy
from pipeline.machine.ceilings import Ceiling


class Jax(Arrays, Operations):
    """On `cpu` or `gpu:0`."""

    name: ClassVar[str] = "jax"

    def cast(self, array: jax.Array, dtype: str) -> jax.Array:
        return array.astype(dtype)

    def product(self, a: jax.Array, b: jax.Array) -> Call:
        product = jax.jit(jnp.matmul)
        return lambda: product(a, b)

    def add(self, a: jax.Array, b: jax.Array) -> Call:
        add = jax.jit(jnp.add)
        return lambda: add(a, b)

    def convolution(self, x: jax.Array, w: jax.Array) -> Call:
        def convolve(x: jax.Array, w: jax.Array) -> Any:
            axes = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=axes)

        compiled = jax.jit(convolve)
        return lambda: compiled(x, w)


def measured(place: str, rounds: int) -> Iterator[list[Ceiling]]:
    """Everything in the dtype that it says: float64 as such, and no TF32."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")
    return Bench(Jax(place), place, energy.meter(place)).measured(rounds)
