"""Runs our own solvers in a process of their own and writes down what they did.

python tests/in_jax.py first|more <folder>

JAX stays out of the process of the tests, as every framework does. One process does it all: importing JAX and compiling
take longer than most of these trainings.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from pipeline.errors import RunError
from pipeline.machine.device import Place
from pipeline.models.fnn import Fnn
from pipeline.pinn import jets
from pipeline.pinn.problem import Condition
from pipeline.pinn.problems.function import Function
from pipeline.pinn.problems.ode import Ode
from pipeline.pinn.problems.poisson_lshape import PoissonLShape
from pipeline.pinn.solution import Solution, enriched, outputs, predict
from pipeline.pinn.solvers.adam import Adam
from pipeline.pinn.solvers.gauss_newton import GaussNewton
from pipeline.pinn.solvers.lbfgs import Lbfgs
from pipeline.pinn.solvers.ssbroyden import SsBroyden
from pipeline.pinn.solvers.system import INSIDE, Ansatz, System
from pipeline.pinn.solvers.training import settings
from pipeline.runs.journal import Journal
from pipeline.runs.run import Run

CPU = Place("cpu")
SMALL = Fnn(units=(6, 5))
FUNCTION, ODE = Function(), Ode()
LSHAPE: Any = PoissonLShape(interior=150, boundary=60)
ANSATZE: dict[str, tuple[Any, Ansatz]] = {
    "function": (FUNCTION, Ansatz(SMALL, scale=0.5)),
    "ode hard": (ODE, Ansatz(SMALL, hard=True, scale=1.0)),
    "poisson enriched": (LSHAPE, Ansatz(SMALL, enrichment=True, scale=0.7, condition_weight=3.0)),
    "poisson graded": (LSHAPE, Ansatz(SMALL, graded=True)),
}
SOLVED: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
    "adam": (FUNCTION, Adam(steps=3000, learning_rate=1e-2, decay=0.01), (20, 20)),
    "lbfgs": (FUNCTION, Lbfgs(steps=1000), (20, 20)),
    "ssbroyden": (ODE, SsBroyden(steps=1000, conditions="hard", scale=1.0), (15, 15)),
    "gauss_newton": (ODE, GaussNewton(steps=200, conditions="hard", scale=1.0), (15, 15)),
    "features": (Ode(interior=80), GaussNewton(steps=2, conditions="hard", scale=3.0, start="features"), (80,)),
}
ENDING: dict[str, Any] = {  # that find nothing left to gain long before their last step
    "lbfgs": partial(Lbfgs, steps=1000),
    "ssbroyden": partial(SsBroyden, steps=1000),
    "gauss_newton": partial(GaussNewton, steps=1000),
}
SLOW = 0.2  # seconds
ENRICHED: tuple[Any, Any, tuple[int, ...]] = (
    PoissonLShape(interior=600, boundary=120),
    GaussNewton(steps=1, enrichment=True, start="features", scale=3.0, condition_weight=1e4),
    (200,),
)


class ByGrad:
    """A Field by JAX's own derivatives of `u`, one point at a time."""

    def __init__(self, u: Any, points: Any) -> None:
        self.values = jax.vmap(u)(points)
        self.firsts = jax.vmap(jax.jacfwd(u))(points)
        self.hessians = jax.vmap(jax.hessian(u))(points)

    def value(self, output: int = 0) -> Any:
        return self.values[:, output : output + 1]

    def first(self, coordinate: int, output: int = 0) -> Any:
        return self.firsts[:, output, coordinate, None]

    def second(self, *coordinates: int, output: int = 0) -> Any:
        return sum(self.hessians[:, output, i, i, None] for i in coordinates)


def derivatives(problem: Any, ansatz: Ansatz) -> dict[str, float]:
    """How far residuals, Jacobian and gradient are from those of automatic differentiation; how large they are."""
    system = System(problem, ansatz, "float64")
    data = jax.tree.map(jnp.asarray, system.draw(np.random.default_rng(0)))
    theta = jnp.asarray(np.random.default_rng(1).normal(0, 0.5, system.initial(0).size))
    found: dict[str, float] = {}
    if problem.equations:
        tree, x = system.tree(theta), data[INSIDE]["x"]

        def u(point: Any) -> Any:
            at = jets.coordinates(jnp, point[None], (), order=0)
            added = enriched(problem, at) if ansatz.enrichment else None
            values = outputs(
                problem, at, system.layers(tree), hard=ansatz.hard, enrichment=tree["enrichment"], added=added
            )
            return values.value[0]

        columns = [x[:, i : i + 1] for i in range(x.shape[1])]
        wanted = jax.jit(lambda x: jnp.concatenate(problem.residuals(columns, ByGrad(u, x), jnp, {}), axis=1))(x)
        if ansatz.graded:
            wanted *= problem.corner.weight(np.asarray(x))[:, None]
        found["residual"] = float(jnp.abs(jax.jit(system.inside_residual)(theta, data[INSIDE]) - wanted).max())
        found["size"] = float(jnp.abs(wanted).max())
    jacobian = jax.jit(system.jacobian)(theta, data)
    wanted = jax.jit(jax.jacfwd(system.vector))(theta, data)
    found["jacobian"] = float(jnp.abs(jacobian - wanted).max() / jnp.abs(wanted).max())
    gradient, vector = jax.jit(jax.grad(system.loss))(theta, data), jax.jit(system.vector)(theta, data)
    found["gradient"] = float(jnp.abs(2 * vector @ jacobian - gradient).max() / jnp.abs(gradient).max())
    terms, weights = jax.jit(system.terms)(theta, data), jnp.array([system.weight(name) for name in system.names])
    found["loss"] = float(jnp.abs(weights @ terms / system.loss(theta, data) - 1))
    return found


class OneSide(PoissonLShape):
    """With a condition on one side, on which two points lie with one seed and three with another."""

    def conditions(self) -> tuple[Condition, ...]:
        return (Condition("u on the left", lambda points: points[:, 1], on=lambda points: points[:, 0] == -1),)


class Lopsided(Fnn):
    """A network that with one seed starts where float64 ends."""

    def initial(self, problem: Any, seed: int) -> Any:
        return [(kernel * (1e200 if seed == 2 else 1), bias) for kernel, bias in super().initial(problem, seed)]


class Slow(Fnn):
    """A network whose first parameters take a while."""

    def initial(self, problem: Any, seed: int) -> Any:
        time.sleep(SLOW)
        return super().initial(problem, seed)


class Trainings:
    """Trains, each in its own run below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.console = folder, Console(file=(folder / "console.txt").open("w"))

    def solve(
        self,
        problem: Any,
        solver: Any,
        units: tuple[int, ...],
        seed: int = 0,
        precision: str = "fp64",
        network: Any = None,
    ) -> Solution:
        run = Run(Journal.begin(self.folder / "runs", "test", {}), self.console)
        solution: Solution = solver.solve(
            problem, network or Fnn(units=units), precision=precision, seed=seed, place=CPU, run=run, backend=None
        )
        return solution

    def result(self, problem: Any, solution: Solution) -> dict[str, Any]:
        grid = problem.domain.grid(1000)
        wanted = problem.reference(grid)
        gone = float(np.linalg.norm(predict(solution.fitted, problem, grid) - wanted) / np.linalg.norm(wanted))
        return {
            "error": gone,
            "losses": [moment.loss for moment in solution.history],
            "steps": [moment.step for moment in solution.history],
            "terms": dict(solution.history[-1].terms),
            "parameters": solution.parameters,
            "evaluations": solution.residual_evaluations,
            "dtypes": sorted({str(array.dtype) for layer in solution.fitted.layers for array in layer}),
            "enrichment": solution.fitted.enrichment,
        }

    def together(self, problem: Any, solver: Any, several: Any) -> dict[str, Any]:
        """Three seeds at once against each alone."""
        at_once = self.solve(problem, several, (8, 8), seed=5)
        alone = [self.solve(problem, solver, (8, 8), seed=5 + number) for number in range(3)]
        distances = [
            max(float(np.abs(a - b).max()) for la, lb in zip(x.fitted.layers, y.fitted.layers, strict=True)
                for a, b in zip(la, lb, strict=True))
            for x, y in zip(at_once.seeds, alone, strict=True)
        ]  # fmt: skip
        losses = [solution.history[-1].loss for solution in alone]
        return {
            "distances": distances,
            "losses": losses,
            "best": at_once.history[-1].loss,
            "counts": [{name: len(points) for name, points in one.points.items()} for one in at_once.seeds],
            "evaluations": [[one.residual_evaluations for one in each] for each in (at_once.seeds, alone)],
        }

    def points(self, *, graded: bool = False, **how: Any) -> dict[str, Any]:
        """Where the L-shape is trained on after new points were drawn."""
        solver = Adam(steps=300, every=300, resample=150, graded=graded, **how)
        solution = self.solve(LSHAPE, solver, (10, 10))
        inside = solution.points[INSIDE]
        with settings("fp64", CPU):
            system = System(LSHAPE, Ansatz(Fnn(units=(10, 10))), "float64")
            before = self.solve(LSHAPE, Adam(steps=150, every=150), (10, 10))  # as it was when the points were drawn
            theta = np.concatenate([leaf.ravel() for layer in before.fitted.layers for leaf in layer])
            square = jnp.mean(system.inside_residual(jnp.asarray(theta), system.inside(inside)) ** 2)
        return {
            "mean_square": float(square),
            "inside": bool(LSHAPE.domain.contains(inside).all()),
            "count": len(inside),
            "points": inside.tolist(),
            "first": self.solve(LSHAPE, Adam(steps=1, every=1, graded=graded), (10, 10)).points[INSIDE].tolist(),
        }

    def interval(self) -> list[float]:
        """Where the ODE is trained on after points were drawn where the residual is large."""
        solver = Adam(steps=20, every=20, resample=10, adaptive=True)
        return sorted(self.solve(ODE, solver, (8,)).points[INSIDE][:, 0].tolist())

    def clocks(self) -> dict[str, Any]:
        """Those of a training before whose first step something takes SLOW seconds."""
        solution = self.solve(FUNCTION, Adam(steps=20, every=10), (), network=Slow(units=(8,)))
        clocked = solution.seconds + (solution.compile_s or 0.0)
        return {"wall": [moment.wall_s for moment in solution.history], "clocked": clocked, "slow": SLOW}

    def rows(self, solver: Any) -> dict[str, Any]:
        """What must not depend on how often the history is written."""
        solution = self.solve(Function(interior=4), solver, (6,))
        return {
            "loss": solution.history[-1].loss,
            "evaluations": solution.residual_evaluations,
            "steps": solution.steps,
        }

    def refusal(self, solver: Any, network: Any = None) -> str:
        try:
            self.solve(ODE, solver, (8,), network=network)
        except RunError as error:
            return str(error)
        return "nothing was refused"


def first(folder: Path) -> Mapping[str, Any]:
    """What most of the tests read."""
    with settings("fp64", CPU):
        found: dict[str, Any] = {"derivatives": {name: derivatives(*of) for name, of in ANSATZE.items()}}
    do = Trainings(folder)
    found["solved"] = {name: do.result(of[0], do.solve(*of)) for name, of in SOLVED.items()}
    found["fp32"] = do.result(FUNCTION, do.solve(FUNCTION, Adam(steps=200), (10,), precision="fp32"))
    found["diverged"] = do.refusal(Adam(steps=200, learning_rate=1e200))
    found["diverged later seed"] = do.refusal(Adam(steps=40, every=20, seeds=3), network=Lopsided(units=(8,)))
    return found


def more(folder: Path) -> Mapping[str, Any]:
    """What the wide ones read."""
    do = Trainings(folder)
    found: dict[str, Any] = {"enriched": do.result(LSHAPE, do.solve(*ENRICHED))}
    uneven: Any = OneSide(interior=30, boundary=10)
    found["together"] = {
        "uneven boundary": do.together(uneven, GaussNewton(steps=5), GaussNewton(steps=5, seeds=3)),
        "adam": do.together(ODE, Adam(steps=50), Adam(steps=50, seeds=3)),
        "gauss_newton": do.together(ODE, GaussNewton(steps=5), GaussNewton(steps=5, seeds=3)),
    }
    found |= {"uniform": do.points(), "adaptive": do.points(adaptive=True), "graded": do.points(graded=True, seeds=2)}
    found["clocks"] = do.clocks()
    found["adaptive interval"] = do.interval()
    found["every"] = {name: [do.rows(solver(every=every)) for every in (5, 7, 1000)] for name, solver in ENDING.items()}
    return found


if __name__ == "__main__":
    here = Path(sys.argv[2])
    (here / "found.json").write_text(json.dumps({"first": first, "more": more}[sys.argv[1]](here)))
