"""Our compiled Adam on the networks, points and precision of peers/pinn_deepxde.py; the same arguments and figures.

DeepXDE takes residuals at the points of the boundary too, so `interior` counts both here.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from pipeline.machine.device import Place
from pipeline.models.fnn import Fnn
from pipeline.pinn.problems.function import Function
from pipeline.pinn.problems.ode import Ode
from pipeline.pinn.problems.poisson_lshape import PoissonLShape
from pipeline.pinn.solution import predict
from pipeline.pinn.solvers.adam import Adam

PROBLEMS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "function": (Function(interior=16), (20, 20, 20)),
    "ode": (Ode(interior=37, boundary=2), (50, 50, 50)),
    "poisson": (PoissonLShape(interior=1320, boundary=120), (50, 50, 50, 50)),
}
BLOCKS = 20


class Silent:
    """A run that tells nobody."""

    def progress(self, what: str, total: int) -> Silent:
        return self

    def advance(self, steps: int, state: str) -> None: ...

    def close(self) -> None: ...

    def log(self, metrics: object, step: int) -> None: ...


def main() -> None:
    name, precision, steps = sys.argv[1], {"float32": "fp32", "float64": "fp64"}[sys.argv[2]], int(sys.argv[3])
    problem, units = PROBLEMS[name]
    solver = Adam(steps=steps, every=steps // BLOCKS)
    run: Any = Silent()
    solution = solver.solve(problem, Fnn(units=units), precision=precision, seed=0, place=Place("cpu"), run=run)
    first, last = solution.history[0], solution.history[-1]  # without the first block, as there
    grid = problem.domain.grid(10_000)
    wanted = problem.reference(grid)
    error = np.linalg.norm(predict(solution.fitted, problem, grid) - wanted) / np.linalg.norm(wanted)
    figures = {"step_ms": (last.seconds - first.seconds) / (last.step - first.step) * 1e3, "seconds": solution.seconds}
    print(json.dumps(figures | {"compile_s": solution.compile_s, "error": float(error)}))


if __name__ == "__main__":
    main()
