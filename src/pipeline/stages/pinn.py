"""stage=pinn: solve a problem by a network, hold it against an independent reference, draw, save."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from pipeline.contracts import Stage
from pipeline.errors import plural
from pipeline.machine.capability import Resolved
from pipeline.machine.precision import FORMATS
from pipeline.pinn import errors, guard, rounding, solution, unseen
from pipeline.pinn.errors import Measured
from pipeline.pinn.fits import check_fits
from pipeline.pinn.solution import Layers, Solution
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
        experiment.solver.check_precision(experiment.precision.name, experiment.backend.name)

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Guard, solve, measure. Raises RunError where training cannot go on."""
        problem = experiment.problem
        model = experiment.network.of(problem)
        receipt = receipts.before(experiment, resolved) | resumptions(run)
        run.identity = identity()
        start = model.initial(problem, experiment.seed)
        guarded = guard_precision(experiment, resolved, run, receipt, start)
        found: Solution = experiment.solver.solve(
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
        way = errors.along(problem, found.history)
        errors.write_history(run.artifact("tables/history.csv"), found.history, way)
        judged = self.judge(experiment, resolved, found, start, guarded)
        for warning in judged.warnings:
            run.note(warning)
        receipt["precision"]["trained"] = judged.floor.plain()
        receipt |= {
            "wall_time_s": run.earlier_s + seconds_since_start(),
            "training_s": found.seconds,
            **({} if found.compile_s is None else {"compile_s": found.compile_s}),
            **run.marks,
        }
        run.journal.write_receipt(receipt)
        result = Result(metrics=metrics(judged), table=rows(experiment, resolved, judged, receipt))
        return with_figures(result, partial(draw, run, experiment, found, way, judged.measured))

    def judge(
        self, experiment: Experiment, resolved: Resolved, found: Solution, start: Layers, guarded: guard.Guard
    ) -> Judged:
        """Measure a solution; `start`: the network that the guard has tried."""
        problem = experiment.problem
        return Judged(
            found,
            guarded,
            measured=errors.measure(problem, found.fitted, self.grid),
            seeds=errors.over_seeds(problem, found, self.grid),
            residuals=unseen.measure(problem, found.fitted, start, found.points, experiment.seed),
            floor=rounding.measure(problem, found, resolved.precision, experiment.solver),
        )


@dataclass(frozen=True)
class Judged:
    """A solution and what is known of it. `guarded`: what the precision loses before the training, and `floor`: what
    it leaves of the loss after it. `seeds`: the error of each of several. `residuals`: None without equations.
    """

    found: Solution
    guarded: guard.Guard
    measured: Measured
    seeds: Sequence[float]
    residuals: unseen.Residuals | None
    floor: rounding.Floor

    @property
    def warnings(self) -> tuple[str, ...]:
        return (*(self.residuals.warnings if self.residuals else ()), *self.floor.warnings)


def guard_precision(
    experiment: Experiment, resolved: Resolved, run: Run, receipt: dict[str, Any], start: Layers
) -> guard.Guard:
    """Before the training: what the precision loses, for the receipt and in notes."""
    problem, solver = experiment.problem, experiment.solver
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
    return guarded


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
    asked = f"precision={resolved.precision} asks for {wanted} but the solver has {', '.join(wrong)}"
    lies = f"device={resolved.place} but the parameters lie on {receipt['device']['effective']}"
    elsewhere = found.device and receipts.device_mismatch(resolved, where)
    said = receipts.add_problems(receipt, device=lies if elsewhere else None, precision=asked if wrong else None)
    if FORMATS[resolved.precision].tf32 and not wrong:
        receipt["precision"] |= {
            "as_requested": None,
            "problem": "whether products ran in TF32 was not seen, float32 was",
        }
    receipts.refuse(said, experiment)


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


def metrics(judged: Judged) -> tuple[Metric, ...]:
    """The errors, the loss and its floor, steps and times, the unknowns; the residuals; the errors of several seeds."""
    found, measured, floor, residuals = judged.found, judged.measured, judged.floor, judged.residuals
    of_residuals = {} if residuals is None else {"train": residuals.trained, "test": residuals.unseen}
    return (
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
        *(Metric(f"{where}/residual", value, direction="min") for where, value in of_residuals.items()),
        *metrics_of_seeds(judged.seeds),
    )


def metrics_of_seeds(found: Sequence[float]) -> list[Metric]:
    """The relative L2 errors of several seeds in numbers; none of a single one."""
    if not found:
        return []
    each = {"median": statistics.median(found), "min": min(found), "max": max(found)}
    return [Metric(f"seeds/{name}_l2", value, direction="min") for name, value in each.items()]


def rows(
    experiment: Experiment, resolved: Resolved, judged: Judged, receipt: Mapping[str, Any]
) -> tuple[tuple[str, str], ...]:
    """The rows of the table that the run ends with: first what was found, then how."""
    return (*rows_found(judged), *rows_run(experiment, resolved, judged, receipt), *rows_of_seeds(judged.seeds))


def rows_found(judged: Judged) -> Iterator[tuple[str, str]]:
    """The errors, the loss with its terms, the residuals, and the coefficients that were found."""
    found, residuals, floor = judged.found, judged.residuals, judged.floor.loss
    last, rounding_alone = found.history[-1], "" if floor is None else f"; rounding alone makes {floor:.1e}"
    yield "relative L2 error", f"{judged.measured.relative_l2:.3e} on {len(judged.measured.grid):,} points"
    yield "maximum error", f"{judged.measured.largest:.3e}"
    yield "loss", f"{last.loss:.3e} after {plural(found.steps, 'step')}{rounding_alone}"
    yield from ((f"  {name}", f"{value:.3e}") for name, value in last.terms.items())
    if residuals is not None:
        yield "residual", f"{residuals.trained:.1e} at the training points, {residuals.unseen:.1e} at others"
    coefficients = {**found.fitted.unknowns, **found.fitted.enrichment}
    yield from ((name, f"{value:.10g}") for name, value in coefficients.items())


def rows_run(
    experiment: Experiment, resolved: Resolved, judged: Judged, receipt: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Times, points, solver, network, device and precision."""
    found, points = judged.found, sum(len(points) for points in judged.found.points.values())
    step_s = found.seconds / found.steps
    each = f"{table.seconds(step_s)} a step" if step_s >= 1 else f"{step_s * 1000:.3g} ms a step"
    whole, training = table.seconds(receipt["wall_time_s"]), table.seconds(found.seconds)
    yield "wall time", f"{whole}, of which training {training}, {each}"
    yield "training points", f"{points:,}; {found.residual_evaluations:,} evaluations at a point"
    yield "solver", solver_of(experiment)
    yield "network", f"{found.parameters:,} parameters"
    yield "device", f"{resolved.place} ({receipt['device']['hardware']['name']}; {resolved.device_reason})"
    yield "precision", f"{resolved.precision}; seen: {', '.join(f'{k} {v}' for k, v in found.dtypes.items())}"
    errors = ((guard.PLAIN.get(name, name), value) for name, value in judged.guarded.errors.items())
    yield "rounding, before", ", ".join(f"{name} {f'{value:.1e}' if value else 0}" for name, value in errors)


def rows_of_seeds(found: Sequence[float]) -> Iterator[tuple[str, str]]:
    """The errors of several seeds in words. The rows above are of the seed with the lowest loss."""
    if found:
        middle, low, high = statistics.median(found), min(found), max(found)
        yield "over the seeds", f"relative L2 error, median {middle:.3e} ({low:.3e} to {high:.3e}, n={len(found)})"
