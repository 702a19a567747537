"""A fully connected network for problems: coordinates, hidden layers, the unknown functions (DeepXDE's FNN)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np
from pydantic import PositiveInt

from pipeline.contracts.physics import Network, Problem
from pipeline.models import weights
from pipeline.runs.weights import Weights
from pipeline.spec import spec


@spec
class Fnn(Network):
    """`units` of each hidden layer (null: those of the problem's recipe). The last layer is linear."""

    units: tuple[PositiveInt, ...] | None = None
    activation: Literal["tanh"] = "tanh"

    def of(self, problem: Problem) -> Fnn:
        """The network as it will be."""
        return self if self.units is not None else replace(self, units=problem.recipe.units)

    def sizes(self, problem: Problem) -> list[int]:
        """From the coordinates to the outputs."""
        units = self.of(problem).units
        assert units is not None
        return [len(problem.domain.names), *units, problem.outputs]

    def initial(self, problem: Problem, seed: int) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """Kernels and biases to start from, in float64: Glorot uniform and zeros."""
        sizes = self.sizes(problem)
        like: Weights = {}
        for number, (inputs, units) in enumerate(pairwise(sizes)):
            like |= {f"{number:02d}.kernel": np.empty((inputs, units)), f"{number:02d}.bias": np.empty(units)}
        arrays = list(weights.initial(like, seed).values())
        return tuple(zip(arrays[::2], arrays[1::2], strict=True))
