"""What the compiled part of a training on Keras does: engine_jax.py and engine_tensorflow.py have one each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from pipeline.loaders.batch_plan import Block
from pipeline.runs.fit import Observation


class Engine(Protocol):
    """The compiled part of a fit. `compile_s`: seconds spent on compiling so far, as far as they are known.

    `untimed`: examples of the steps that were taken in these seconds.
    """

    compile_s: float
    untimed: int
    optimizer: Any

    def resident(self, x: np.ndarray, y: np.ndarray, steps: int) -> None:
        """Put the training data on the device; blocks are of `steps` steps at most."""
        ...

    def block(self, block: Block) -> tuple[np.ndarray, ...]:
        """The block's batches, of the resident data; mean losses (k,) and sums of scores (k,).

        Where the loss is scaled, also the scale (k,) after each; where it is measured, the gradient's norm (k,).
        """
        ...

    def batch(self, x: Any, y: Any, block: Block) -> tuple[Any, ...]:
        """A batch from the host, which `block` describes; what `block` returns, as scalars on the device."""
        ...

    def values(self) -> list[np.ndarray]:
        """All that decides the rest of the training, copied to the host."""
        ...

    def snapshot(self) -> Callable[[], list[np.ndarray]]:
        """What gives these values, later and from another thread, until the next snapshot."""
        ...

    def put(self, values: list[np.ndarray]) -> None:
        """Put back what `values` returned."""
        ...

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """The moving average in the place of the model's weights, where there is one."""
        ...

    def waiter(self) -> Callable[[], Any]:
        """A function that waits until the device has done the steps on batches so far."""
        ...

    def settle(self) -> None:
        """Wait until the device has done the steps so far."""
        ...

    def sync(self) -> None:
        """Bring the Keras model's variables up to date with the steps that have run."""
        ...

    def observe(self) -> Observation:
        """What the compiled step that ran consists of."""
        ...

    def accounts(self) -> dict[str, object] | None:
        """For the receipt: what several devices had, where there are several."""
        ...
