"""stage=pinn: solve a problem by a network, hold it against an independent reference, draw, save."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from pipeline.contracts import Stage
from pipeline.errors import RunError, plural
from pipeline.machine.capability import Resolved
from pipeline.machine.precision import FORMATS
from pipeline.pinn import errors, guard, rounding, solution, unseen
from pipeline.pinn.check import refuse_keys
from pipeline.pinn.errors import Measured
from pipeline.pinn.fits import check_fits
from pipeline.pinn.solution import Solution
from pipeline.report import table
from pipeline.runs import receipt as receipts
from pipeline.runs import weights
from pipeline.runs.beside import with_figures
from pipeline.runs.fit import Observation
from pipeline.runs.result import Metric, Result, count, seconds
from pipeline.runs.resume import identity, resumptions
from pipeline.runs.run import Run, seconds_since_start
from pipeline.spec import choice, spec

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

MODEL = "model/weights.npz"


@spec
class Pinn(Stage):
    """`grid`: about so many regular points, at which the errors are taken. Few of them lie on the boundary alone, where
    a reference may be 0 and the network exact.
    """

    grid: Annotated[int, Field(ge=100)] = 10_000

    solves: ClassVar[bool] = True
    headline: ClassVar[str] = "test/relative_l2"
    reads: ClassVar[tuple[str, ...]] = ("backend", "device", "precision", "model", "dataset", "solver", "seed")
    imports: ClassVar[tuple[str, ...]] = ("pipeline.pinn.figures", "pipeline.runs.receipt")

    def check(self, experiment: Experiment) -> None:
        """Refuse what does not go together, before the run begins. Raises UserError and Impossible."""
        check_fits(experiment.problem, hard=experiment.solver.hard_for(experiment.problem))
        experiment.solver.check(experiment.problem, experiment.precision.name)
        experiment.solver.check_backend(experiment.backend.name, experiment.problem)

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse keys that only a classifier reads."""
        refuse_keys(self, keys)

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Guard, solve, measure. Raises RunError where training cannot go on."""
        problem, solver = experiment.problem, experiment.solver
        model = experiment.network.of(problem)
        receipt = receipts.before(experiment, resolved) | resumptions(run)
        run.identity = identity()
        start = model.initial(problem, experiment.seed)
        guarded = guard.measure(
            problem,
            start,
            resolved.precision,
            hard=solver.hard_for(problem),
            line_search=solver.line_search(problem),
            seed=experiment.seed,
        )
        receipt["precision"]["guard"] = guarded.plain()
        run.journal.write_receipt(receipt)
        for warning in guarded.warnings:
            run.note(warning)
        found: Solution = solver.solve(
            problem,
            model,
            precision=resolved.precision,
            seed=experiment.seed,
            place=resolved.place,
            run=run,
            backend=experiment.backend,
        )
        save(run, experiment, found)
        try:
            seen(receipt, experiment, resolved, found)
        finally:
            run.journal.write_receipt(receipt)
        measured = errors.measure(problem, found.fitted, self.grid)
        way = errors.along(problem, found.history)
        errors.write_history(run.artifact("tables/history.csv"), found.history, way)
        spread = errors.over_seeds(problem, found, self.grid)
        residuals = unseen.measure(problem, found.fitted, start, found.points, experiment.seed)
        floor = rounding.measure(problem, found, resolved.precision, solver)
        receipt["precision"]["trained"] = floor.plain()
        for warning in (*(residuals.warnings if residuals else ()), *floor.warnings):
            run.note(warning)
        receipt |= {
            "wall_time_s": run.earlier_s + seconds_since_start(),
            "training_s": found.seconds,
            **({} if found.compile_s is None else {"compile_s": found.compile_s}),
            **run.marks,
        }
        run.journal.write_receipt(receipt)
        result = Result(
            metrics=(*metrics_found(found, measured, floor), *metrics_residual(residuals), *metrics_over(spread)),
            table=(
                *rows(experiment, resolved, found, measured, residuals, guarded, floor, receipt),
                *rows_over(spread),
            ),
        )
        return with_figures(result, partial(draw, run, experiment, found, way, measured))


def save(run: Run, experiment: Experiment, found: Solution) -> None:
    """The network, what it takes and gives, and the points that it was trained on."""
    problem = experiment.problem
    solution.save(run.artifact(MODEL), found.fitted)
    card = {
        "problem": experiment.config["dataset"]["_target_"],
        "coordinates": list(problem.domain.names),
        "outputs": problem.outputs,
        "units": experiment.network.sizes(problem)[1:-1],
        "enrichment": dict(found.fitted.enrichment),
        "unknowns": dict(found.fitted.unknowns),
        "hard_conditions": found.fitted.hard,
    }
    run.artifact("model/card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")


def seen(receipt: dict[str, Any], experiment: Experiment, resolved: Resolved, found: Solution) -> None:
    """Add to the receipt what was seen. Raises RunError where it was computed in another dtype (strict)."""
    receipt["points_sha256"] = errors.points_sha256(found.points)
    receipt["weights_sha256"] = weights.digest(solution.as_weights(found.fitted))
    receipt["parameters"] = found.parameters
    receipt["peak_memory"] = dict(found.peak_memory)
    where = Observation("where the parameters lie", product_devices=Counter([found.device] if found.device else []))
    receipt["device"]["effective"] = ", ".join(receipts.places(where)) or "none seen"
    receipt["precision"]["observed"] = dict(found.dtypes)
    wanted = FORMATS[resolved.precision].parameters
    wrong = [f"the {name} in {dtype}" for name, dtype in found.dtypes.items() if dtype != wanted]
    problems: dict[str, str | None] = {"device": None, "precision": None}
    if wrong:
        problems["precision"] = (
            f"precision={resolved.precision} asks for {wanted} but the solver has {', '.join(wrong)}"
        )
    if found.device and receipts.device_mismatch(resolved, where):
        problems["device"] = f"device={resolved.place} but the parameters lie on {receipt['device']['effective']}"
    for part, problem in problems.items():
        receipt[part]["as_requested"] = problem is None
        if problem:
            receipt[part]["problem"] = problem
    if FORMATS[resolved.precision].tf32 and not wrong:
        receipt["precision"] |= {
            "as_requested": None,
            "problem": "whether products ran in TF32 was not seen, float32 was",
        }
    message = "; ".join(problem for problem in problems.values() if problem)
    if message and experiment.precision.strict:
        raise RunError(f"{message}; precision.strict=false lets the run pass and keeps this in the receipt")


def draw(run: Run, experiment: Experiment, found: Solution, way: Sequence[float], measured: Measured) -> None:
    """The history with its errors (`way`), the solution and the points."""
    from pipeline.pinn import figures as drawing

    problem, title = experiment.problem, experiment.name
    drawing.loss_history(run.artifact("figures/loss_history.png"), found.history, way, title)
    drawing.solution(run.artifact("figures/solution.png"), problem, measured, found.points, title)
    drawing.training_points(run.artifact("figures/training_points.png"), problem, found.points, title)


def solver_of(experiment: Experiment) -> str:
    """In words: its name, what conditions it has, how many seeds it trains."""
    solver = experiment.solver
    parts = [choice(solver)]
    parts.append(f"{'hard' if solver.hard_for(experiment.problem) else 'soft'} conditions")
    if solver.seeds > 1:
        parts.append(
            f"seeds {experiment.seed} to {experiment.seed + solver.seeds - 1}, the one with the lowest loss is shown"
        )
    return ", ".join(parts)


def metrics_found(found: Solution, measured: Measured, floor: rounding.Floor) -> list[Metric]:
    """The metrics of a solution: its errors and loss, steps, times, and the unknowns that it found."""
    return [
        Metric("test/relative_l2", measured.relative_l2, direction="min"),
        Metric("test/max_error", measured.largest, direction="min"),
        Metric("train/loss", found.history[-1].loss, direction="min"),
        *([] if floor.loss is None else [Metric("train/loss_floor", floor.loss)]),
        count("steps", found.steps),
        count("residual_evaluations", found.residual_evaluations),
        seconds("training_s", found.seconds),
        *([] if found.compile_s is None else [seconds("compile_s", found.compile_s)]),
        *(Metric(f"unknown/{name}", value) for name, value in found.fitted.unknowns.items()),
        *(Metric(f"enrichment/{name}", value) for name, value in found.fitted.enrichment.items()),
    ]


def metrics_residual(residuals: unseen.Residuals | None) -> list[Metric]:
    """The equations' residual, where there are equations."""
    if residuals is None:
        return []
    each = {"train/residual": residuals.trained, "test/residual": residuals.unseen}
    return [Metric(name, value, direction="min") for name, value in each.items()]


def rows_residual(residuals: unseen.Residuals | None) -> list[tuple[str, str]]:
    """The residuals as rows of the table at the end; none where they were not measured."""
    if residuals is None:
        return []
    return [("residual", f"{residuals.trained:.1e} at the training points, {residuals.unseen:.1e} at others")]


def metrics_over(spread: Sequence[float]) -> list[Metric]:
    """The errors of several seeds in numbers."""
    if not spread:
        return []
    each = {"median": statistics.median(spread), "min": min(spread), "max": max(spread)}
    return [Metric(f"seeds/{name}_l2", value, direction="min") for name, value in each.items()]


def rows_over(spread: Sequence[float]) -> list[tuple[str, str]]:
    """The same in words. The rows above are of the seed with the lowest loss."""
    if not spread:
        return []
    middle, low, high = statistics.median(spread), min(spread), max(spread)
    return [("over the seeds", f"relative L2 error, median {middle:.3e} ({low:.3e} to {high:.3e}, n={len(spread)})")]


def beside(floor: rounding.Floor) -> str:
    """What rounding alone would make of the loss, to be written beside it."""
    return "" if floor.loss is None else f"; rounding alone makes {floor.loss:.1e}"


def rows(
    experiment: Experiment,
    resolved: Resolved,
    found: Solution,
    measured: Measured,
    residuals: unseen.Residuals | None,
    guarded: guard.Guard,
    floor: rounding.Floor,
    receipt: dict[str, Any],
) -> list[tuple[str, str]]:
    """The rows of the table that the run ends with."""
    last, count = found.history[-1], sum(len(points) for points in found.points.values())
    one = found.seconds / found.steps
    each = f"{table.seconds(one)} a step" if one >= 1 else f"{one * 1000:.3g} ms a step"
    guards = ", ".join(f"{name} {value:.1e}" for name, value in guarded.errors.items())
    coefficients = {**found.fitted.unknowns, **found.fitted.enrichment}
    return [
        ("relative L2 error", f"{measured.relative_l2:.3e} on {len(measured.grid):,} points"),
        ("maximum error", f"{measured.largest:.3e}"),
        ("loss", f"{last.loss:.3e} after {plural(found.steps, 'step')}{beside(floor)}"),
        *((f"  {name}", f"{value:.3e}") for name, value in last.terms.items()),
        *rows_residual(residuals),
        *((name, f"{value:.10g}") for name, value in coefficients.items()),
        (
            "wall time",
            f"{table.seconds(receipt['wall_time_s'])}, of which training {table.seconds(found.seconds)}, {each}",
        ),
        ("training points", f"{count:,}; {found.residual_evaluations:,} evaluations at a point"),
        ("solver", solver_of(experiment)),
        ("network", f"{found.parameters:,} parameters"),
        ("device", f"{resolved.place} ({receipt['device']['hardware']['name']}; {resolved.device_reason})"),
        ("precision", f"{resolved.precision}; seen: {', '.join(f'{k} {v}' for k, v in found.dtypes.items())}"),
        ("rounding, before", guards),
    ]
