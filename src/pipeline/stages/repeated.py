"""Several trainings of one experiment that differ in their seed or their fold: means, intervals, each one's results."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.errors import RunError
from pipeline.experiment.metrics import name_of
from pipeline.report.csv_file import csv_file
from pipeline.report.intervals import deviation, half_width, why_none
from pipeline.report.table import alike, figure
from pipeline.runs.json_files import read_json
from pipeline.runs.records import EPOCH, read_metrics
from pipeline.runs.result import Metric, Table, half_of, read_result, training_rate, values, with_ends
from pipeline.runs.run import Run
from pipeline.stages.cells import first_cause, of_data
from pipeline.stages.rates import score_of

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.experiment.training import Training
    from pipeline.sweep.entries import Entry

# What the receipt says of times in all trainings: how long they trained and compiled, and when a usual one had begun.
OF_ALL: Mapping[str, Callable[[Sequence[float]], float]] = {
    "training_s": sum,
    "compile_s": sum,
    "first_step_s": statistics.median,
    "first_block_s": statistics.median,
}
FROM_FIRST = ("precision", "device", "parameters", "task")  # of the first training's receipt: the same for all
Repeated = Literal["seed", "fold"]
TIME = len("20260101-000000")  # with which a run's id begins


@dataclass(frozen=True)
class Over:
    """What trainings differ in, by its name and the key that sets it, and half of the interval of the mean of a metric
    over them (None: too few, or all the same). `spread`: their standard deviation is shown, too."""

    word: Repeated
    key: str
    half_width: Callable[[Sequence[float]], float | None]
    spread: bool = False


SEEDS = Over("seed", "seed", half_width)


@dataclass(frozen=True)
class Trained:
    """A finished run. `of`: its seed, or its fold.

    `results`: its test loss and score by name, the metrics that were asked for and what else its task measured on the
    test set. `by_examples`: half of the interval of those that have one by the test examples. `epochs`: the journal's
    record of each, with its step; `last_epoch`: of the last, or of the best one where its weights were kept.
    """

    of: str
    folder: Path
    results: dict[str, Metric]
    rate: Metric
    receipt: dict[str, Any]
    epochs: list[tuple[int, dict[str, float]]]
    last_epoch: tuple[Metric, ...]
    by_examples: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, entry: Entry, asked: Sequence[str], over: Over) -> Trained:
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
        return cls(entry.cell.swept[over.key], entry.run, results, rate, receipt, epochs, last_epoch, halves)


def trained_of(entries: Sequence[Entry], asked: Sequence[str], over: Over) -> list[Trained]:
    """The trainings that are done, in order. Raises RunError where there is none."""
    found = [Trained.read(entry, asked, over) for entry in entries if entry.state == "done"]
    if not found:
        raise RunError(f"none of the {len(entries)} {over.word}s has a result{first_cause(entries)}")
    return found


def asked_of(experiment: Experiment) -> list[str]:
    """The names of the metrics that training.metrics asks for."""
    return [f"test/{name_of(metric)}" for metric in experiment.training.metrics]


def keep(run: Run, receipt: dict[str, Any], trained: Sequence[Trained], over: Over) -> None:
    """The mean curves, a table of the results, and a receipt of all trainings."""
    log_epochs(run, trained)
    write_csv(run.artifact(f"{over.word}s.csv"), trained, over)
    of_each = [one.receipt for one in trained]
    first = of_each[0]
    receipt |= {key: first[key] for key in FROM_FIRST if key in first} | of_data(of_each) | timings(trained)
    run.journal.write_receipt(receipt)


def metrics(trained: Sequence[Trained], over: Over) -> tuple[Metric, ...]:
    """The mean of each result, its interval where the trainings are enough for one, and each training's own."""
    averages, intervals = list[Metric](), dict[str, tuple[float, float]]()
    for name, first in declared(trained).items():
        values = values_of(trained, name)
        mean, half = statistics.fmean(values), over.half_width(values)
        averages.append(replace(first, value=mean))
        if half is not None:
            intervals[name] = (mean - half, mean + half)
    found = [*with_ends(averages, intervals)]
    for one in trained:
        own = {f"{over.word}_{one.of}/{name.replace('/', '_')}": metric for name, metric in one.results.items()}
        found += [replace(metric, name=name, role=over.word) for name, metric in own.items()]
    return (*found, replace(trained[0].rate, value=statistics.median(rates(trained))))


def means(trained: Sequence[Trained], over: Over) -> tuple[tuple[str, str], ...]:
    """A row for each result: its mean and interval."""
    return tuple((name.replace("/", " "), _mean(values_of(trained, name), over)) for name in declared(trained))


def declared(trained: Sequence[Trained]) -> dict[str, Metric]:
    """Every result that a training has, by its name: that of the first which has it."""
    found: dict[str, Metric] = {}
    for one in trained:
        found = {**one.results, **found}
    return found


def values_of(trained: Sequence[Trained], name: str) -> list[float]:
    """The metric of that name of each training that has it."""
    return [one.results[name].value for one in trained if name in one.results]


def lacking(trained: Sequence[Trained], over: Over) -> list[str]:
    """Notes on the results that some trainings lack, as R² of targets that are all the same."""
    counts = {name: len(values_of(trained, name)) for name in declared(trained)}
    return [
        f"{name}: {n} of {len(trained)} {over.word}s have one; the mean is of those"
        for name, n in counts.items()
        if n < len(trained)
    ]


def rates(trained: Sequence[Trained]) -> list[float]:
    """The training rate of each run."""
    return [one.rate.value for one in trained]


def timings(trained: Sequence[Trained]) -> dict[str, Any]:
    """Of all trainings together, as a receipt has them of one run. `n`: trainings."""
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
    """The times of that name, of those that have one: only what compiles has `compile_s`."""
    return [one.receipt[name] for one in trained if name in one.receipt]


def log_epochs(run: Run, trained: Sequence[Trained]) -> None:
    """The mean of every epoch's metrics over the trainings, and the range of the validation score, in the journal.

    Up to the epoch with which the first one ended; the last one that is kept is that of each one's own end.
    """
    for number, same in enumerate(zip(*(one.epochs for one in trained), strict=False), 1):
        step = same[0][0]
        run.end_epoch(number, over_all(trained, [record for _, record in same]), step)
    run.last_epoch = tuple(over_all(trained, [values(one.last_epoch) for one in trained]))


def over_all(trained: Sequence[Trained], records: Sequence[dict[str, float]]) -> list[Metric]:
    """The mean of an epoch's metrics over the `records` of each training, and the range of the validation score."""
    validated = f"validation/{trained[0].receipt['task']['score'] or 'loss'}"
    each = {one.name: [record[one.name] for record in records] for one in trained[0].last_epoch}
    found = [replace(one, value=statistics.fmean(each[one.name])) for one in trained[0].last_epoch]
    for score in (one for one in trained[0].last_epoch if one.name == validated):
        extremes = {"min": min(each[validated]), "max": max(each[validated])}
        found += [replace(score, name=f"{validated}_{end}", value=value) for end, value in extremes.items()]
    return found


def of_lengths(trained: Sequence[Trained], training: Training, over: Over) -> list[str]:
    """A note where trainings ended after different numbers of epochs, or of steps where these are what is counted."""
    if training.validate_every is None:
        unit, lengths = "epochs", [len(one.epochs) for one in trained]
    else:
        unit, lengths = "steps", [max((step for step, _ in one.epochs), default=0) for one in trained]
    if len(set(lengths)) == 1:
        return []
    each = ", ".join(map(str, lengths))
    return [f"the {over.word}s ended after {each} {unit}: the mean curves end at {min(lengths)}"]


def write_csv(path: Path, trained: Sequence[Trained], over: Over) -> None:
    """A row for each training: its results, without what the machine was busy with."""
    with csv_file(path) as rows:
        names = declared(trained)
        rows.writerow([over.word, *(name.replace("/", "_") for name in names)])
        for one in trained:
            rows.writerow([one.of, *(one.results[name].value if name in one.results else "" for name in names)])


def grid(trained: Sequence[Trained], asked: Sequence[str], over: Over) -> Table:
    """A row for each training: its loss, its score and the metrics that were asked for."""
    first = trained[0]
    names = dict.fromkeys(("test/loss", score_of(first.receipt, first.results).name, *asked))
    heads = (over.word, *(name.replace("/", " ") for name in names), first.rate.unit, "run")
    runs = beginnings([one.folder.name for one in trained])
    rows = tuple(
        (one.of, *(figure(one.results[name].value) for name in names), f"{rate:,.0f}", run)
        for one, rate, run in zip(trained, rates(trained), runs, strict=True)
    )
    return Table(f"one training by {over.word}", heads, rows)


def beginnings(names: Sequence[str]) -> list[str]:
    """What names each run among these: the time in its id, or more of it. A whole id would be broken in the table, and
    a command takes the beginning of one."""

    found = []
    for name in names:
        length = TIME
        while length < len(name) and sum(other.startswith(name[:length]) for other in names) > 1:
            length += 1
        found.append(name[:length])
    return found


def _mean(values: Sequence[float], over: Over) -> str:
    half, scatter = over.half_width(values), deviation(values) if over.spread else None
    spreads = [one for one in (half, scatter) if one is not None]
    extremes = () if half is None else (min(values), max(values))
    mean, *others = alike((statistics.fmean(values), *spreads, *extremes), min(spreads, default=0.0))
    n = f"n={len(values)}" if scatter is None else f"deviation {others[len(spreads) - 1]}, n={len(values)}"
    if half is None:
        return f"{mean} (mean; {n}, {why_none(values)} for an interval)"
    return f"{mean} +-{others[0]} (mean, 95 % interval, {n}; {others[-2]} to {others[-1]})"
