"""stage=pinn_comparison: solvers side by side, several seeds each, and the classical solver of each problem."""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from pipeline.contracts import Stage, offers
from pipeline.contracts.physics import Problem
from pipeline.errors import UserError
from pipeline.machine.capability import Resolved
from pipeline.pinn.fits import FEW, check_classical
from pipeline.report.csv_file import csv_file
from pipeline.runs import receipt
from pipeline.runs.result import Metric, Result, Table, count, seconds
from pipeline.runs.run import Run
from pipeline.spec import spec
from pipeline.stages.cells import (
    Variant,
    checked,
    experiments_of,
    refuse_overruled,
    run_cells,
    set_by_all,
    variant,
    without_result,
)
from pipeline.stages.pinn import Pinn

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.sweep.entries import Entry
    from pipeline.sweep.plan import Decision

Name = Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,40}$")]
Level = Annotated[float, Field(gt=0, lt=1)]


@spec
class PinnComparison(Stage):
    """`rows`: name -> what is solved and how (null leaves one out), each with `seeds` seeds from the experiment's
    upwards; overrides as on the command line, but a solver's choice brings neither its backend nor its precision along:
    those are the comparison's, unless the row names others. `levels`: errors; the time to reach each is reported.
    """

    rows: dict[Name, str | None]
    seeds: Annotated[int, Field(gt=0, le=1000)] = 10
    levels: tuple[Level, ...] = (1e-2, 1e-3, 1e-4, 1e-6)

    has_cells: ClassVar[bool] = True
    seeds_by: ClassVar[str | None] = "seeds"
    solves: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ("scipy",)  # of a classical solver

    def __post_init__(self) -> None:
        if not self.chosen:
            raise ValueError("rows={}: a comparison has at least one row")
        if "rows" in self.chosen:
            raise UserError("stage.rows.rows: the metric that counts rows has this name; choose another")

    @property
    def chosen(self) -> dict[str, str]:
        """The rows that are not left out."""
        return {name: text for name, text in self.rows.items() if text is not None}

    def check(self, experiment: Experiment) -> None:
        """Refuse a row that is a mistake, before anything runs."""
        self.plan(experiment)

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse a key that every row sets anew."""
        rows = [self._row(experiment, {"row": name}) for name in self.chosen]
        refuse_overruled(keys, set_by_all(rows), "stage.rows")

    def kinds(self, experiment: Experiment) -> list[Experiment]:
        """The first seed of each row: the rows' code, packages and configs count as the comparison's."""
        return experiments_of(self.variants(experiment, 1))

    def plan(self, experiment: Experiment) -> list[Decision]:
        """Every row with every seed as a cell."""
        return checked(self.variants(experiment, self.seeds))

    def variants(self, experiment: Experiment, seeds: int) -> list[Variant]:
        """Every row with the first `seeds` seeds. Raises UserError for a row that the command line would refuse."""
        return [
            self._row(experiment, {"row": name, "seed": str(seed)}, f"seed={seed}")
            for name in self.chosen
            for seed in range(experiment.seed, experiment.seed + seeds)
        ]

    def _row(self, experiment: Experiment, swept: Mapping[str, str], *more: str) -> Variant:
        text = self.chosen[swept["row"]]
        try:
            return _alone(variant(experiment, swept, text, *more, stage=Pinn))
        except UserError as error:
            raise UserError(f"stage.rows.{swept['row']}={text!r}: {error}") from error

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Solve, and hold the rows against each other."""
        run.journal.write_receipt(receipt.before(experiment, resolved))
        plan = self.plan(experiment)
        for problem in with_classical(plan):
            check_classical(problem)  # before the trainings, which take hours
        entries = run_cells(run, plan)
        found = [
            measured(name, [one for one in entries if one.cell.swept["row"] == name], self) for name in self.chosen
        ]
        beside = classical(plan, Pinn().grid, rows=self.chosen)
        write_csv(run.artifact("tables/comparison.csv"), [*found, *beside])
        return Result(
            metrics=metrics([*found, *beside]),
            table=(("errors", f"relative L2, median of {self.seeds} seeds; one without a result counts as infinite"),),
            tables=(errors([*found, *beside]), costs([*found, *beside]), times([*found, *beside], self.levels)),
            failed=without_result(entries),
        )


def _alone(one: Variant) -> Variant:
    """Refuse the best of several seeds beside single ones. Raises UserError."""
    seeds = one.config["solver"].get("seeds", 1)
    if seeds != 1:
        raise UserError(f"solver.seeds={seeds}: one for each run here; stage.seeds says how many runs")
    return one


class Reached(NamedTuple):
    """How many seeds have come to a level, and their median seconds of training until then (infinite where none)."""

    seeds: int
    seconds: float


@dataclass(frozen=True)
class Measured:
    """A row over its seeds. `n`: how many have a result; the others' errors count as infinite. `compile_s`: beside
    `training_s`, NaN where compiling has no clock of its own. `to_level`: what became of each level.
    """

    name: str
    n: int
    error: float
    lowest: float
    highest: float
    training_s: float
    compile_s: float
    evaluations: float
    to_level: dict[str, Reached] = field(default_factory=dict)


def measured(name: str, entries: Sequence[Entry], stage: PinnComparison) -> Measured:
    """What the finished runs of a row have measured.

    The error of a seed without a result, which has mostly diverged, counts as infinite: the median of those that went
    well would flatter.
    """
    ended = [entry for entry in entries if entry.state == "done" and entry.run is not None]
    each = [entry.metrics["test/relative_l2"].value for entry in ended]
    if not each:
        return Measured(name, 0, *(float("nan"),) * 6)
    errors = [*each, *(float("inf"),) * (len(entries) - len(each))]
    histories = [
        read_history(entry.run / "artifacts" / "tables" / "history.csv") for entry in ended if entry.run is not None
    ]
    to_level = {f"{level:g}": to_reach(histories, level) for level in stage.levels}

    def middle(name: str) -> float:
        return statistics.median(
            entry.metrics[name].value if name in entry.metrics else float("nan") for entry in ended
        )

    return Measured(
        name,
        n=len(each),
        error=statistics.median(errors),
        lowest=min(errors),
        highest=max(errors),
        training_s=middle("training_s"),
        compile_s=middle("compile_s"),
        evaluations=middle("residual_evaluations"),
        to_level=to_level,
    )


def read_history(path: Path) -> list[tuple[float, float]]:
    """(seconds of training, error) at each moment."""
    with path.open(encoding="utf-8") as file:
        return [(float(row["training_s"]), float(row["relative_l2"])) for row in csv.DictReader(file)]


def reached(history: Sequence[tuple[float, float]], level: float) -> float:
    """Seconds to the first moment whose error is at most `level`."""
    return next((seconds for seconds, error in history if error <= level), float("inf"))


def to_reach(histories: Sequence[Sequence[tuple[float, float]]], level: float) -> Reached:
    """Over the seeds, of each its history."""
    each = [seconds for one in histories if np.isfinite(seconds := reached(one, level))]
    return Reached(len(each), statistics.median(each) if each else float("inf"))


def with_classical(plan: Sequence[Decision]) -> list[Any]:
    """Each problem that has a classical solver, once."""
    found: list[Any] = []
    for decision in plan:
        one = decision.cell.experiment
        if one is not None and offers(one.dataset, Problem.classical) and one.dataset not in found:
            found.append(one.dataset)
    return found


def classical(plan: Sequence[Decision], points: int, rows: Iterable[str] = ()) -> list[Measured]:
    """The classical solver of each problem that has one, run here: its own time and error.

    Of a problem with several settings there are several rows, each with what sets it apart; of a name that another
    solver or one of `rows` has, the problem says whose it is.
    """
    taken, problems, found = set(rows), with_classical(plan), []
    for problem in problems:
        alike = [one for one in problems if type(one) is type(problem)]
        settings = {one.name: getattr(problem, one.name) for one in fields(problem)}
        apart = [f"{key}={value}" for key, value in settings.items() if any(getattr(o, key) != value for o in alike)]
        grid = problem.domain.grid(points)
        few = problem.domain.grid(FEW)
        problem.classical(few)  # what is imported for it does not count in its time
        started = time.perf_counter()
        problem.classical(few)  # nor do its values at the grid, as a network's predictions there do not in its own
        seconds = time.perf_counter() - started
        name, answer = problem.classical(grid)
        answer, reference = answer() if callable(answer) else answer, problem.reference(grid)
        bound = answer if isinstance(answer, float) else np.linalg.norm(answer - reference) / np.linalg.norm(reference)
        name += f" {' '.join(apart)}" if apart else ""
        name += f" of {type(problem).__name__}" if name in taken else ""
        taken.add(name)
        found.append(Measured(name, 1, *(float(bound),) * 3, seconds, float("nan"), float("nan")))
    return found


def errors(found: Sequence[Measured]) -> Table:
    """The error of each row over its seeds."""
    heads = ("row", "seeds", "relative L2", "lowest to highest")
    rows = [
        (
            one.name,
            str(one.n),
            f"{one.error:.1e}",
            f"{one.lowest:.1e} to {one.highest:.1e}" if one.lowest < one.highest else "",
        )
        for one in found
    ]
    return Table("solvers side by side, the classical ones last: the median error", heads, tuple(rows))


def costs(found: Sequence[Measured]) -> Table:
    """The seconds of each row's training and of the compilation beside it, which a first run pays."""
    heads = ("row", "training", "compilation")
    rows = [(one.name, _brief(one.training_s), _brief(one.compile_s)) for one in found]
    title = "seconds of training, and of compilation beside it (empty: none, or part of the training)"
    return Table(title, heads, tuple(rows))


def times(found: Sequence[Measured], levels: Sequence[float]) -> Table:
    """The seconds of each row's training until each level."""
    heads = ("row", *(f"{level:g}" for level in levels))
    rows = [(one.name, *(_seconds(one.to_level.get(f"{level:g}"), one) for level in levels)) for one in found]
    title = (
        "seconds of training until the error is below a level, without compilation where that is timed beside it (in "
        "brackets: by how many seeds, if not by all)"
    )
    return Table(title, heads, tuple(rows))


def _seconds(found: Reached | None, row: Measured) -> str:
    if found is None:
        return ""
    if not found.seeds:
        return "never"
    return _brief(found.seconds) + (f" ({found.seeds})" if found.seeds < row.n or np.isinf(row.highest) else "")


def _brief(seconds: float) -> str:
    if np.isnan(seconds):
        return ""
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"


def metrics(found: Sequence[Measured]) -> tuple[Metric, ...]:
    """The metrics of every row of which a run has finished."""
    measured = [count("rows", sum(one.n > 0 for one in found))]
    for one in found:
        if not one.n or np.isinf(one.error):
            continue
        measured.append(Metric(f"{one.name}/relative_l2", one.error, direction="min"))
        measured.append(seconds(f"{one.name}/training_s", one.training_s))
        if not np.isnan(one.compile_s):
            measured.append(seconds(f"{one.name}/compile_s", one.compile_s))
    return tuple(measured)


def write_csv(path: Path, found: Sequence[Measured]) -> None:
    """A line for each row, the levels as columns."""
    levels = list(dict.fromkeys(level for one in found for level in one.to_level))
    plain = [one.name for one in fields(Measured) if one.name != "to_level"]
    with csv_file(path) as writer:
        writer.writerow([*plain, *(f"{what}_to_{level}" for level in levels for what in Reached._fields)])
        for one in found:
            times = [value for level in levels for value in one.to_level.get(level, ("", ""))]
            writer.writerow([*(getattr(one, name) for name in plain), *times])
