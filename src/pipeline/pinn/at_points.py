"""stage=predict for a solved problem: its functions at points of the user's, by the saved network, in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.contracts.physics import Problem
from pipeline.datasets import number_files
from pipeline.errors import RunError, UserError
from pipeline.machine.capability import Resolved
from pipeline.pinn import solution
from pipeline.pinn.errors import points_sha256
from pipeline.report.csv_file import csv_file
from pipeline.runs import receipt as receipts
from pipeline.runs import weights
from pipeline.runs.result import Result, count
from pipeline.runs.run import Run
from pipeline.runs.saved import check_hashes
from pipeline.runs.source_rows import source_rows

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

SHOWN = 10  # rows in the terminal's table; the CSV has them all
KEY = "stage.points"


def run(experiment: Experiment, resolved: Resolved, run: Run, text: str) -> Result:
    """Predict at the points of the file `text`. Raises UserError for points that do not fit the problem."""
    problem = experiment.problem
    folder = Path(str(experiment.settings.run))
    source = folder / "artifacts" / "model" / "weights.npz"
    fitted, saved = solution.load(source), weights.load(source)
    notes = check_hashes(folder, {"weights": weights.digest(saved)})
    points = read_points(text, problem)
    notes += number_files.of_others(KEY, text, problem.domain.names)
    values = solved(fitted, problem, points, folder)
    receipt = receipts.of_saved(experiment, resolved, saved, _sha256(points))
    receipt["backend"] = "numpy"
    run.journal.write_receipt(receipt)
    path = run.artifact("predictions.csv")
    names = [f"u{number + 1}" for number in range(problem.outputs)] if problem.outputs > 1 else ["u"]
    write_csv(path, [*problem.domain.names, *names], np.hstack([points, values]))
    rows = [(", ".join(problem.domain.names), ", ".join(names))]
    rows += [(_text(point), _text(value)) for point, value in zip(points[:SHOWN], values, strict=False)]
    if len(points) > SHOWN:
        rows.append((f"and {len(points) - SHOWN:,} more", "in predictions.csv"))
    rows += [*source_rows(folder), ("predictions", str(path))]
    return Result(metrics=(count("points", len(points)),), table=tuple(rows), notes=notes)


def solved(fitted: solution.Fitted, problem: Problem, points: np.ndarray, folder: Path) -> np.ndarray:
    """The solution (N, functions) of the run in `folder` at points (N, d). Raises RunError where it is not finite."""
    values = solution.predict(fitted, problem, points)
    if not np.isfinite(values).all():
        first = int(np.argmin(np.isfinite(values).all(axis=1)))
        raise RunError(f"run={folder.name}: the network gives {_text(values[first])} at the point in row {first + 1}")
    return values


def sha256(text: str, problem: Problem) -> str:
    """Hash of the points of a file, as the receipt has it. Raises UserError."""
    return _sha256(read_points(text, problem))


def _sha256(points: np.ndarray) -> str:
    return points_sha256({"points": points})


def read_points(text: str, problem: Problem) -> np.ndarray:
    """Points (N, d) from a .npy file, or from a .csv one with or without a row of names. Raises UserError."""
    names = problem.domain.names
    wanted = f"each row is a point ({', '.join(names)})"
    points = number_files.read(KEY, text, "point", len(names), wanted, names)
    check_inside(points, problem, f"{KEY}={text}")
    return points


def check_inside(points: np.ndarray, problem: Problem, where: str) -> None:
    """Refuse points (N, d) outside the domain. `where` they come from, for the message. Raises UserError."""
    outside = ~problem.domain.contains(points)
    if outside.any():
        first = int(np.argmax(outside))
        raise UserError(
            f"{where}: {int(outside.sum())} of {len(points)} points lie outside the domain, where the "
            f"network was not trained; the first in row {first + 1}: {_text(points[first])}"
        )


def write_csv(path: Path, names: list[str], table: np.ndarray) -> None:
    """A row for each point: its coordinates, then the functions there, with all their digits."""
    with csv_file(path) as writer:
        writer.writerow(names)
        writer.writerows([[repr(float(value)) for value in row] for row in table])


def _text(values: np.ndarray) -> str:
    return ", ".join(f"{value:.6g}" for value in values)
