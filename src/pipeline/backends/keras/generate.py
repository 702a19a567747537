"""Generation in Keras: a window and a step are compiled functions of fixed shapes; the cache goes in and comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.backends.keras.fit import BACKEND, runtime_settings
from pipeline.backends.keras.net import made
from pipeline.machine.capability import Resolved
from pipeline.machine.quiet import quiet_import
from pipeline.models import Shapes, weights
from pipeline.runs.weights import Weights

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

module = quiet_import(f"pipeline.backends.keras.generate_{BACKEND}")
SHORTEST = 16  # tokens of a compiled window; longer ones have twice as many, and so on


class Steps:
    """See pipeline.backends.shared.generation."""

    def __init__(self, experiment: Experiment, shapes: Shapes, saved: Weights, resolved: Resolved) -> None:
        self.experiment, self.resolved, self.context = experiment, resolved, shapes.x[0]
        with runtime_settings(experiment, resolved):
            self.model = made(experiment.data_model, shapes)
            weights.to_keras(self.model, saved, "the saved run")
            cached: Any = experiment.data_model.keras_cached(self.model)
            self._prefill, self._step = (
                module.Compiled(self.model, one, experiment) for one in (cached.prefill, cached.step)
            )
        self.cache: Any = None

    def put(self, saved: Weights) -> None:
        """Go on with these weights, without compiling anew."""
        with runtime_settings(self.experiment, self.resolved):
            weights.to_keras(self.model, saved, "the saved run")
            for program in (self._prefill, self._step):
                program.read()

    def prefill(self, tokens_BT: np.ndarray, lengths_B: np.ndarray, /) -> np.ndarray:
        """Logits (B, V) float64."""
        batch, length = tokens_BT.shape
        full_BT = np.zeros((batch, window(length, self.context)), np.int32)
        full_BT[:, :length] = tokens_BT
        return self._run(self._prefill, full_BT, lengths_B)

    def step(self, tokens_B: np.ndarray, at_B: np.ndarray, /) -> np.ndarray:
        """Logits (B, V) float64."""
        return self._run(self._step, tokens_B, at_B, self.cache)

    def _run(self, work: Any, *arguments: Any) -> np.ndarray:
        with runtime_settings(self.experiment, self.resolved):
            logits_BV, self.cache = work(*arguments)
            return np.asarray(logits_BV).astype(np.float64)


def window(length: int, context: int) -> int:
    """How many tokens a window of `length` is filled up to, so that few lengths are compiled: a power of two."""
    full = SHORTEST
    while full < length:
        full *= 2
    return min(full, context)
