"""stage=ladder: one training made faster rung by rung, each a run in its own process, and what each gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from pipeline.contracts import Model, Stage
from pipeline.errors import UserError, bad_choice
from pipeline.machine.capability import Resolved
from pipeline.report.csv_file import csv_file
from pipeline.report.table import digits, figure
from pipeline.runs import receipt as receipts
from pipeline.runs.beside import with_figures
from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_metrics
from pipeline.runs.result import Metric, Result, Table, memory, seconds, training_rate
from pipeline.runs.run import Run
from pipeline.spec import spec
from pipeline.stages.cells import (
    Variant,
    caveats,
    decided,
    experiment_of,
    if_any,
    refuse_overruled,
    refuse_profiler,
    run_cells,
    variant,
    without_result,
)
from pipeline.stages.rates import score_of
from pipeline.sweep.notes import period_of

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.machine.precision import Precision
    from pipeline.sweep.entries import Entry
    from pipeline.sweep.plan import Decision

Name = Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,30}$")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@spec
class Ladder(Stage):
    """`rungs`: name -> what it changes of the rung below (None: leave it out). The model's are above them.

    `source_s`: the seconds that the source reports, by rung.
    """

    has_cells: ClassVar[bool] = True
    headline: ClassVar[str] = "gain"

    rungs: dict[Name, str | None]
    source_s: dict[str, Seconds] = Field(default_factory=dict)
    source: str | None = None

    def __post_init__(self) -> None:
        if all(text is None for text in self.rungs.values()):
            raise ValueError(f"rungs={self.rungs}: a ladder has at least one rung")
        for name in self.source_s:
            if name not in self.rungs:
                raise bad_choice("stage.source_s", name, self.rungs)

    def all_rungs(self, experiment: Experiment) -> dict[str, str]:
        """Those of the stage, then the model's; what the stage says of one of the model's holds."""
        model = experiment.model.rungs() if isinstance(experiment.model, Model) else {}
        return {name: text for name, text in {**self.rungs, **model, **self.rungs}.items() if text is not None}

    def check(self, experiment: Experiment) -> None:
        """Refuse a rung that is a mistake, or of another length than the first, before anything runs."""
        self.plan(experiment)
        lengths = {_length(one) for one in self.kinds(experiment)}
        if len(lengths) > 1:
            raise UserError(
                "stage=ladder: its rungs are compared by the time of the same training, and they train for "
                f"{' and '.join(sorted(lengths))}; give each training.epochs alone"
            )
        first, *others = (one.config["dataset"] for one in self.kinds(experiment))
        changed = next((key for one in others for key in one if one[key] != first.get(key)), None)
        if changed is not None:
            raise UserError(
                f"stage=ladder: its rungs are compared by the time of the same training, and dataset.{changed} differs "
                "between them; set it for all"
            )

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse a key that the first rung sets anew, so that nothing would be left of the user's."""
        name, text = next(iter(self.all_rungs(experiment).items()))
        refuse_overruled(keys, _rung(experiment, name, text, None).keys, f"stage.rungs.{name}={text!r}")

    def plan(self, experiment: Experiment) -> list[Decision]:
        """Every rung as a cell. What a rung changes holds for those above it, unless it cannot run here."""
        below: Variant | None = None
        decisions = []
        for number, (name, text) in enumerate(self.all_rungs(experiment).items()):
            rung = _rung(experiment, name, text, below)
            decisions.append(decided(number, rung))
            below = rung if decisions[-1].verdict == "run" else below
        return if_any(decisions)

    def kinds(self, experiment: Experiment) -> list[Experiment]:
        """Every rung over all those below it: their code, packages and configs count as the ladder's.

        As in `plan`, nothing stands on a rung that runs nowhere. One that only this machine cannot run counts.
        """
        below: Variant | None = None
        found: list[Experiment] = []
        for name, text in self.all_rungs(experiment).items():
            rung = _rung(experiment, name, text, below)
            one = experiment_of(rung)
            if one is not None:
                found.append(one)
                below = rung
        return found

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Run the rungs, and show in one table what each has gained."""
        run.journal.write_receipt(receipts.before(experiment, resolved))
        entries = run_cells(run, self.plan(experiment))
        found = measured(entries)
        write_csv(run.artifact("ladder.csv"), found)
        result = Result(
            metrics=metrics(found),
            table=tuple(notes(entries, found)),
            notes=(*caveats(entries), *self._notes()),
            tables=(grid(entries, found, self),),
            failed=without_result(entries),
        )
        return with_figures(result, lambda: draw(run.artifact("ladder.png"), found, run.id))

    def _notes(self) -> list[str]:
        """Of what training the source's seconds are: the user's may be another."""
        seconds = f"source s: seconds of training that the source reports ({self.source})"
        return [seconds] if self.source_s and self.source else []


def _rung(experiment: Experiment, name: str, text: str, below: Variant | None) -> Variant:
    single = f"profile each rung as a single training by its words ({name}: {text}), as docs/ladder.md shows"
    refuse_profiler(experiment, single)  # not below: it is a mistake of the command, and not of this rung
    try:
        return _as_set(experiment.precision, variant(experiment, {"rung": name}, text, above=below))
    except UserError as error:
        raise UserError(f"stage.rungs.{name}={text!r}: {error}") from error


def _as_set(precision: Precision, rung: Variant) -> Variant:
    """A rung whose precision took the group's place, with what the user set for all beside the name."""
    held: dict[str, bool | float] = {} if precision.strict else {"strict": False}
    held |= {} if precision.initial_scale is None else {"initial_scale": precision.initial_scale}
    own = rung.config["precision"]
    kept = {key: value for key, value in held.items() if key in own and f"precision.{key}" not in rung.keys}
    return replace(rung, config={**rung.config, "precision": {**own, **kept}})


def _length(rung: Experiment) -> str:
    """How long a rung trains, in words. Raises UserError where only its clock or its validations would say."""
    training = rung.training
    for key in ("max_time", "patience"):
        if (value := getattr(training, key)) is not None:
            raise UserError(
                f"training.{key}={value} with stage=ladder: could end each rung after another number of steps, and "
                "they are compared by the time of the same training; leave it out"
            )
    if training.steps is None:
        return f"{training.epochs} epochs"
    return f"{training.steps * training.accumulate * training.batch_size} examples"


@dataclass(frozen=True)
class Rung:
    """What a rung's run has measured. `gain`: how many times faster its training was than that of the rung below."""

    name: str
    training_s: float
    rate: Metric
    wall_time_s: float
    gain: float
    gain_in_total: float
    score: Metric
    process_bytes: float
    device_bytes: float | None
    compile_s: float | None
    at_its_rate_s: float | None  # that the training would take if all of it went as fast as its rate; None: one epoch

    def metrics(self) -> list[Metric]:
        """The rung's metrics, each named after it: `<rung>/training_s`."""
        device, compiled = self.device_bytes, self.compile_s
        return [
            seconds(f"{self.name}/training_s", self.training_s),
            replace(self.rate, name=f"{self.name}/{self.rate.name}"),
            seconds(f"{self.name}/wall_time_s", self.wall_time_s),
            _gain(f"{self.name}/gain", self.gain),
            _gain(f"{self.name}/gain_in_total", self.gain_in_total),
            replace(self.score, name=f"{self.name}/{self.score.name.replace('/', '_')}"),
            memory(f"{self.name}/process_bytes", self.process_bytes),
            *([] if device is None else [memory(f"{self.name}/device_bytes", device)]),
            *([] if compiled is None else [seconds(f"{self.name}/compile_s", compiled)]),
        ]


def measured(entries: Sequence[Entry]) -> list[Rung]:
    """The rungs that ended well, each held against the one below that did."""
    found: list[Rung] = []
    for entry in entries:
        if entry.state != "done" or entry.run is None:
            continue
        receipt = read_json(entry.run / "receipt.json")
        seconds = receipt["training_s"]
        rung = Rung(
            name=entry.cell.swept["rung"],
            training_s=seconds,
            rate=training_rate(entry.metrics),
            wall_time_s=receipt["wall_time_s"],
            gain=found[-1].training_s / seconds if found else 1.0,
            gain_in_total=found[0].training_s / seconds if found else 1.0,
            score=score_of(receipt, entry.metrics),
            process_bytes=receipt["peak_memory"]["process_bytes"],
            device_bytes=receipt["peak_memory"].get("device_bytes"),
            compile_s=receipt.get("compile_s"),
            at_its_rate_s=at_rate(seconds, training_rate(entry.metrics), entry.run),
        )
        found.append(rung)
    return found


def at_rate(training_s: float, rate: Metric, run: Path) -> float | None:
    """Seconds that a training would take with every epoch, of equal length, at `rate`; None of one epoch, which has
    no other to be held against. Too few where steps compiled: their examples are in no rate."""
    rates = [found for record in read_metrics(run) if (found := record.metrics.get(f"epoch/{rate.name}"))]
    return training_s * len(rates) / rate.value / sum(1 / each for each in rates) if len(rates) > 1 else None


def grid(entries: Sequence[Entry], found: Sequence[Rung], ladder: Ladder) -> Table:
    """A row for each rung, also for those that did not run; narrow enough for a terminal of 80 columns."""
    by_name = {rung.name: rung for rung in found}
    first = found[0] if found else None
    rate, score = (first.rate.unit, first.score.name.removeprefix("test/")) if first else ("rate", "score")
    heads = ["rung", "train s", rate, "wall s", "gain", "total", score, "MiB"]
    heads += ["source s"] if ladder.source_s else []
    rows = []
    for entry in entries:
        name = entry.cell.swept["rung"]
        row = _row(by_name[name]) if name in by_name else (name, entry.state, *[""] * 6)
        seconds = ladder.source_s.get(name)
        rows.append((*row, f"{seconds:g}" if seconds else "")[: len(heads)])
    return Table("the ladder: one run a rung; what each has gained in training time", tuple(heads), tuple(rows))


def _row(rung: Rung) -> tuple[str, ...]:
    memory = rung.process_bytes if rung.device_bytes is None else rung.device_bytes
    return (
        rung.name,
        digits(rung.training_s),
        f"{rung.rate.value:,.0f}",
        f"{rung.wall_time_s:.1f}",
        f"{rung.gain:.2f}x",
        f"{rung.gain_in_total:.2f}x",
        figure(rung.score.value),
        f"{memory / 2**20:,.0f}",
    )


def notes(entries: Sequence[Entry], found: Sequence[Rung]) -> list[tuple[str, str]]:
    """What the columns mean and hold no room for, and why a rung has no figures."""
    seconds = [(rung.name, f"{rung.compile_s:.1f} s of compiling, in wall s only") for rung in found if rung.compile_s]
    lost = [(entry.cell.swept["rung"], f"{entry.state}: {entry.reason}") for entry in entries if entry.state != "done"]
    peak = f"peak memory {'on the GPU' if any(rung.device_bytes for rung in found) else 'of the process'}"
    about = [("wall s", "the run, without the framework's import"), ("MiB", f"{peak}, up to the end of training")]
    period = period_of(entries)
    slow, worse = _started_slowly(found, period), _learned_less(found)
    return [*_bases(found, period), *about, *seconds, *_gained_over(entries), *slow, *worse, *lost]


def _bases(found: Sequence[Rung], period: str) -> list[tuple[str, str]]:
    """Of what a rate and a gain are, which lie side by side: a rate is without the first epoch where there are more."""
    several = next((rung.rate.unit for rung in found if rung.at_its_rate_s is not None), None)
    rate = f"the median without the first {period}, which starts cold; train s and gain are of the whole training"
    gain = "of one run a rung (n=1), without a spread; repeat the ladder before you believe a few per cent"
    return [*([(several, rate)] if several else []), *([("gain", gain)] if len(found) > 1 else [])]


def _gained_over(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """Gains of more than one rung: what a failed rung changes holds above it, what a skipped one changes does not."""
    below, failed, found = None, list[str](), []
    for entry in entries:
        name = entry.cell.swept["rung"]
        if entry.state == "done":
            if failed and below:
                verb, has = ("change", "have") if len(failed) > 1 else ("changes", "has")
                said = f"over {below}, including what {' and '.join(failed)} {verb}, which {has} no result"
                found.append((f"gain of {name}", said))
            below, failed = name, []
        elif entry.state != "skipped":
            failed.append(name)
    return found


def _learned_less(found: Sequence[Rung]) -> list[tuple[str, str]]:
    """Rungs whose score is worse than the first one's by a tenth: a training that is ruined may be fast."""
    first = found[0].score if found else None
    if first is None:
        return []
    better = 1 if first.direction == "max" else -1  # a score may be negative, as R² is
    worse = [
        f"{rung.name} ({figure(rung.score.value)})"
        for rung in found
        if better * (first.value - rung.score.value) > abs(first.value) / 10
    ]
    said = f"worse than the first rung's {figure(first.value)} by more than a tenth at {', '.join(worse)}"
    return [(first.name.replace("/", " "), f"{said}: it is not the same training there")] if worse else []


def _started_slowly(found: Sequence[Rung], period: str) -> list[tuple[str, str]]:
    """Trainings too short for what their rungs gain: a gain is of a whole training, a rate without the first epoch."""
    start, longer = "the start (first steps, libraries, a capture)", "a longer training shows what they gain"
    if any(rung.at_its_rate_s is None for rung in found):
        return [("train s", f"of one {period}, {start} included; {longer}")]
    slow = [
        f"{rung.name} ({digits(rung.at_its_rate_s)} s at its rate)"
        for rung in found
        if rung.at_its_rate_s is not None and rung.at_its_rate_s < rung.training_s / 2
    ]
    return [("train s", f"{start} is more than half of it at {', '.join(slow)}; {longer}")] if slow else []


def metrics(found: Sequence[Rung]) -> tuple[Metric, ...]:
    """Those of every rung, and the whole gain."""
    each = [metric for rung in found for metric in rung.metrics()]
    return (*each, *([_gain("gain", found[-1].gain_in_total)] if found else []))


def _gain(name: str, value: float) -> Metric:
    """A ratio of two times."""
    return Metric(name, value, "x", "time", "max")


def write_csv(path: Path, found: Sequence[Rung]) -> None:
    """A row for each rung that has a result."""
    rows = [{"name": rung.name} | {_column(rung, one): one.value for one in rung.metrics()} for rung in found]
    names = list(dict.fromkeys(name for row in rows for name in row))
    with csv_file(path) as writer:
        writer.writerow(names)
        writer.writerows([row.get(name) for name in names] for row in rows)


def _column(rung: Rung, metric: Metric) -> str:
    return metric.name.removeprefix(f"{rung.name}/")


def draw(path: Path, found: Sequence[Rung], title: str) -> None:
    """The seconds of training, rung by rung."""
    from pipeline.report import grid_figure

    labels, values = [rung.name for rung in found], [[rung.training_s] for rung in found]
    if found:
        axis = "the whole training, s; one run a rung (n=1), no spread"
        grid_figure.dots(path, labels, {"": values}, axis=axis, rows="rung", legend="", title=title)
