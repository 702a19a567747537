"""Rows A17 to A19 on a CPU: a step of our Adam against DeepXDE's, and the time to DeepXDE's final error.

A step is that of the same network on the same number of points in the same precision (peers/pinn_deepxde.py,
peers/pinn_ours.py). Beside them stand DeepXDE as the pipeline runs it, whose ratio to DeepXDE without us has to be
about 1, and DeepXDE on its JAX backend, whose seconds hold what JAX compiles in the first step.

The time to DeepXDE's error has one rule for every side: the first row of the history whose error is at most the last of
DeepXDE's on torch. The clock is the wall's, from the call of the solver, after its imports, to that row: with drawing
points, building, compiling and every look at the loss (README.md). Both sides are looked at LOOKS times, or after each
step where they have fewer. Every run is a separate process without a compilation cache, as a first run is. The column
"how" has points, method and precision.
"""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure import Side, agree, all_below, alternate, at_least, at_most, peer, pipeline, pipeline_in, ratios, row
from pipeline import experiment as experiments
from pipeline.pinn.problems.function import Function
from pipeline.pinn.problems.ode import Ode
from pipeline.pinn.problems.poisson_lshape import PoissonLShape
from pipeline.pinn.solvers.deepxde_adam import DeepxdeAdam
from pipeline.runs.records import read_config
from pipeline.runs.result import metrics_of, values
from pipeline.spec import choice

ROUNDS = 5
PARTS = ("step", "error")
STEPS = {"function": ("float32", 10_000), "ode": ("float32", 5_000), "poisson": ("float64", 1_000)}
PRECISION = {"function": "fp32", "ode": "fp32", "poisson": "fp64"}
PROBLEMS: dict[str, Any] = {"function": Function, "ode": Ode, "poisson": PoissonLShape}
DATASETS = {"function": "function", "ode": "ode", "poisson": "poisson_lshape"}
ON_JAX = ("function", "ode")  # the third goes on with L-BFGS, which DeepXDE lacks there
LOOKS = 50  # at each side of Adam, at equal steps; DeepXDE's L-BFGS is looked at after its own blocks of 1,000 steps
# Relative L2 after STEPS, at seed 0: ours 0.012, 0.69 and 0.47. A training that went nowhere errs by about 1, the ODE's
# that ends beside the solution by 0.93.
WORST = {"function": 0.05, "ode": 0.8, "poisson": 0.7}
ORDER = {"deepxde": "Adam, first order", "gauss_newton": "Gauss-Newton, second order"}


def run(
    problems: Sequence[str] = tuple(STEPS), parts: Sequence[str] = PARTS, rounds: int = ROUNDS
) -> list[dict[str, object]]:
    """Rows of the table."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        raise SystemExit("JAX_COMPILATION_CACHE_DIR is set: compilation has to be measured without a cache; unset it")
    made = {"step": a_step, "error": to_its_error}
    return [one for part in parts for problem in problems for one in made[part](problem, rounds)]


def a_step(problem: str, rounds: int) -> list[dict[str, object]]:
    """Milliseconds of an Adam step."""
    precision, steps = STEPS[problem]
    arguments = (problem, precision, str(steps))
    ours = Side(f"{problem}: our Adam", lambda: peer("pinn_ours.py", *arguments))
    theirs = Side(f"{problem}: DeepXDE on torch", lambda: peer("pinn_deepxde.py", *arguments))
    through = Side(f"{problem}: the same through the pipeline", by_pipeline(problem, "torch", steps))
    sides = [ours, theirs, through]
    if problem in ON_JAX:
        sides.append(Side(f"{problem}: DeepXDE on JAX, through the pipeline", by_pipeline(problem, "jax", steps)))
    alternate(sides, rounds)
    agree([theirs, through], "error", 1e-3)
    all_below(sides, "error", WORST[problem])
    rows = [row(one.name, one.values("step_ms"), "ms") | {"how": f"Adam, {precision}"} for one in sides]
    faster = row(f"{problem}: DeepXDE / ours, a step", ratios(theirs, ours, "step_ms"), "x")
    slowed = row(f"{problem}: DeepXDE through the pipeline / DeepXDE, a step", ratios(through, theirs, "step_ms"), "x")
    rows += [at_least(faster, 3.0), at_most(slowed, 1.1)]
    return rows + [
        row(f"{problem}: DeepXDE on JAX / ours, a step", ratios(one, ours, "step_ms"), "x") for one in sides[3:]
    ]


def by_pipeline(problem: str, backend: str, steps: int) -> Callable[[], Mapping[str, float]]:
    """DeepXDE's Adam as the pipeline runs it; the loss is looked at as seldom as by DeepXDE alone."""
    words = (f"dataset={DATASETS[problem]}", f"precision={PRECISION[problem]}", f"backend={backend}")
    often = f"solver.every={max(1000, steps // 50)}"

    def once() -> Mapping[str, float]:
        found = pipeline("stage=pinn", "solver=deepxde_adam", *words, f"solver.steps={steps}", often)
        return {"step_ms": found["training_s"] / steps * 1e3, "error": found["test/relative_l2"]}

    return once


@dataclass(frozen=True)
class Training:
    """What a run leaves: its history as (seconds on the wall, error), the seconds that all of its compilation took, its
    final error, and how it was trained."""

    history: list[tuple[float, float]]
    compile_s: float
    error: float
    how: str

    def reached(self, level: float) -> float:
        """Seconds to the first row of the history whose error is at most `level`; NaN where there is none."""
        return next((seconds for seconds, error in self.history if error <= level), float("nan"))


def to_its_error(problem: str, rounds: int) -> list[dict[str, object]]:
    """Seconds of DeepXDE's training until its final error, once on each backend, and of ours."""
    words = ("stage=pinn", f"dataset={DATASETS[problem]}", f"precision={PRECISION[problem]}", often(problem))
    theirs = trained(*words, "solver=deepxde", "backend=torch")
    level = theirs.history[-1][1]
    seconds = theirs.reached(level)
    ours = [trained(f"experiment={problem}_best", "solver.every=1") for _ in range(rounds)]  # of at most 5 steps
    if not all(one.error <= level for one in ours):
        raise SystemExit(f"{problem}: ours ends at {[one.error for one in ours]}, DeepXDE at {level}; no time counts")
    whole = [one.reached(level) for one in ours]
    rows = [
        row(f"{problem}: DeepXDE's error", [level], "relative L2") | {"how": theirs.how},
        row(f"{problem}: DeepXDE on torch, to its error", [seconds], "s") | {"how": theirs.how},
    ]
    if problem in ON_JAX:
        on_jax = trained(*words, "solver=deepxde", "backend=jax")
        rows.append(row(f"{problem}: DeepXDE on JAX, to the same", [on_jax.reached(level)], "s") | {"how": on_jax.how})
    how = {"how": ours[0].how}
    return [
        *rows,
        row(f"{problem}: our final error", [one.error for one in ours], "relative L2") | how,
        row(f"{problem}: ours to DeepXDE's error", whole, "s") | how,
        row(f"{problem}: our compilation of the whole run, no cache", [one.compile_s for one in ours], "s") | how,
        at_most(row(f"{problem}: ours / DeepXDE, to its error", [one / seconds for one in whole], "x"), 1 / 20),
    ]


def often(problem: str) -> str:
    """How seldom DeepXDE is looked at: LOOKS times in its Adam."""
    steps = PROBLEMS[problem].recipe.steps
    return f"solver.every={max(1, steps // LOOKS)}"


def trained(*words: str) -> Training:
    """A run of the shipped command."""
    with tempfile.TemporaryDirectory() as folder:
        run = pipeline_in(folder, *words)
        found = values(metrics_of(run).values())
        with (Path(run) / "artifacts" / "tables" / "history.csv").open(encoding="utf-8") as file:
            history = [(float(one["wall_s"]), float(one["relative_l2"])) for one in csv.DictReader(file)]
        experiment = experiments.load(read_config(run))
    how = how_trained(experiment.dataset, experiment.solver, experiment.precision.name)
    return Training(history, found.get("compile_s", 0.0), found["test/relative_l2"], how)


def how_trained(problem: Any, solver: Any, precision: str) -> str:
    """Points inside, on the boundary and at the start; the methods one after the other; the precision."""
    counts = [str(n) for key in ("interior", "boundary", "initial") if (n := getattr(problem, key, 0))]
    methods = ORDER[choice(solver)]
    if isinstance(solver, DeepxdeAdam) and (steps := solver.lbfgs_steps_for(problem)):
        methods += f", then at most {steps:,} steps of L-BFGS"
    return f"{'+'.join(counts)} points, {methods}, {precision}"
