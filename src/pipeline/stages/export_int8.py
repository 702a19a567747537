"""stage=export stage.format=onnx_int8: a program in eight-bit integers, and beside float32 what it gains and costs."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.backends.shared.onnx_int8 import OnnxPasses, Operators, Scheme, listed, quantize, scheme_here
from pipeline.datasets import Data
from pipeline.datasets.split import held_out
from pipeline.errors import RunError, UserError
from pipeline.machine.capability import Resolved
from pipeline.machine.host import cpu_name
from pipeline.machine.others import said_of
from pipeline.report.intervals import lie_apart
from pipeline.report.table import change, digits, figure, size
from pipeline.runs.beside import with_figures
from pipeline.runs.fit import not_finite
from pipeline.runs.result import Metric, Result, Table, count, rate, seconds
from pipeline.runs.run import Run
from pipeline.spec import choice
from pipeline.stages.export_read import read_back, write_array
from pipeline.stages.inference.bench import Bench, Timed, in_turns
from pipeline.stages.inference.stage import Inference, examples
from pipeline.stages.measuring import Measured, batches, input_dtype, measure
from pipeline.tasks import Judge, Task

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

INT8 = "onnx_int8"
LARGEST = "int8/largest_difference"
CALIBRATED = 512  # training examples, or all where there are fewer
FILES = {"float32": "model.onnx", "int8": "model_int8.onnx"}
FORMS = {"float32": "onnx", "int8": INT8}
MICROSECONDS_BELOW_S = 1e-3
# In which the outputs of a batch of another size are the same: a last bit of float32 may move an activation to the
# next of 255 steps, which is as coarse as bfloat16.
ROUNDED_AS = {"float32": "fp32", "int8": "bf16"}


def check_int8(experiment: Experiment) -> None:
    """Refuse, before the run begins, models that were not tried in integers. Raises UserError."""
    task = experiment.data_source.task
    if task.targets is None or task.example_kind not in (None, "numbers"):
        raise UserError(
            f"stage.format={INT8} with dataset={choice(experiment.dataset)}: takes models of images and numbers that "
            f"give classes or numbers, not of {task.example_kind or 'another task'}; stage.format=onnx writes this one "
            "in float32"
        )
    if experiment.precision.name == "fp64":
        raise UserError(f"stage.format={INT8} with precision=fp64: is made of a program in float32; add precision=fp32")


@dataclass(frozen=True)
class Judged:
    """One program on the whole test set: its outputs (N, ...), what the run's judge says of them, and its passes."""

    outputs: np.ndarray
    measured: Measured
    judge: Judge
    bench: Bench
    bytes: int


@dataclass(frozen=True)
class Quantized:
    """Both programs, by their names in FILES, on the same examples. `made_of`: the sha256 of float32's. `others`: the
    part of the cores that other processes had while they were timed."""

    both: dict[str, Judged]
    operators: Operators
    scheme: Scheme
    data: Data
    calibration: dict[str, Any]
    made_of: str
    others: float | None

    @property
    def task(self) -> Task:
        return self.data.task

    @property
    def receipt(self) -> dict[str, Any]:
        """What the receipt has beside the export."""
        return {"held_out": held_out(self.data), "cores_of_others": self.others}

    def about(self, float32: Mapping[str, Any]) -> dict[str, Any]:
        """What the receipt has of the export, where it has `float32` of the program that was quantized."""
        made_of = {name: float32[name] for name in ("computes_in", "largest_difference")}
        operators = {name: dict(getattr(self.operators, name)) for name in ("in_integers", "in_float", "others")}
        return {
            "format": INT8,
            "computes_in": ["int8", *(["float32"] if self.operators.in_float else [])],
            "largest_difference": next(one.value for one in self._differences if one.name == LARGEST),
            "weights": "int8 in 7 bits" if self.scheme.reduced else "int8",
            "activations": self.scheme.activations,
            "calibration": self.calibration,
            "operators": operators,
            "made_of": {**made_of, "sha256": self.made_of},
        }

    @property
    def _differences(self) -> list[Metric]:
        return difference(self.task, self.both["float32"].outputs, self.both["int8"].outputs)

    def result(
        self, run: Run, title: str, bytes_written: Metric, rows: Sequence[tuple[str, str]], notes: Sequence[str]
    ) -> Result:
        """What both are like, side by side, `rows` and `notes` of the export, and the figures of the integers."""
        faults = [f"{name}: {one.fault}" for name, judged in self.both.items() for one in _not_timed(judged)]
        faults += [f"{name}: {judged.measured.fault}" for name, judged in self.both.items() if judged.measured.fault]
        result = Result(
            metrics=(*self._metrics(), bytes_written),
            tables=(self._table(),),
            table=(*self._said(), *rows),
            notes=(*notes, *self._notes()),
            failed="; ".join(faults) or None,
            details=self.both["int8"].measured.details.tables,
        )
        judge = self.both["int8"].judge
        result = with_figures(result, partial(judge.write, run), what="predictions: not written")
        return with_figures(result, partial(judge.draw, run, title))

    def _metrics(self) -> list[Metric]:
        """The integers' own under the names that a run has, float32's behind that name."""
        found = [*self.both["int8"].measured.kept]
        found += [replace(one, name=f"float32/{one.name}") for one in self.both["float32"].measured.metrics]
        found += self._differences
        found += [count(f"{name}/bytes", one.bytes, "bytes") for name, one in self.both.items()]
        for name, judged in self.both.items():
            for one in judged.bench.right:
                found.append(seconds(f"{name}/batch_{one.batch}/latency_s", one.latency_s))
                found.append(rate(f"{name}/batch_{one.batch}/{self.task.unit}_per_s", _rate(one), self.task.unit))
        return found

    def _table(self) -> Table:
        """A row for each metric of the test set, the size of the files, and the latency and the rate of each batch."""
        float32, int8 = self.both["float32"], self.both["int8"]
        pairs = zip(float32.measured.metrics, int8.measured.metrics, strict=True)
        rows = [
            (old.name.replace("test/", "test "), figure(old.value), figure(new.value), change(new.value - old.value))
            for old, new in pairs
        ]
        rows.append(("size", size(float32.bytes), size(int8.bytes), f"x {int8.bytes / float32.bytes:.2f}"))
        timed = [(old, new) for old, new in zip(float32.bench.found, int8.bench.found, strict=True) if _both(old, new)]
        for old, new in timed:
            unit, scale = ("ms", 1e3) if min(old.latency_s, new.latency_s) >= MICROSECONDS_BELOW_S else ("µs", 1e6)
            each = (_latency(old, scale), _latency(new, scale))
            rows.append((f"{unit}, batch of {old.batch}", *each, times_faster(old, new)))
        for old, new in timed:
            rows.append((f"{self.task.unit}/s, batch of {old.batch}", digits(_rate(old)), digits(_rate(new)), ""))
        return Table("the same program in float32 and in int8", ("", "float32", "int8", "change"), tuple(rows))

    def _said(self) -> list[tuple[str, str]]:
        found, of = self.operators, len(self.both["int8"].outputs)
        answers = [
            f"{one.value:,.0f} of {of:,} answers differ" if one.kind == "count" else f"{_word(one)} {figure(one.value)}"
            for one in self._differences
        ]
        largest = float(np.max(np.abs(self.both["float32"].outputs)))
        integers = sum(found.in_integers.values())
        products = f"{integers} of {integers + sum(found.in_float.values())} matrix products and convolutions"
        left = f"; in float: {listed(found.in_float)}" if found.in_float else ""
        others = said_of(self.others)
        return [
            ("outputs", f"{'; '.join(answers)}; of outputs up to {figure(largest)} in float32"),
            ("in integers", f"{products} ({listed(found.in_integers)}){left}"),
            ("other operators", listed(found.others)),
            ("calibrated", f"by {self.calibration['examples']:,} training examples, seed {self.calibration['seed']}"),
            ("read back", f"without this package: all {of:,} test examples were passed through both"),
            ("timed on", f"{cpu_name()}: {Inference().rounds} rounds in turns, with ONNX Runtime's number of threads"),
            *([("timing", f"uncertain: {others}")] if others else []),
        ]

    def _notes(self) -> list[str]:
        bits = "7 bits of int8" if self.scheme.reduced else "int8"
        said = f"weights in {bits}, activations in {self.scheme.activations}: {self.scheme.why}"
        if not self.scheme.reduced and self.scheme.activations == "uint8":
            said += "; on an x86 processor without VNNI this file may give worse outputs: export it there"
        return [said]


def quantized(
    experiment: Experiment, resolved: Resolved, data: Data, run: Run, program: Path, folder: Path
) -> Quantized:
    """Quantize what lies in the folder `program` into `folder`, then pass the whole test set through both, and time
    them. Raises RunError where nothing runs in integers, and for a NaN."""
    given = replace(data, normalisation=None)  # a program takes x before it is normalised
    scheme, rows = scheme_here(), calibration_rows(len(data.train), experiment.seed)
    source, target = program / FILES["float32"], folder / FILES["int8"]
    quantize(source, target, given.scaled(data.train.x[rows], input_dtype(resolved)), scheme)
    passes = {"float32": OnnxPasses(source), "int8": OnnxPasses(target)}
    operators = Operators.of(passes["int8"].operators)
    both, batch = {}, experiment.training.evaluation_batch_size
    with tempfile.TemporaryDirectory() as temporary:
        x, dtype = Path(temporary) / "x.npy", input_dtype(resolved)
        write_array(x, dtype, (len(data.test), *data.task.shapes.x), inputs(given, batch, dtype))
        for name, where in (("float32", program), ("int8", folder)):
            # No limit of time: the test set may be large.
            read = read_back(FORMS[name], where, x, experiment.backend.name, batch, limit_s=None)
            measured, judge = judged(experiment, resolved, given, run, name, read["outputs"])
            bench = Bench(
                passes[name], examples(given, max(Inference().batches), input_dtype(resolved)), Inference().batches
            )
            bench.verify(read["outputs"][: max(Inference().batches)], ROUNDED_AS[name])
            written = sum(path.stat().st_size for path in where.iterdir())
            both[name] = Judged(read["outputs"], measured, judge, bench, written)
    others = in_turns([one.bench for one in both.values()], Inference().rounds, Inference().seconds, run)
    calibration = {"examples": len(rows), "of": "training", "seed": experiment.seed}
    made_of = hashlib.sha256(source.read_bytes()).hexdigest()
    return Quantized(both, operators, scheme, data, calibration, made_of, others)


def calibration_rows(examples: int, seed: int) -> np.ndarray:
    """Which of the training examples show between which values the activations lie, in their order."""
    chance = np.random.default_rng(seed)
    return np.sort(chance.choice(examples, min(CALIBRATED, examples), replace=False))


def inputs(data: Data, batch: int, dtype: str) -> Iterator[np.ndarray]:
    """The test set as a program takes it, batch by batch."""
    for _, stored, _ in batches(data, data.test, batch):
        yield data.scaled(stored, dtype)


def judged(
    experiment: Experiment, resolved: Resolved, data: Data, run: Run, name: str, outputs: np.ndarray
) -> tuple[Measured, Judge]:
    """What the run's own judge says of outputs (N, ...) that another process has computed."""
    judge, left = data.task.judge(experiment.loss), outputs
    if type(judge).ask is not Judge.ask:
        raise RunError(
            f"stage.format={INT8}: the judge of {type(data.task).__name__} asks the model about other inputs than the "
            "test set's, which are not passed through the file; stage.format=onnx writes this model in float32"
        )

    def predict(x: np.ndarray) -> np.ndarray:  # batch by batch, in the order in which they were computed
        nonlocal left
        batch, left = left[: len(x)].astype(np.float64), left[len(x) :]
        return batch

    return measure(experiment, resolved, data, predict, judge, partial(check_numbers, name), run), judge


def check_numbers(name: str, outputs: np.ndarray, first: int) -> None:
    """That a program's outputs (B, ...) are numbers: argmax makes a class of a NaN too. Raises RunError."""
    if wrong := not_finite(outputs):
        raise RunError(
            f"stage.format={INT8}: the program in {name} gives {wrong[1]} for test example {first + wrong[0]}"
        )


def difference(task: Task, float32: np.ndarray, int8: np.ndarray) -> list[Metric]:
    """By how much the outputs (N, ...) of both differ, and of classes how many answers do."""
    apart = int8.astype(np.float64) - float32
    found = [
        Metric(LARGEST, float(np.max(np.abs(apart))), direction="min"),
        Metric("int8/root_mean_squared_difference", float(np.sqrt(np.mean(np.square(apart)))), direction="min"),
    ]
    if task.targets == "classes":
        found.insert(0, count("int8/answers_that_differ", int((float32.argmax(1) != int8.argmax(1)).sum())))
    return found


def times_faster(float32: Timed, int8: Timed) -> str:
    """The latency of the integers as a part of float32's, where the rounds of both lie apart."""
    if not lie_apart(float32.latencies_s, int8.latencies_s):
        return "overlap"
    return f"x {int8.latency_s / float32.latency_s:.2f}"


def _both(float32: Timed, int8: Timed) -> bool:
    return float32.fault is None and int8.fault is None


def _not_timed(judged: Judged) -> list[Timed]:
    return [one for one in judged.bench.found if one.fault]


def _latency(one: Timed, scale: float) -> str:
    """The median of all calls, and the range of the rounds' medians, as `median_and_range` writes it."""
    each = [scale * latency for latency in one.latencies_s]
    return f"{digits(scale * one.latency_s)} ({digits(min(each))} to {digits(max(each))}, n={len(each)})"


def _rate(one: Timed) -> float:
    """Examples a second by the median call."""
    return one.batch / one.latency_s


def _word(one: Metric) -> str:
    return one.name.removeprefix("int8/").replace("_", " ")
