"""stage=long_range: models side by side on what they recall over a distance, and on what a length costs (row E5).

Each training is a run below the stage's: models by distances by seeds, and models by lengths for time and memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, PositiveInt

from pipeline.contracts import Stage
from pipeline.datasets.recall import Recall as RecallData
from pipeline.errors import UserError, plural
from pipeline.machine.capability import Resolved
from pipeline.report.csv_file import csv_file
from pipeline.report.table import digits
from pipeline.runs import receipt as receipts
from pipeline.runs.beside import with_figures
from pipeline.runs.json_files import read_json
from pipeline.runs.result import Metric, Result, Table, count, memory, seconds
from pipeline.runs.run import Run
from pipeline.spec import spec
from pipeline.stages.cells import (
    Variant,
    caveats,
    checked,
    experiments_of,
    refuse_overruled,
    run_cells,
    set_by_all,
    variant,
    without_result,
)

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.sweep.entries import Entry
    from pipeline.sweep.plan import Decision
    from pipeline.tasks import Task

Name = Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,30}$")]
NO_RESULT = "no result"
RECALLED = 0.9  # the accuracy from which on a distance counts as recalled
HEADLINE = "best/accuracy"  # of the model that recalls most at the longest distance
TWO = Annotated[int, Field(ge=2)]


@spec
class LongRange(Stage):
    """`models`: name -> overrides (null leaves one out). `distances`: over which each recalls, with `seeds` seeds from
    the experiment's upwards. `lengths`: of the sequences whose time and memory are measured, by trainings with the
    overrides `timed`.
    """

    models: dict[Name, str | None]
    distances: tuple[PositiveInt, ...] = (4, 16, 64, 256)
    seeds: Annotated[int, Field(gt=0, le=1000)] = 3
    lengths: tuple[TWO, ...] = (64, 256, 1024)
    timed: str = ""

    has_cells: ClassVar[bool] = True
    seeds_by: ClassVar[str | None] = "seeds"
    headline: ClassVar[str] = HEADLINE

    @property
    def task(self) -> type[Task]:
        from pipeline.tasks.recall import Recall

        return Recall

    def __post_init__(self) -> None:
        if not self.chosen:
            raise ValueError("models={}: a comparison has at least one model")
        for key, values in (("distances", self.distances), ("lengths", self.lengths)):
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{key}={list(values)}: give at least one, each once")

    @property
    def chosen(self) -> dict[str, str]:
        """The models that are not left out."""
        return {name: text for name, text in self.models.items() if text is not None}

    def check(self, experiment: Experiment) -> None:
        """Refuse a model that is a mistake, before anything runs."""
        self.plan(experiment)

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse keys that every training sets anew."""
        models = [self._variant(experiment, {"model": name}) for name in self.chosen]
        set_anew = ["model", "dataset.distance", *set_by_all(models)]
        refuse_overruled(keys, set_anew, "stage.models, stage.distances and stage.lengths")

    def kinds(self, experiment: Experiment) -> list[Experiment]:
        """The shortest training of each model: their code, packages and configs count as the stage's."""
        return experiments_of([self._recalling(experiment, name, min(self.distances), 0) for name in self.chosen])

    def plan(self, experiment: Experiment) -> list[Decision]:
        """Every training as a cell, those that are timed last and the shortest first."""
        numbers = range(experiment.seed, experiment.seed + self.seeds)
        recalling = [
            self._recalling(experiment, name, distance, seed)
            for name in self.chosen
            for distance in sorted(self.distances)
            for seed in numbers
        ]
        return checked([*recalling, *self._timed(experiment)])

    def _recalling(self, experiment: Experiment, name: str, distance: int, seed: int) -> Variant:
        swept = {"measures": "recall", "model": name, "distance": str(distance), "seed": str(seed)}
        return self._variant(experiment, swept, f"dataset.distance={distance} seed={seed}")

    def _timed(self, experiment: Experiment) -> list[Variant]:
        return [
            self._variant(
                experiment,
                {"measures": "cost", "model": name, "length": str(length), "seed": str(experiment.seed)},
                f"dataset.distance={length - 1}",
                self.timed,
            )
            for length in sorted(self.lengths)
            for name in self.chosen
        ]

    def _variant(self, experiment: Experiment, swept: dict[str, str], *more: str) -> Variant:
        name = swept["model"]
        of_data = next((word for word in self.chosen[name].split() if word.lstrip("+~'\"").startswith("dataset")), None)
        if of_data is not None:
            raise UserError(f"stage.models.{name}: {of_data}: all models have the same data; set it for the stage")
        try:
            return variant(experiment, swept, " ".join((self.chosen[name], *more)))
        except UserError as error:
            raise UserError(f"stage.models.{name}={self.chosen[name]!r}: {error}") from error

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Train, and hold the models against each other."""
        run.journal.write_receipt(receipts.before(experiment, resolved))
        entries = run_cells(run, self.plan(experiment))
        found = [measured(name, entries) for name in self.chosen]
        write_csv(run.artifact("tables/long_range.csv"), found)
        source = experiment.data_source
        guess = 1 / source.symbols if isinstance(source, RecallData) else None  # of other data nobody knows
        result = Result(
            metrics=metrics(found),
            table=(*([] if guess is None else [("guess", f"an accuracy of {guess:.3f}")]), *parameters(found)),
            notes=caveats(entries),
            tables=(recalls(found, self), costs(found, self)),
            failed=without_result(entries),
        )
        return with_figures(result, lambda: draw(run.artifact("figures/long_range.png"), found, guess, run.id))


@dataclass(frozen=True)
class Cost:
    """Of one training: seconds of a sequence (median, least, most over its n periods), and the peak of the memory: of
    the device where that is a GPU, else of the process.
    """

    median: float
    least: float
    most: float
    n: int
    peak: float
    of_device: bool


@dataclass(frozen=True)
class Measured:
    """A model. `accuracies`: by distance, of each seed that has a result; `lost`: how many seeds came to none.
    `costs`: by length. `parameters`: at the shortest distance and at the longest.
    """

    name: str
    accuracies: dict[int, list[float]]
    costs: dict[int, Cost]
    parameters: tuple[int, ...]
    lost: dict[int, int] = field(default_factory=dict)

    @property
    def recalled(self) -> dict[int, list[float]]:
        """By distance, the accuracy of each seed; 0 of one that has come to nothing, where others have a result.

        It has mostly diverged: the median of those that went well would flatter.
        """
        return {at: own and [*own, *[0.0] * self.lost.get(at, 0)] for at, own in self.accuracies.items()}

    @property
    def reach(self) -> int | None:
        """The longest distance up to which the median accuracy is RECALLED or more; 0 where none is.

        None where a distance that it would have to pass has no result.
        """
        found = 0
        for distance, values in sorted(self.recalled.items()):
            if not values:
                return None
            if statistics.median(values) < RECALLED:
                break
            found = distance
        return found


def measured(name: str, entries: Sequence[Entry]) -> Measured:
    """What the runs of a model have left."""
    accuracies: dict[int, list[float]] = {}
    costs: dict[int, Cost] = {}
    parameters: dict[int, int] = {}
    lost: dict[int, int] = {}
    for entry in entries:
        swept = entry.cell.swept
        if swept["model"] != name:
            continue
        distance = int(swept["distance"]) if swept["measures"] == "recall" else None
        if distance is not None:
            accuracies.setdefault(distance, [])
        if entry.state != "done" or entry.run is None:
            if distance is not None and entry.state != "skipped":
                lost[distance] = lost.get(distance, 0) + 1
            continue
        receipt = read_json(entry.run / "receipt.json")
        if distance is not None:
            accuracies[distance].append(entry.metrics["test/accuracy"].value)
            parameters[distance] = receipt["parameters"]
        else:
            rates, peak = receipt["training_rate"], receipt["peak_memory"]
            costs[int(swept["length"])] = Cost(
                median=1 / rates["median"],
                least=1 / rates["max"],
                most=1 / rates["min"],
                n=rates["n"],
                peak=peak.get("device_bytes", peak["process_bytes"]),
                of_device="device_bytes" in peak,
            )
    ends = tuple(parameters[distance] for distance in sorted({min(parameters), max(parameters)})) if parameters else ()
    return Measured(name, accuracies, costs, tuple(dict.fromkeys(ends)), lost)


def metrics(found: Sequence[Measured]) -> tuple[Metric, ...]:
    """The accuracy of the best model at the longest distance; of every model its reach, its accuracy by distance, and
    what a sequence costs by length.
    """
    every = [count("models", sum(any(one.accuracies.values()) for one in found)), *best(found)]
    for one in found:
        if one.reach is not None:
            every.append(Metric(f"{one.name}/reach", one.reach, "positions", direction="max"))
        for distance, values in one.recalled.items():
            if values:
                every.append(Metric(f"{one.name}/accuracy_{distance}", statistics.median(values), direction="max"))
        for length, cost in one.costs.items():
            every.append(seconds(f"{one.name}/sequence_s_{length}", cost.median))
            every.append(memory(f"{one.name}/peak_bytes_{length}", cost.peak))
    return tuple(every)


def best(found: Sequence[Measured]) -> list[Metric]:
    """The highest median accuracy of a model at the longest distance; nothing where no model has a result there."""
    longest = max((distance for one in found for distance in one.accuracies), default=None)
    at_longest = [one.recalled[longest] for one in found if longest is not None and one.recalled.get(longest)]
    return [Metric(HEADLINE, max(map(statistics.median, at_longest)), direction="max")] if at_longest else []


def parameters(found: Sequence[Measured]) -> tuple[tuple[str, str], ...]:
    """Rows of the run's table: of a model whose positions are learned, at the shortest and at the longest distance."""
    said = ", ".join(f"{one.name} {' to '.join(f'{n:,}' for n in one.parameters)}" for one in found if one.parameters)
    return (("parameters", said),) if said else ()


def recalls(found: Sequence[Measured], stage: LongRange) -> Table:
    """The accuracy of each model by distance, and below it those of the lowest and the highest seed."""
    distances = sorted(stage.distances)
    rows: list[tuple[str, ...]] = []
    for one in found:
        each = [one.recalled.get(distance, []) for distance in distances]
        counts = [len(one.accuracies.get(distance, [])) for distance in distances]
        reach = NO_RESULT if one.reach is None else str(one.reach)
        rows.append((one.name, *(_median(own, n, stage.seeds) for own, n in zip(each, counts, strict=True)), reach))
        if any(len(own) > 1 for own in each):
            rows.append(("", *(f"{min(own):.2f}-{max(own):.2f}" if own else "" for own in each), ""))
    seeds = "1 seed" if stage.seeds == 1 else f"median of {stage.seeds} seeds, below it the lowest and the highest"
    seeds += "; one without a result counts as 0" if any(one.lost for one in found) else ""
    title = f"accuracy by distance, {seeds}; reach: the longest up to which it is {RECALLED} or more"
    return Table(title, ("model", *map(str, distances), "reach"), tuple(rows))


def _median(values: Sequence[float], n: int, seeds: int) -> str:
    """With `n`, the count of those that have a result, where some seeds have none."""
    if not values:
        return NO_RESULT
    return f"{statistics.median(values):.3f}" + (f" (n={n})" if n < seeds else "")


def costs(found: Sequence[Measured], stage: LongRange) -> Table:
    """Milliseconds of a sequence in training, and the peak memory, by length."""

    def cell(one: Measured, length: int) -> str:
        cost = one.costs.get(length)
        alone = " (n=1)" if cost is not None and cost.n == 1 else ""
        return "" if cost is None else f"{digits(1e3 * cost.median)} ms{alone}, {cost.peak / 2**20:,.0f} MiB"

    lengths = sorted(stage.lengths)
    rows = [(one.name, *(cell(one, length) for length in lengths)) for one in found]
    each = [cost for one in found for cost in one.costs.values()]
    cold = "; n=1: of one period, cold where it is the only one" if any(cost.n == 1 for cost in each) else ""
    times = f"a sequence in training (median over periods after the first{cold})"
    title = f"{times}, and the {_whose(found)}'s peak memory, by length"
    return Table(title, ("model", *map(str, lengths)), tuple(rows))


def _whose(found: Sequence[Measured]) -> str:
    """Of what the memory was measured: of the device, or of the process."""
    return "device" if any(cost.of_device for one in found for cost in one.costs.values()) else "process"


def write_csv(path: Path, found: Sequence[Measured]) -> None:
    """A row for each training that has a result."""
    with csv_file(path) as rows:
        rows.writerow(("model", "distance", "length", "accuracy", "sequence_s", "least_s", "most_s", "peak_bytes"))
        for one in found:
            for distance, values in one.accuracies.items():
                rows.writerows((one.name, distance, distance + 1, value, "", "", "", "") for value in values)
            for length, cost in one.costs.items():
                numbers = (cost.median, cost.least, cost.most, cost.peak)
                rows.writerow((one.name, length - 1, length, "", *numbers))


def draw(path: Path, found: Sequence[Measured], guess: float | None, title: str) -> None:
    """Accuracy against distance, and time and memory against length."""
    from pipeline.report import long_range

    recalled = {one.name: {at: values for at, values in one.recalled.items() if values} for one in found}
    times = {one.name: {at: (c.median, c.least, c.most) for at, c in one.costs.items()} for one in found}
    peaks = {one.name: {at: c.peak / 2**20 for at, c in one.costs.items()} for one in found}
    seeds = plural(max((len(values) for each in recalled.values() for values in each.values()), default=0), "seed")
    title += f"\nwhat is recalled over a distance ({seeds}) and what a length costs; bars: from the least to the most"
    long_range.figure(path, recalled, times, peaks, whose=_whose(found), guess=guess, title=title)
