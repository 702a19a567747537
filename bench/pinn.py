"""Rows A17 to A19 on a CPU: our compiled Adam against DeepXDE's torch backend, and the time to DeepXDE's final error.

A step is that of the same network on the same number of points in the same precision, from one table for both sides
(peers/pinn_deepxde.py, peers/pinn_ours.py). The time to DeepXDE's error is that of our best recipe's training to the
first step that is as good, without its compilation, which has a row of its own.
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.measure import Side, alternate, at_least, at_most, figure_rows, peer, pipeline_in, ratios, row

ROUNDS = 5
STEPS = {"function": ("float32", 10_000), "ode": ("float32", 5_000), "poisson": ("float64", 1_000)}
RECIPES = {  # float, steps of Adam, and of L-BFGS afterwards, at the most
    "function": ("float32", 10_000, 0),
    "ode": ("float32", 20_000, 0),
    "poisson": ("float64", 50_000, 15_000),
}


def run() -> list[dict[str, object]]:
    """Rows of the table."""
    rows: list[dict[str, object]] = []
    for problem in STEPS:
        rows += a_step(problem)
    for problem in RECIPES:
        rows += to_its_error(problem)
    return rows


def a_step(problem: str) -> list[dict[str, object]]:
    """Milliseconds of an Adam step."""
    precision, steps = STEPS[problem]
    ours = Side(f"{problem}, {precision}: ours", side("pinn_ours.py", problem, precision, steps))
    theirs = Side(f"{problem}, {precision}: DeepXDE on torch", side("pinn_deepxde.py", problem, precision, steps))
    alternate([ours, theirs], ROUNDS)
    faster = row(f"{problem}: DeepXDE / ours, a step", ratios(theirs, ours, "step_ms"), "x")
    return [*figure_rows([ours, theirs], "step_ms", "ms"), at_least(faster, 3.0)]


def to_its_error(problem: str) -> list[dict[str, object]]:
    """Seconds of DeepXDE's whole training, once, and of ours until the error is as low."""
    precision, steps, lbfgs_steps = RECIPES[problem]
    theirs = peer("pinn_deepxde.py", problem, precision, str(steps), str(lbfgs_steps))
    trained = f"{steps:,} steps" + (" of Adam and L-BFGS" if lbfgs_steps else "")
    ours = [best(problem, theirs["error"]) for _ in range(ROUNDS)]
    share = row(f"{problem}: ours / DeepXDE, to its error", [one["seconds"] / theirs["seconds"] for one in ours], "x")
    return [
        row(f"{problem}: DeepXDE's error after {trained}", [theirs["error"]], "relative L2"),
        row(f"{problem}: DeepXDE's training", [theirs["seconds"]], "s"),
        row(f"{problem}: our final error", [one["error"] for one in ours], "relative L2"),
        row(f"{problem}: our compilation", [one["compile_s"] for one in ours], "s"),
        at_most(share, 1 / 20),
    ]


def side(script: str, problem: str, precision: str, steps: int) -> Callable[[], Mapping[str, float]]:
    return lambda: peer(script, problem, precision, str(steps))


def best(problem: str, error: float) -> dict[str, float]:
    """Our best recipe: seconds of training until it is as good as `error`."""
    with tempfile.TemporaryDirectory() as folder:
        run = pipeline_in(folder, f"experiment={problem}_best")
        scalars = json.loads((run / "result.json").read_text())["scalars"]
        paper = json.loads((run / "receipt.json").read_text())
        with (Path(run) / "artifacts" / "tables" / "history.csv").open(encoding="utf-8") as file:
            reached = [float(r["training_s"]) for r in csv.DictReader(file) if float(r["relative_l2"]) <= error]
    seconds = min(reached, default=float("nan"))
    return {"seconds": seconds, "error": scalars["test/relative_l2"], "compile_s": paper["compile_s"]}
