"""The equations' residual at points that no training saw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import pipeline, runs

from pipeline.pinn import solution, unseen
from pipeline.pinn.problems.function import Function
from pipeline.pinn.problems.ode import Ode
from pipeline.pinn.unseen import Residuals
from pipeline.runs.records import read_metrics

ODE = ("stage=pinn", "dataset=ode", "solver=gauss_newton", "solver.steps=60", "model.units=[30]", "tracking=none")
START = ((np.zeros((1, 2)), np.zeros(2)),)
EASY = ("solver.scale=1.0", "solver.conditions=hard")


def trained(folder: Path, interior: int) -> tuple[Path, str]:
    """A run on so many points, and what it said."""
    result = pipeline(folder, *ODE, *EASY, f"dataset.interior={interior}")
    assert result.returncode == 0, result.stderr
    return runs(folder)[-1], " ".join((result.stdout + result.stderr).split())


@pytest.mark.parametrize(("interior", "between"), [pytest.param(6, False, marks=pytest.mark.wide), (30, True)])
@pytest.mark.wide
def test_a_network_that_leaves_the_solution_between_its_points_is_noted(
    tmp_path: Path, interior: int, between: bool
) -> None:
    """With six points its loss is next to nothing and the solution wrong: only the residual at other points tells."""
    run, said = trained(tmp_path, interior)
    found = json.loads((run / "result.json").read_text())["scalars"]
    assert found["train/loss"] < 1e-3
    assert (found["test/relative_l2"] < 0.1) == between
    assert (found["test/residual"] < 100 * found["train/residual"]) == between
    assert ("the equations hold at the training points" in said) != between
    assert f"{found['test/residual']:.1e} at others" in said


@pytest.mark.wide
def test_the_residual_at_the_training_points_is_the_loss_of_the_equations(tmp_path: Path) -> None:
    run, _ = trained(tmp_path, 20)
    found = json.loads((run / "result.json").read_text())["scalars"]
    *_, end = read_metrics(run)
    last = end.metrics
    mean = (last["train/y1' - y2"] + last["train/y2' + y1"]) / 2
    assert found["train/residual"] == pytest.approx(np.sqrt(mean), rel=1e-3)
    fitted = solution.load(run / "artifacts" / "model" / "weights.npz")
    problem: Any = Ode()
    again = unseen.measure(problem, fitted, START, {"inside": np.zeros((1, 1))}, seed=0)
    assert again is not None and again.unseen == found["test/residual"]


def test_a_plain_fit_has_no_equations() -> None:
    nothing = solution.Fitted(((np.zeros((1, 1)), np.zeros(1)),))
    plain: Any = Function()
    assert unseen.measure(plain, nothing, START, {"values": np.zeros((16, 1))}, seed=0) is None


@pytest.mark.parametrize(
    ("trained", "elsewhere", "count"),
    [(0.0, 0.0, 0), (1e-15, 1e-12, 0), (1e-5, 9e-3, 0), (1e-3, 9e-2, 0), (1e-3, 0.11, 1), (1e-3, np.nan, 1)],
)
def test_little_is_not_warned_of(trained: float, elsewhere: float, count: int) -> None:
    """Beside the residual before the training, here 1, or beside what was trained."""
    assert len(Residuals(trained, elsewhere, before=1.0).warnings) == count
