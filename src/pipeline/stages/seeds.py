"""stage=seeds: one training with several seeds, each a run below the stage's: mean, interval, every seed's result."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from pipeline.contracts import Stage
from pipeline.errors import RunError
from pipeline.experiment.metrics import name_of
from pipeline.machine.capability import Resolved
from pipeline.report.csv_file import csv_file
from pipeline.report.intervals import half_width, why_none
from pipeline.report.table import figure
from pipeline.runs import receipt as receipts
from pipeline.runs.json_files import read_json
from pipeline.runs.records import EPOCH, read_metrics
from pipeline.runs.result import Metric, Result, Table, ends, half_of, read_result, training_rate, values
from pipeline.runs.run import Run
from pipeline.spec import spec
from pipeline.stages.cells import Variant, caveats, checked, of_data, of_tests, run_cells, variant, without_result
from pipeline.stages.rates import score_of

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.experiment.training import Training
    from pipeline.sweep.entries import Entry

# What the receipt says of times in all seeds: how long they trained and compiled, and when a usual one had begun.
OF_ALL: Mapping[str, Callable[[Sequence[float]], float]] = {
    "training_s": sum,
    "compile_s": sum,
    "first_step_s": statistics.median,
    "first_block_s": statistics.median,
}
FROM_FIRST = ("precision", "device", "parameters", "task")  # of the first seed's receipt: the same for all


@spec
class Seeds(Stage):
    """`repeats`: how many seeds, from the experiment's `seed` on. They run one at a time in one warm worker."""

    repeats: Annotated[int, Field(gt=0, le=1000)] = 3

    has_cells: ClassVar[bool] = True
    seeds_by: ClassVar[str | None] = "repeats"
    packages: ClassVar[tuple[str, ...]] = ("scipy",)  # of an interval

    def check(self, experiment: Experiment) -> None:
        """Refuse what cannot run here before the first seed does."""
        checked(self.variants(experiment))

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Train with every seed. Raises RunError where none came to a result."""
        receipt = receipts.before(experiment, resolved)
        run.journal.write_receipt(receipt)
        entries = run_cells(run, checked(self.variants(experiment)))
        asked = [f"test/{name_of(metric)}" for metric in experiment.training.metrics]
        trained = [Trained.read(entry, asked) for entry in entries if entry.state == "done"]
        if not trained:
            raise RunError(f"none of the {self.repeats} seeds has a result")
        log_epochs(run, trained)
        write_csv(run.artifact("seeds.csv"), trained)
        keep_first(run, trained[0])
        of_each = [one.receipt for one in trained]
        first = of_each[0]
        receipt |= {key: first[key] for key in FROM_FIRST if key in first} | of_data(of_each) | timings(trained)
        run.journal.write_receipt(receipt)
        return Result(
            metrics=metrics(trained),
            table=means(trained),
            tables=(grid(trained, asked),),
            notes=(
                "the interval is over seeds, on this machine, with these versions: another machine rounds differently, "
                "and training amplifies that",
                *of_lengths(trained, experiment.training),
                *(of_tests(of_each) or by_one_test(trained)),
                *lacking(trained),
                *caveats(entries),
            ),
            failed=without_result(entries),
        )

    def variants(self, experiment: Experiment) -> list[Variant]:
        """A training for each seed."""
        seeds = [str(experiment.seed + repeat) for repeat in range(self.repeats)]
        return [variant(experiment, {"seed": seed}, f"seed={seed}") for seed in seeds]


@dataclass(frozen=True)
class Trained:
    """One seed's finished run.

    `results`: its test loss and score by name, the metrics that were asked for and what else its task measured on the
    test set. `by_examples`: half of the interval of those that have one by the test examples. `epochs`: the journal's
    record of each, with its step; `last_epoch`: of the last, or of the best one where its weights were kept.
    """

    seed: str
    folder: Path
    results: dict[str, Metric]
    rate: Metric
    receipt: dict[str, Any]
    epochs: list[tuple[int, dict[str, float]]]
    last_epoch: tuple[Metric, ...]
    by_examples: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, entry: Entry, asked: Sequence[str]) -> Trained:
        """From the folder of a cell that is done."""
        assert entry.run is not None
        epochs = [(record.step, dict(record.metrics)) for record in read_metrics(entry.run) if EPOCH in record.metrics]
        kept, receipt = read_result(entry.run), read_json(entry.run / "receipt.json")
        measured = [entry.metrics["test/loss"], score_of(receipt, entry.metrics)]
        measured += [entry.metrics[name] for name in asked]
        measured += [one for one in entry.metrics.values() if one.name.startswith("test/") and one.kind == "result"]
        results = {metric.name: metric for metric in measured if not metric.is_end}
        halves = {name: half for name in results if (half := half_of(entry.metrics, name)) is not None}
        last_epoch, rate = kept.last_epoch if kept else (), training_rate(entry.metrics)
        return cls(entry.cell.swept["seed"], entry.run, results, rate, receipt, epochs, last_epoch, halves)


def metrics(trained: Sequence[Trained]) -> tuple[Metric, ...]:
    """The mean of each result, its interval where the seeds are enough for one, and each seed's own."""
    found: list[Metric] = []
    for name, first in declared(trained).items():
        values = values_of(trained, name)
        mean, half = statistics.fmean(values), half_width(values)
        found.append(replace(first, value=mean))
        if half is not None:
            found += ends(first, mean - half, mean + half)
    for one in trained:
        own = {f"seed_{one.seed}/{name.replace('/', '_')}": metric for name, metric in one.results.items()}
        found += [replace(metric, name=name, role="seed") for name, metric in own.items()]
    return (*found, replace(trained[0].rate, value=statistics.median(rates(trained))))


def means(trained: Sequence[Trained]) -> tuple[tuple[str, str], ...]:
    """A row for each result: its mean and interval."""
    return tuple((name.replace("/", " "), _mean(values_of(trained, name))) for name in declared(trained))


def declared(trained: Sequence[Trained]) -> dict[str, Metric]:
    """Every result that a seed has, by its name: that of the first seed which has it."""
    found: dict[str, Metric] = {}
    for one in trained:
        found = {**one.results, **found}
    return found


def values_of(trained: Sequence[Trained], name: str) -> list[float]:
    """The metric of that name of each training that has it."""
    return [one.results[name].value for one in trained if name in one.results]


def lacking(trained: Sequence[Trained]) -> list[str]:
    """Notes on the results that some seeds lack, as R² of targets that are all the same."""
    counts = {name: len(values_of(trained, name)) for name in declared(trained)}
    return [
        f"{name}: {n} of {len(trained)} seeds have one; the mean is of those"
        for name, n in counts.items()
        if n < len(trained)
    ]


def by_one_test(trained: Sequence[Trained]) -> list[str]:
    """A note on how far the test set, which is the same for all seeds, carries the means.

    The mean over seeds is known no worse by the examples than the seeds are on average: its standard error is at most
    the mean of theirs, and as large where all seeds fail on the same examples.
    """
    names = [name for name in declared(trained) if all(name in one.by_examples for one in trained)]
    if not names:
        return []
    found = ", ".join(
        f"{name} +-{figure(statistics.fmean(one.by_examples[name] for one in trained))}" for name in names
    )
    return [
        f"the test examples, the same for all seeds, leave the means uncertain by up to {found} (95 %); that is not in "
        "the interval over seeds, and more seeds do not reduce it"
    ]


def rates(trained: Sequence[Trained]) -> list[float]:
    """The training rate of each seed's run."""
    return [one.rate.value for one in trained]


def timings(trained: Sequence[Trained]) -> dict[str, Any]:
    """Of all seeds together, as a receipt has them of one run. `n`: seeds."""
    found = rates(trained)
    each = [one.receipt["training_rate"] for one in trained]
    of_others = [one["cores_of_others"] for one in each if one["cores_of_others"] is not None]
    peaks = [one.receipt["peak_memory"] for one in trained]
    return {
        **{name: of(took) for name, of in OF_ALL.items() if (took := _of_receipts(trained, name))},
        "training_rate": {
            "unit": trained[0].rate.unit,
            "median": statistics.median(found),
            "min": min(found),
            "max": max(found),
            "n": len(found),
            "timed_s": min(one["timed_s"] for one in each),
            "cold": any(one["cold"] for one in each),
            "cores_of_others": max(of_others, default=None),
        },
        "peak_memory": {key: max(peak[key] for peak in peaks) for key in peaks[0]},
    }


def _of_receipts(trained: Sequence[Trained], name: str) -> list[float]:
    """The seeds' times of that name, of those that have one: only what compiles has `compile_s`."""
    return [one.receipt[name] for one in trained if name in one.receipt]


def log_epochs(run: Run, trained: Sequence[Trained]) -> None:
    """The mean of every epoch's metrics over the seeds, and the range of the validation score, in the journal.

    Up to the epoch with which the first seed ended; the last one that is kept is that of each seed's own end.
    """
    for number, same in enumerate(zip(*(one.epochs for one in trained), strict=False), 1):
        step = same[0][0]
        run.end_epoch(number, over_seeds(trained, [record for _, record in same]), step)
    run.last_epoch = tuple(over_seeds(trained, [values(one.last_epoch) for one in trained]))


def over_seeds(trained: Sequence[Trained], records: Sequence[dict[str, float]]) -> list[Metric]:
    """The mean of an epoch's metrics over the seeds' `records`, and the range of the validation score."""
    validated = f"validation/{trained[0].receipt['task']['score'] or 'loss'}"
    each = {one.name: [record[one.name] for record in records] for one in trained[0].last_epoch}
    found = [replace(one, value=statistics.fmean(each[one.name])) for one in trained[0].last_epoch]
    for score in (one for one in trained[0].last_epoch if one.name == validated):
        ends = {"min": min(each[validated]), "max": max(each[validated])}
        found += [replace(score, name=f"{validated}_{end}", value=value) for end, value in ends.items()]
    return found


def of_lengths(trained: Sequence[Trained], training: Training) -> list[str]:
    """A note where seeds ended after different numbers of epochs, or of steps where these are what is counted."""
    if training.validate_every is None:
        unit, lengths = "epochs", [len(one.epochs) for one in trained]
    else:
        unit, lengths = "steps", [max((step for step, _ in one.epochs), default=0) for one in trained]
    if len(set(lengths)) == 1:
        return []
    return [f"the seeds ended after {', '.join(map(str, lengths))} {unit}: the mean curves end at {min(lengths)}"]


def write_csv(path: Path, trained: Sequence[Trained]) -> None:
    """A row for each seed: its results, without what the machine was busy with."""
    with csv_file(path) as rows:
        names = declared(trained)
        rows.writerow(["seed", *(name.replace("/", "_") for name in names)])
        for one in trained:
            rows.writerow([one.seed, *(one.results[name].value if name in one.results else "" for name in names)])


def keep_first(run: Run, first: Trained) -> None:
    """The first seed's figures and predictions, which are of one model and have no mean."""
    for path in sorted((first.folder / "artifacts" / "figures").glob("*.png")):
        shutil.copyfile(path, run.artifact(f"figures/{path.name}"))
    predictions = first.folder / "artifacts" / "predictions.csv"
    if predictions.exists():  # a task may write none
        shutil.copyfile(predictions, run.artifact("predictions.csv"))


def grid(trained: Sequence[Trained], asked: Sequence[str]) -> Table:
    """A row for each seed: its loss, its score and the metrics that were asked for."""
    first = trained[0]
    names = dict.fromkeys(("test/loss", score_of(first.receipt, first.results).name, *asked))
    heads = ("seed", *(name.replace("/", " ") for name in names), first.rate.unit, "run")
    rows = tuple(
        (one.seed, *(figure(one.results[name].value) for name in names), f"{rate:,.0f}", one.folder.name)
        for one, rate in zip(trained, rates(trained), strict=True)
    )
    return Table("one training by seed", heads, rows)


def _mean(values: Sequence[float]) -> str:
    half = half_width(values)
    mean = figure(statistics.fmean(values))
    if half is None:
        return f"{mean} (mean; n={len(values)}, {why_none(values)} for an interval)"
    low, high = figure(min(values)), figure(max(values))
    return f"{mean} +-{figure(half)} (mean, 95 % interval, n={len(values)}; {low} to {high})"
