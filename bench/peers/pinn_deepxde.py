"""Rows A17 to A19, two more equations and an inverse problem as DeepXDE's examples have them, on its torch backend.

Arguments: the problem, float32 or float64, the steps of Adam and, where they follow, of L-BFGS, of which DeepXDE takes
whole thousands; at last a seed. Figures: milliseconds a step of Adam, the seconds of them all, and the relative L2 on
the grid that the pipeline judges by. The small networks of `function`, `ode` and `diffusion` have one thread, since
torch loses time where it splits operations of microseconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

os.environ["DDE_BACKEND"] = "pytorch"

import deepxde as dde
import numpy as np
import torch

from pipeline.pinn.problems.allen_cahn import AllenCahn
from pipeline.pinn.problems.burgers import Burgers
from pipeline.pinn.problems.diffusion_inverse import DiffusionInverse
from pipeline.pinn.problems.function import Function
from pipeline.pinn.problems.ode import Ode
from pipeline.pinn.problems.poisson_lshape import PoissonLShape

WARM = 200  # steps before the clock starts, at most half of them
ONE_THREAD = ("function", "ode", "diffusion")


@dataclass(frozen=True)
class Made:
    """DeepXDE's data, the sizes of the network's layers, how they are drawn, what is done to the outputs."""

    data: Any
    sizes: list[int]
    initializer: str = "Glorot uniform"
    transform: Any = None
    unknowns: tuple[Any, ...] = ()


def function() -> Made:
    data = dde.data.Function(dde.geometry.Interval(-1, 1), lambda x: x * np.sin(5 * x), 16, 100)
    return Made(data, [1, 20, 20, 20, 1])


def ode() -> Made:
    def system(x: object, y: object) -> list[object]:
        y1, y2 = y[:, 0:1], y[:, 1:]  # type: ignore[index]
        return [dde.grad.jacobian(y, x, i=0) - y2, dde.grad.jacobian(y, x, i=1) + y1]

    geometry = dde.geometry.TimeDomain(0, 10)

    def start(_: object, on_initial: bool) -> bool:
        return on_initial

    conditions = [dde.icbc.IC(geometry, lambda _: 0, start, component=0)]
    conditions.append(dde.icbc.IC(geometry, lambda _: 1, start, component=1))
    return Made(dde.data.PDE(geometry, system, conditions, 35, 2, num_test=100), [1, 50, 50, 50, 2])


def poisson() -> Made:
    def equation(x: object, y: object) -> object:
        return -dde.grad.hessian(y, x, i=0, j=0) - dde.grad.hessian(y, x, i=1, j=1) - 1

    geometry = dde.geometry.Polygon(PoissonLShape.domain.vertices)  # in the pipeline's order a seed gives its points
    condition = dde.icbc.DirichletBC(geometry, lambda _: 0, lambda _, on_boundary: on_boundary)
    data = dde.data.PDE(geometry, equation, condition, num_domain=1200, num_boundary=120, num_test=1500)
    return Made(data, [2, 50, 50, 50, 50, 1])


def in_space_and_time(until: float) -> Any:
    return dde.geometry.GeometryXTime(dde.geometry.Interval(-1, 1), dde.geometry.TimeDomain(0, until))


def burgers() -> Made:
    def equation(x: object, y: Any) -> object:
        viscous = 0.01 / np.pi * dde.grad.hessian(y, x, i=0, j=0)
        return dde.grad.jacobian(y, x, i=0, j=1) + y * dde.grad.jacobian(y, x, i=0, j=0) - viscous

    geometry = in_space_and_time(until=0.99)
    ends = dde.icbc.DirichletBC(geometry, lambda _: 0, lambda _, on_boundary: on_boundary)
    start = dde.icbc.IC(geometry, lambda x: -np.sin(np.pi * x[:, 0:1]), lambda _, on_initial: on_initial)
    data = dde.data.TimePDE(geometry, equation, [ends, start], num_domain=2540, num_boundary=80, num_initial=160)
    return Made(data, [2, 20, 20, 20, 1], "Glorot normal")


def allen_cahn() -> Made:
    def equation(x: object, y: Any) -> object:
        diffused = 0.001 * dde.grad.hessian(y, x, i=0, j=0)
        return dde.grad.jacobian(y, x, i=0, j=1) - diffused - 5 * (y - y**3)

    def hard(x: Any, y: Any) -> Any:
        space, time = x[:, 0:1], x[:, 1:2]
        return space**2 * torch.cos(np.pi * space) + time * (1 - space**2) * y

    geometry = in_space_and_time(until=1)
    data = dde.data.TimePDE(geometry, equation, [], num_domain=8000, num_boundary=400, num_initial=800)
    return Made(data, [2, 20, 20, 20, 1], "Glorot normal", hard)


def diffusion() -> Made:
    coefficient = dde.Variable(2.0)

    def equation(x: Any, y: object) -> object:
        source = torch.exp(-x[:, 1:]) * (torch.sin(np.pi * x[:, 0:1]) - np.pi**2 * torch.sin(np.pi * x[:, 0:1]))
        return dde.grad.jacobian(y, x, i=0, j=1) - coefficient * dde.grad.hessian(y, x, i=0, j=0) + source

    def exact(x: Any) -> Any:
        return np.sin(np.pi * x[:, 0:1]) * np.exp(-x[:, 1:])

    geometry = in_space_and_time(until=1)
    ends = dde.icbc.DirichletBC(geometry, exact, lambda _, on_boundary: on_boundary)
    start = dde.icbc.IC(geometry, exact, lambda _, on_initial: on_initial)
    points = np.vstack((np.linspace(-1, 1, num=10), np.ones(10))).T
    measured = dde.icbc.PointSetBC(points, exact(points), component=0)
    counts = {"num_domain": 40, "num_boundary": 20, "num_initial": 10, "num_test": 10_000}
    data = dde.data.TimePDE(geometry, equation, [ends, start, measured], anchors=points, **counts)
    return Made(data, [2, 32, 32, 32, 1], unknowns=(coefficient,))


PROBLEMS: dict[str, tuple[Any, Any]] = {
    "function": (function, Function()),
    "ode": (ode, Ode()),
    "poisson": (poisson, PoissonLShape()),
    "burgers": (burgers, Burgers()),
    "allen_cahn": (allen_cahn, AllenCahn()),
    "diffusion": (diffusion, DiffusionInverse()),
}


def main() -> None:
    name, precision, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    lbfgs_steps = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    if name in ONE_THREAD:
        torch.set_num_threads(1)
    dde.config.set_default_float(precision)
    dde.config.set_random_seed(int(sys.argv[5]) if len(sys.argv) > 5 else 0)
    make, problem = PROBLEMS[name]
    made: Made = make()
    net = dde.nn.FNN(made.sizes, "tanh", made.initializer)
    if made.transform:
        net.apply_output_transform(made.transform)
    model, unknowns = dde.Model(made.data, net), list(made.unknowns)
    model.compile("adam", lr=0.001, external_trainable_variables=unknowns)
    warm = min(WARM, steps // 2)
    model.train(iterations=warm, display_every=warm, verbose=0)
    started = time.perf_counter()
    model.train(iterations=steps - warm, display_every=max(1000, steps // 50), verbose=0)
    step = (time.perf_counter() - started) / (steps - warm)
    seconds = step * steps
    if lbfgs_steps:
        dde.optimizers.set_LBFGS_options(maxiter=lbfgs_steps)
        started = time.perf_counter()
        model.compile("L-BFGS", external_trainable_variables=unknowns)
        model.train(verbose=0)
        seconds += time.perf_counter() - started
    grid = problem.domain.grid(10_000)
    wanted = problem.reference(grid)
    error = np.linalg.norm(model.predict(grid.astype(precision)) - wanted) / np.linalg.norm(wanted)
    print(json.dumps({"step_ms": step * 1e3, "seconds": seconds, "error": float(error)}))


if __name__ == "__main__":
    main()
