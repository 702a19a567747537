"""How far a solution is from the problem's reference, on a fixed grid."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.contracts.physics import Problem
from pipeline.pinn.solution import Fitted, Moment, Solution, predict
from pipeline.report.csv_file import csv_file

WAY_POINTS = 1000  # of the grid on which the history's errors are taken


@dataclass(frozen=True)
class Measured:
    """A solution and the reference (N, outputs) on a grid (N, d)."""

    grid: np.ndarray
    values: np.ndarray
    reference: np.ndarray

    @property
    def relative_l2(self) -> float:
        return float(np.linalg.norm(self.values - self.reference) / np.linalg.norm(self.reference))

    @property
    def largest(self) -> float:
        """The maximum error."""
        return float(np.abs(self.values - self.reference).max())


def measure(problem: Problem, fitted: Fitted, points: int) -> Measured:
    """On about so many regular points of the closed domain."""
    grid = problem.domain.grid(points)
    return Measured(grid, predict(fitted, problem, grid), problem.reference(grid))


def over_seeds(problem: Problem, found: Solution, points: int) -> list[float]:
    """The relative L2 error of each seed, where several were trained at once."""
    return [measure(problem, one.fitted, points).relative_l2 for one in found.seeds]


def along(problem: Problem, history: Sequence[Moment]) -> list[float]:
    """The relative L2 error at each moment of the history."""
    grid = problem.domain.grid(WAY_POINTS)
    reference = problem.reference(grid)
    return [Measured(grid, predict(moment.fitted, problem, grid), reference).relative_l2 for moment in history]


def write_history(path: Path, history: Sequence[Moment], errors: Sequence[float]) -> None:
    """A row for each moment: step, seconds of training and of everything, loss, its terms, the error."""
    with csv_file(path) as writer:
        writer.writerow(["step", "training_s", "wall_s", "loss", *history[0].terms, "relative_l2"])
        for moment, error in zip(history, errors, strict=True):
            row = [moment.loss, *moment.terms.values(), error]
            writer.writerow([moment.step, f"{moment.seconds:.4f}", f"{moment.wall_s:.4f}", *row])


def points_sha256(points: Mapping[str, np.ndarray]) -> str:
    """Hash of the training points, part by part."""
    total = hashlib.sha256()
    for name, array in points.items():
        total.update(f"{name} {array.shape}".encode())
        total.update(np.ascontiguousarray(array, np.float64).tobytes())
    return total.hexdigest()
