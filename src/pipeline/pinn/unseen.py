"""How well the equations hold at other points than those of the training: what can be known without a reference.

A loss is of the training points alone. Between them a network can leave the solution and come back, and its loss is as
small as that of a good one; the residual at other points is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.contracts.physics import Problem
from pipeline.pinn import jets, solution
from pipeline.pinn.guard import asked
from pipeline.pinn.problem import Functions
from pipeline.pinn.solution import Fitted, Layers

POINTS = 1000  # unseen ones
FAR = 100.0  # times the residual that was trained
MUCH = 0.01  # of the residual before the training


@dataclass(frozen=True)
class Residuals:
    """Root mean squares over all equations: at the points of the training, at unseen ones, and there before it."""

    trained: float
    unseen: float
    before: float

    @property
    def warnings(self) -> tuple[str, ...]:
        if self.unseen <= max(FAR * self.trained, MUCH * self.before):
            return ()
        return (
            f"the equations hold at the training points (residual {self.trained:.1e}) and not between them "
            f"({self.unseen:.1e}): the loss does not show this error; give more points (dataset.interior)",
        )


def measure(
    problem: Problem, fitted: Fitted, start: Layers, points: Mapping[str, np.ndarray], seed: int
) -> Residuals | None:
    """Of `points`, the part `inside` is what was trained; `start` is a Glorot network, whose residual is the measure.

    None for a problem without equations.
    """
    if not problem.equations:
        return None
    others = problem.domain.inside(POINTS, np.random.default_rng([seed, 3]))
    return Residuals(
        trained=root_mean_square(problem, fitted, points["inside"]),
        unseen=root_mean_square(problem, fitted, others),
        before=root_mean_square(problem, Fitted(start), others),
    )


def root_mean_square(problem: Problem, fitted: Fitted, points: np.ndarray) -> float:
    """Of all residuals at the points (N, d), in float64."""
    order, seconds = asked(problem)
    x = points.astype(np.float64)
    jet = solution.at(jets.coordinates(np, x, seconds, order), fitted, problem)
    columns = [x[:, index : index + 1] for index in range(x.shape[1])]
    found = problem.residuals(columns, jets.JetField(jet), Functions(np), {**problem.unknowns, **fitted.unknowns})
    return float(np.sqrt(np.mean(np.square(found))))
