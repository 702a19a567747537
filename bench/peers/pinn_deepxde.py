"""Rows A17 to A19 as DeepXDE's documentation writes them, on its torch backend.

Arguments: the problem, float32 or float64, the steps of Adam and, where they follow, of L-BFGS, of which DeepXDE takes
whole thousands; at last a seed. Figures: milliseconds a step of Adam, the seconds of them all, and the relative L2 on
the grid that the pipeline judges by. The small networks of `function` and `ode` have one thread, since torch loses time
where it splits operations of microseconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ["DDE_BACKEND"] = "pytorch"

import deepxde as dde
import numpy as np
import torch

from pipeline.problems.function import Function
from pipeline.problems.ode import Ode
from pipeline.problems.poisson_lshape import PoissonLShape

WARM = 200  # steps before the clock starts
ONE_THREAD = ("function", "ode")


def function() -> tuple[object, list[int]]:
    data = dde.data.Function(dde.geometry.Interval(-1, 1), lambda x: x * np.sin(5 * x), 16, 100)
    return data, [1, 20, 20, 20, 1]


def ode() -> tuple[object, list[int]]:
    def system(x: object, y: object) -> list[object]:
        y1, y2 = y[:, 0:1], y[:, 1:]  # type: ignore[index]
        return [dde.grad.jacobian(y, x, i=0) - y2, dde.grad.jacobian(y, x, i=1) + y1]

    geometry = dde.geometry.TimeDomain(0, 10)

    def start(_: object, on_initial: bool) -> bool:
        return on_initial

    conditions = [dde.icbc.IC(geometry, lambda _: 0, start, component=0)]
    conditions.append(dde.icbc.IC(geometry, lambda _: 1, start, component=1))
    return dde.data.PDE(geometry, system, conditions, 35, 2, num_test=100), [1, 50, 50, 50, 2]


def poisson() -> tuple[object, list[int]]:
    def equation(x: object, y: object) -> object:
        return -dde.grad.hessian(y, x, i=0, j=0) - dde.grad.hessian(y, x, i=1, j=1) - 1

    geometry = dde.geometry.Polygon(PoissonLShape.domain.vertices)  # in the pipeline's order a seed gives its points
    condition = dde.icbc.DirichletBC(geometry, lambda _: 0, lambda _, on_boundary: on_boundary)
    return dde.data.PDE(geometry, equation, condition, num_domain=1200, num_boundary=120, num_test=1500), [
        2, 50, 50, 50, 50, 1,
    ]  # fmt: skip


PROBLEMS: dict[str, tuple[Any, Any]] = {
    "function": (function, Function()),
    "ode": (ode, Ode()),
    "poisson": (poisson, PoissonLShape()),
}


def main() -> None:
    name, precision, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    lbfgs_steps = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    if name in ONE_THREAD:
        torch.set_num_threads(1)
    dde.config.set_default_float(precision)
    dde.config.set_random_seed(int(sys.argv[5]) if len(sys.argv) > 5 else 0)
    made, problem = PROBLEMS[name]
    data, sizes = made()
    model = dde.Model(data, dde.nn.FNN(sizes, "tanh", "Glorot uniform"))
    model.compile("adam", lr=0.001)
    model.train(iterations=WARM, display_every=WARM, verbose=0)
    started = time.perf_counter()
    model.train(iterations=steps - WARM, display_every=max(1000, steps // 50), verbose=0)
    step = (time.perf_counter() - started) / (steps - WARM)
    seconds = step * steps
    if lbfgs_steps:
        dde.optimizers.set_LBFGS_options(maxiter=lbfgs_steps)
        started = time.perf_counter()
        model.compile("L-BFGS")
        model.train(verbose=0)
        seconds += time.perf_counter() - started
    grid = problem.domain.grid(10_000)
    wanted = problem.reference(grid)
    error = np.linalg.norm(model.predict(grid.astype(precision)) - wanted) / np.linalg.norm(wanted)
    print(json.dumps({"step_ms": step * 1e3, "seconds": seconds, "error": float(error)}))


if __name__ == "__main__":
    main()
