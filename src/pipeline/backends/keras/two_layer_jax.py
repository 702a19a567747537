"""The two-layer net in JAX: by jax.grad and in Keras, and two ways to run one step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from pipeline.backends.keras.arrays_jax import Arrays
from pipeline.backends.keras.two_layer_keras import Layers, in_float64
from pipeline.backends.shared.two_layer import Form, Way


def loss_of(w1: jax.Array, w2: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """The weights first, by which it is differentiated."""
    return jnp.sum(jnp.square(jnp.maximum(x @ w1, 0) @ w2 - y))


def step(x: jax.Array, y: jax.Array, w1: jax.Array, w2: jax.Array, rate: float) -> tuple[jax.Array, ...]:
    """The whole step, its gradients by jax.grad."""
    loss, (by_w1, by_w2) = jax.value_and_grad(loss_of, (0, 1))(w1, w2, x, y)
    return loss, w1 - rate * by_w1, w2 - rate * by_w2


class Grad(Form):
    """jax.value_and_grad."""

    name: ClassVar[str] = "jax_grad"
    how: ClassVar[str] = "jax.value_and_grad"

    def step(self) -> None:
        self.last, self.w1, self.w2 = step(self.x, self.y, self.w1, self.w2, self.rate)


class Eager(Way):
    """Operation by operation, each compiled when it is first met."""

    name: ClassVar[str] = "jax_eager"
    how: ClassVar[str] = "operation by operation"
    eager: ClassVar[bool] = True

    def build(self) -> Callable[..., Any]:
        return partial(step, rate=self.rate)


class Jit(Way):
    """jax.jit: one program, compiled by XLA."""

    name: ClassVar[str] = "jax_jit"
    how: ClassVar[str] = "jax.jit"
    saved_as: ClassVar[str | None] = "jax_export"

    def build(self) -> Callable[..., Any]:
        self.jitted = jax.jit(partial(step, rate=self.rate))
        return self.jitted

    def save(self, folder: Path) -> None:
        from jax import export

        (folder / "step.bin").write_bytes(export.export(self.jitted)(self.x, self.y, *self.held()).serialize())


FORMS: tuple[type[Form], ...] = (Grad, Layers)
WAYS: tuple[type[Way], ...] = (Eager, Jit)


def arrays(place: str) -> Arrays:
    """JAX's arrays on `place` (`cpu` or `gpu:0`), with float64."""
    jax.config.update("jax_enable_x64", True)
    in_float64()
    return Arrays(place)
