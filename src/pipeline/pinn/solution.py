"""What a solver finds: the network with its coefficients, which predicts in NumPy alone, and how the training went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.contracts.physics import Problem
from pipeline.errors import UserError
from pipeline.pinn import jets
from pipeline.runs import weights

Layers = tuple[tuple[np.ndarray, np.ndarray], ...]  # (kernel, bias) of each, the last one linear

CHUNK = 20_000  # points predicted at once


@dataclass(frozen=True)
class Fitted:
    """A tanh network, the coefficients found beside it, and what else is added to it or done to its outputs.

    `enrichment` has a coefficient for each of `problem.enriched`, where the problem's enrichment was used (`enriched`);
    `unknowns` for each of an inverse problem's. `hard`: the outputs are put through `problem.hard`.
    """

    layers: Layers
    enrichment: Mapping[str, float] = field(default_factory=dict)
    unknowns: Mapping[str, float] = field(default_factory=dict)
    hard: bool = False
    enriched: bool = False


@dataclass(frozen=True)
class Moment:
    """How things stood after a step: seconds of training so far, the total loss, each term, and what was fitted.

    `wall_s`: everything since the solver was called, after the imports: what `seconds` leaves out is in it.
    """

    step: int
    seconds: float
    loss: float
    terms: Mapping[str, float]
    fitted: Fitted
    wall_s: float = math.nan


@dataclass(frozen=True)
class Solution:
    """`points`: what was trained on, by part (`inside`, and a name for each condition).

    `residual_evaluations` counts points of residuals and conditions, each as often as it was evaluated. `dtypes`:
    of the parameters and of the loss, as seen. `compile_s` is beside `seconds`; None where compiling has no clock of
    its own. `seeds`: where several were trained at once, the solution of each; this one is then the one of the lowest
    loss.
    """

    fitted: Fitted
    points: Mapping[str, np.ndarray]
    history: tuple[Moment, ...]
    steps: int
    seconds: float
    compile_s: float | None
    parameters: int
    residual_evaluations: int
    dtypes: Mapping[str, str]
    peak_memory: Mapping[str, int]
    seeds: tuple[Solution, ...] = ()
    device: str | None = None  # where the parameters lay, by the framework's name


def outputs(
    problem: Problem, x: jets.Jet, layers: Sequence[Any], *, hard: bool, enrichment: Any = (), added: Any = None
) -> jets.Jet:
    """The problem's functions at the coordinates `x`: the network, what it is enriched by, and the hard conditions.

    `added`, where there is enrichment: the columns of `enriched`, each with its coefficient of `enrichment`; they go to
    the first function.
    """
    u = jets.network(x, layers)
    values = [u.column(index) for index in range(problem.outputs)]
    for index, coefficient in enumerate(enrichment):
        values[0] = values[0] + added.column(index) * coefficient
    if hard:
        values = list(problem.hard(_columns(x), values, jets.JetMath(x.xp)))
    return _side_by_side(values)


def enriched(problem: Problem, x: jets.Jet) -> jets.Jet:
    """The functions that the problem is enriched by, a column each."""
    return _side_by_side(problem.enrichment(_columns(x), jets.JetMath(x.xp)))


def _columns(x: jets.Jet) -> list[jets.Jet]:
    return [x.column(index) for index in range(x.value.shape[1])]


def _side_by_side(columns: Sequence[jets.Jet]) -> jets.Jet:
    first = columns[0]
    return jets.Jet(
        first.xp, first.xp.concatenate([one.parts for one in columns], axis=-1), first.coordinates, first.seconds
    )


def predict(fitted: Fitted, problem: Problem, points: np.ndarray) -> np.ndarray:
    """The solution (N, outputs) at points (N, d). Needs no framework. Raises UserError for points that do not fit."""
    dimension = len(problem.domain.names)
    if points.ndim != 2 or points.shape[1] != dimension:
        raise UserError(
            f"points of shape {points.shape}: a point of this problem is ({', '.join(problem.domain.names)})"
        )
    parts = [points[start : start + CHUNK] for start in range(0, len(points), CHUNK)]
    return np.concatenate([np.empty((0, problem.outputs)), *(_values(fitted, problem, part) for part in parts)])


def _values(fitted: Fitted, problem: Problem, points: np.ndarray) -> np.ndarray:
    x = jets.coordinates(np, points.astype(np.float64), (), order=0)
    return np.asarray(at(x, fitted, problem).value, dtype=np.float64)


def at(x: jets.Jet, fitted: Fitted, problem: Problem) -> jets.Jet:
    """The solution at the coordinates `x`, which are NumPy's, with the derivatives that they carry; in float64."""
    layers = [(kernel.astype(np.float64), bias.astype(np.float64)) for kernel, bias in fitted.layers]
    added = enriched(problem, x) if fitted.enriched else None
    coefficients = list(fitted.enrichment.values())
    return outputs(problem, x, layers, hard=fitted.hard, enrichment=coefficients, added=added)


def as_weights(fitted: Fitted) -> weights.Weights:
    """All that was fitted, as arrays by name."""
    stored: weights.Weights = {}
    for number, (kernel, bias) in enumerate(fitted.layers):
        stored |= {f"{number:02d}.kernel": kernel, f"{number:02d}.bias": bias}
    stored |= {f"enrichment.{name}": np.array(value) for name, value in fitted.enrichment.items()}
    stored |= {f"unknowns.{name}": np.array(value) for name, value in fitted.unknowns.items()}
    return {**stored, "hard": np.array(fitted.hard), "enriched": np.array(fitted.enriched)}


def save(path: Path, fitted: Fitted) -> None:
    """Write an .npz of plain arrays from which `load` makes the same again."""
    weights.save(path, as_weights(fitted))


def load(path: Path) -> Fitted:
    """Read what `save` wrote. Raises UserError for a file that is missing, damaged or something else."""
    stored = weights.load(path)
    kernels = [name for name in stored if name.endswith(".kernel")]
    if not {"hard", "enriched"} <= set(stored) or not kernels:
        raise UserError(f"{path}: not a network of stage=pinn; it has {', '.join(stored)}")
    return from_weights(stored)


def from_weights(stored: weights.Weights) -> Fitted:
    """What `as_weights` was made of."""

    def named(group: str) -> dict[str, float]:
        return {name.partition(".")[2]: float(stored[name]) for name in stored if name.startswith(f"{group}.")}

    kernels = [name for name in stored if name.endswith(".kernel")]
    layers = tuple((stored[name], stored[name.replace("kernel", "bias")]) for name in kernels)
    hard, enriched = bool(stored["hard"]), bool(stored["enriched"])
    return Fitted(layers, named("enrichment"), named("unknowns"), hard, enriched)


def history_as_plain(rows: Sequence[Moment]) -> list[dict[str, Any]]:
    """A history as plain data, but for what was fitted."""
    names = ("step", "seconds", "loss", "terms", "wall_s")
    return [{name: getattr(row, name) for name in names} for row in rows]


def history_arrays(rows: Sequence[Moment]) -> dict[str, np.ndarray]:
    """What was fitted at each row: (rows, ...) by name."""
    each = [as_weights(row.fitted) for row in rows]
    return {name: np.stack([one[name] for one in each]) for name in (each[0] if each else {})}


def history_from(rows: Sequence[Mapping[str, Any]], arrays: Mapping[str, np.ndarray]) -> list[Moment]:
    """The history of `history_as_plain` and `history_arrays`."""
    fitted = [from_weights({name: array[at] for name, array in arrays.items()}) for at in range(len(rows))]
    return [Moment(**row, fitted=one) for row, one in zip(rows, fitted, strict=True)]
