"""What rounding alone puts into the loss of a trained network: the floor that a precision sets.

The guard (guard.py) tries a precision out on a fresh network, whose residuals are large, and there float32 is always
good enough. A training makes the residuals small and the weights large, and then rounding may be all that is left.
Here the residuals of the trained network at its own points are computed in NumPy twice, as the precision rounds and
with more digits; the loss of their difference is the floor. A framework adds up in another order: the floor is an
estimate. NumPy has no BLAS for the dtypes with more digits than float64, nor for float16: a wide network is evaluated
at fewer points there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.contracts.physics import Problem, Solver
from pipeline.machine.precision import FORMATS, Format
from pipeline.pinn import jets
from pipeline.pinn.guard import WORK, as_computed, asked, sample_size
from pipeline.pinn.problem import Functions
from pipeline.pinn.solution import Fitted, Solution, enriched, outputs

INSIDE = "inside"
NEAR = 0.1  # of the loss: a training does not go far below ten times the floor
MORE_DIGITS = {"float64": "longdouble"}  # otherwise float64


@dataclass(frozen=True)
class Floor:
    """`loss`: the floor, None where NumPy has no more digits than the precision; `terms`: of each part of it."""

    loss: float | None
    terms: Mapping[str, float]
    warnings: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """For the receipt."""
        return {"loss_floor": self.loss, "terms": dict(self.terms), "warnings": list(self.warnings)}


def measure(problem: Problem, found: Solution, precision: str, solver: Solver) -> Floor:
    """The floor of a trained network; `solver` says how much a condition and a point near a corner weigh."""
    form = FORMATS[precision]
    exact = np.dtype(MORE_DIGITS.get(form.compute, "float64"))
    if not np.finfo(exact).eps < np.finfo(form.compute).eps:
        return Floor(None, {})
    corner = problem.corner if solver.graded else None
    terms = {}
    for name, points in found.points.items():
        asks = asked(problem) if name == INSIDE else (0, ())
        most = sample_size(found.fitted.layers, *asks, [exact.name, form.compute], WORK // len(found.points))
        some = points[np.linspace(0, len(points) - 1, min(len(points), most)).astype(int)]
        wanted = residuals(problem, found.fitted, name, some, exact.name)
        error = residuals(problem, found.fitted, name, some, form.compute, form).astype(exact) - wanted
        weight = 1.0 if corner is None or name != INSIDE else corner.weight(some)[:, None]
        terms[name] = float(np.sum(np.mean(np.square(weight * error), axis=0)))
    heavy = solver.condition_weight
    loss = sum(value * (1.0 if name == INSIDE else heavy) for name, value in terms.items())
    return Floor(loss, terms, warnings(precision, loss, found.history[-1].loss))


def warnings(precision: str, floor: float, loss: float) -> tuple[str, ...]:
    """What a person should know after the training. float64 has nothing better to advise."""
    if FORMATS[precision].compute == "float64" or floor <= NEAR * loss:
        return ()
    return (
        f"precision={precision}: rounding alone puts {floor:.1e} into the loss ({loss:.1e}): it can fall no further; "
        "use precision=fp64",
    )


def residuals(
    problem: Problem, fitted: Fitted, part: str, points: np.ndarray, dtype: str, form: Format | None = None
) -> np.ndarray:
    """(N, terms): of the equations where `part` is `inside`, otherwise of that condition; computed in `dtype`.

    With a `form` kernels are multiplied as it says (TF32).
    """
    order, seconds = asked(problem) if part == INSIDE else (0, ())
    layers = as_computed(fitted.layers, dtype, form)
    with np.errstate(over="ignore", invalid="ignore"):
        x = jets.coordinates(np, points.astype(dtype), seconds, order)
        added = None
        if fitted.enriched:  # computed once, in float64, and then rounded: as a training has it
            parts = enriched(problem, jets.coordinates(np, points, seconds, order)).parts
            added = jets.Jet(np, parts.astype(dtype), x.coordinates, x.seconds)
        jet = outputs(problem, x, layers, hard=fitted.hard, enrichment=list(fitted.enrichment.values()), added=added)
        if part != INSIDE:
            condition = next(one for one in problem.conditions() if one.name == part)
            return np.asarray(jet.column(condition.output).value - condition.values(points)[:, None].astype(dtype))
        columns = [x.value[:, index : index + 1] for index in range(points.shape[1])]
        unknowns = {**problem.unknowns, **fitted.unknowns}
        return np.concatenate(problem.residuals(columns, jets.JetField(jet), Functions(np), unknowns), axis=1)
