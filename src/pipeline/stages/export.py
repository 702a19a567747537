"""stage=export: a saved run's model in a format that others read, read back without this package and compared."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pipeline.backends.shared.exported import OF_WEIGHTS, Exported
from pipeline.contracts import Stage
from pipeline.contracts.physics import Problem
from pipeline.datasets import Data
from pipeline.datasets.loading import check_saved, load_data
from pipeline.datasets.normalisation import Normalisation
from pipeline.errors import RunError, UserError, bad_choice
from pipeline.machine.capability import Resolved
from pipeline.machine.device import Place
from pipeline.machine.installed import check_installed
from pipeline.machine.precision import SAME_WITHIN
from pipeline.machine.regular_file import as_named
from pipeline.report.table import size
from pipeline.runs import receipt
from pipeline.runs.json_files import cannot_write
from pipeline.runs.result import Metric, Result, count
from pipeline.runs.run import Run
from pipeline.runs.saved import saved_weights
from pipeline.runs.weights import Weights
from pipeline.spec import spec
from pipeline.stages.export_int8 import INT8, LARGEST, check_int8, quantized
from pipeline.stages.export_read import EXAMPLES, read_back
from pipeline.stages.measuring import input_dtype

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

WRITTEN_BY = {  # the formats of each backend
    "torch": ("safetensors", "torch", "torch_export", "onnx", "onnx_int8"),
    "tensorflow": ("safetensors", "keras", "saved_model"),
    "jax": ("safetensors", "keras"),
}
WEIGHTS_ALONE = ("safetensors", "torch")  # the others are programs, which compute outputs
OF_ONNX = ("onnx", "onnxscript", "onnxruntime")
PACKAGES = {"safetensors": ("safetensors",), "onnx": OF_ONNX, "onnx_int8": OF_ONNX}


@spec
class Export(Stage):
    """`format`: safetensors, torch, torch_export, onnx, onnx_int8, keras or saved_model. `path`: the folder to write
    (none: in the run's artifacts).

    What is written computes in float32, or in float64 where the run did; onnx_int8 in eight-bit integers.
    """

    starts_from_run: ClassVar[bool] = True
    by: ClassVar[str] = "export"
    headline: ClassVar[str] = "export/largest_difference"
    otherwise: ClassVar[tuple[str, ...]] = (LARGEST,)  # of integers, which differ by more than rounding

    format: str = "safetensors"
    path: str | None = None

    def check(self, experiment: Experiment) -> None:
        """Refuse a format that the backend does not write, and one whose packages are missing."""
        if isinstance(experiment.dataset, Problem):
            raise UserError("stage=export with a run that solved a problem: it exports models of datasets")
        every = tuple(dict.fromkeys(form for forms in WRITTEN_BY.values() for form in forms))
        if self.format not in every:
            raise bad_choice("stage.format", self.format, every)
        backend = experiment.backend.name
        if self.format not in WRITTEN_BY[backend]:
            others = " or ".join(f"backend={name}" for name, forms in WRITTEN_BY.items() if self.format in forms)
            raise UserError(
                f"stage.format={self.format} with backend={backend}: it writes {', '.join(WRITTEN_BY[backend])}; "
                f"{others} writes {self.format}, if the model has a builder for it"
            )
        if self.format == INT8:
            check_int8(experiment)
        check_installed({f"stage.format={self.format}": PACKAGES.get(self.format, ())})

    def check_source(self, experiment: Experiment, source: Path) -> None:
        """Refuse a path that is taken, maybe by an earlier run of the same block of a study."""
        if self.path is not None and as_named(self.path).exists():
            raise self._taken()

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse a precision that no export computes in."""
        name = experiment.precision.name
        if any(key.partition(".")[0] == "precision" for key in keys) and name not in ("fp32", "fp64"):
            raise UserError(f"precision={name} with stage=export: what is written computes in fp32 or fp64")

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Write, read back, compare. Raises RunError where it cannot be written, read, or gives other outputs."""
        source = Path(str(experiment.settings.run))
        saved, data = saved_weights(source), load_data(experiment)
        notes = check_saved(source, saved, data)
        plain = on_cpu(resolved)
        tried = outputs_of_run(experiment, data, saved, plain)
        folder, int8 = run.artifact(f"export/{self.format}"), None
        try:
            folder.mkdir()
            with self._program(folder) as program:
                wrote = self._written(experiment, data, saved, plain, program, tried.x)
                read = read_back(self._writes, program, tried.x, experiment.backend.name)
                difference = compare(wrote, read, tried.expected, self._writes)
                if self.format == INT8:
                    int8 = quantized(experiment, plain, data, run, program, folder)
        except BaseException:  # also when it is stopped: what has not been compared is not left lying about
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if data.normalisation is not None:
            write_normalisation(folder, data, data.normalisation)
            notes += said_of_rounding(wrote, tried.own, tried.expected)
        if "tokens" in (card := data.task.card()):  # which its numbers stand for
            (folder / "card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
        notes += said_of_axes(experiment, data, self.format)
        folder = self._moved(folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        about = {"format": self.format, "computes_in": list(wrote.dtypes), "largest_difference": difference}
        hashes = {str(path.relative_to(folder)): _sha256(path) for path in files}
        kept = receipt.of_saved(experiment, plain, saved, data.sha256)
        kept["versions"] |= {name: receipt.version_of(name) for name in PACKAGES.get(self.format, ())}
        bytes_written = count("export/bytes", sum(path.stat().st_size for path in files), "bytes")
        rows = _rows(source, folder, files, wrote, difference, len(tried.x), resolved, self.format == INT8)
        if int8 is not None:
            run.journal.write_receipt({**kept, **int8.receipt, "export": {**int8.about(about), "files": hashes}})
            return int8.result(run, f"{source.name} in int8", bytes_written, rows, notes)
        run.journal.write_receipt({**kept, "export": {**about, "files": hashes}})
        return Result(
            metrics=(Metric("export/largest_difference", difference, direction="min"), bytes_written),
            table=tuple(rows),
            notes=notes,
        )

    @property
    def _writes(self) -> str:
        """The format that the backend writes: integers are made of a program in float32."""
        return "onnx" if self.format == INT8 else self.format

    @contextlib.contextmanager
    def _program(self, folder: Path) -> Iterator[Path]:
        """Where the backend writes: into the export, or what is not kept elsewhere."""
        if self._writes == self.format:
            yield folder
            return
        with tempfile.TemporaryDirectory() as other:
            yield Path(other)

    def _written(
        self, experiment: Experiment, data: Data, saved: Weights, plain: Resolved, folder: Path, x: np.ndarray
    ) -> Exported:
        """What the backend writes into the folder."""
        module = importlib.import_module(experiment.backend.module(self.by))
        two = np.resize(x, (2, *x.shape[1:]))  # a single example twice: a batch of one is traced as a fixed size
        written: Exported = module.write(experiment, data, saved, plain, self._writes, folder, two)
        return written

    def _moved(self, folder: Path) -> Path:
        """Where the export lies in the end: in the run, or where `path` wants it, whole or not at all."""
        if self.path is None:
            return folder
        target = as_named(self.path).absolute()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as beside:  # the same disk
                copied(folder, Path(beside) / target.name).rename(target)
        except OSError as error:
            if os.path.lexists(target):  # another export has come first since `check`
                raise self._taken() from None
            refused = target if target.parent.is_dir() else target.parent
            raise cannot_write(refused, error, key="stage.path: ") from error
        shutil.rmtree(folder)
        return target

    def _taken(self) -> UserError:
        return UserError(f"stage.path={self.path}: exists already; name a new folder")


def copied(folder: Path, whole: Path) -> Path:
    """A copy of a folder; `shutil.copytree` keeps the system's error as a text, without the number that says why."""
    for path in (folder, *sorted(folder.rglob("*"))):
        target = whole / path.relative_to(folder)
        target.mkdir() if path.is_dir() else shutil.copyfile(path, target)
    return whole


def on_cpu(resolved: Resolved) -> Resolved:
    """What an export computes with: the CPU, in the plain precision of the run's inputs."""
    precision = "fp64" if resolved.precision == "fp64" else "fp32"
    why = "exported and compared on the CPU"
    return replace(resolved, place=Place("cpu"), precision=precision, device_reason=why, precision_reason=why)


@dataclass(frozen=True)
class Tried:
    """Test examples as a program takes them, the run's `own` outputs for them, and those `expected` of a program, which
    normalises x after it was rounded.
    """

    x: np.ndarray
    own: np.ndarray
    expected: np.ndarray


def outputs_of_run(experiment: Experiment, data: Data, saved: Weights, plain: Resolved) -> Tried:
    """What the first test examples give in the run's own model."""
    stored, dtype = data.test.x[:EXAMPLES], input_dtype(plain)
    x = np.ascontiguousarray(data.scaled(stored, dtype))
    predict = experiment.backend.load().predictor(experiment, data.task.shapes, saved, plain)
    own = expected = predict(data.inputs(stored, dtype))
    if data.normalisation is not None:
        expected = predict(data.normalisation.of_rounded(x))
    return Tried(x, own, expected)


def write_normalisation(folder: Path, data: Data, by: Normalisation) -> None:
    """Say beside an export by what x is normalised, along its last axis, and which of its files do it themselves."""
    names = sorted(path.name for path in folder.iterdir())
    about = {
        "x": "as the dataset has it" if data.scale is None else f"as the dataset has it, divided by {data.scale:g}",
        **by.plain(),
        "take_x": [one for one in names if one not in OF_WEIGHTS],
        "take_x_minus_mean_by_std": [one for one in names if one in OF_WEIGHTS],
    }
    (folder / "normalisation.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def said_of_axes(experiment: Experiment, data: Data, form: str) -> tuple[str, ...]:
    """In which order a torch format takes an image; a net of somebody else's would load the weights all the same."""
    shapes = data.task.shapes
    if experiment.backend.name != "torch" or len(shapes.x) != 3:
        return ()
    said = f"x is (N, {', '.join(map(str, shapes.x))}): rows, columns, channels"
    if form in WEIGHTS_ALONE and experiment.data_model.layout == "channels_last":
        said += (
            "; a dense layer after a flatten takes its inputs in that order, so a net of yours that flattens channels "
            "first loads these weights without an error and computes something else"
        )
    return (said,)


def said_of_rounding(wrote: Exported, own: np.ndarray, expected: np.ndarray) -> tuple[str, ...]:
    """Where a program that is given rounded x, and normalises that, computes something else than the run did."""
    difference = float(np.max(np.abs(own.astype(np.float64) - expected)))
    if not wrote.program or difference <= limit_of(wrote, own):
        return ()
    return (
        f"the run's own outputs differ from the program's by up to {difference:.1e} (of {np.max(np.abs(own)):.1e}): "
        f"the run subtracts the mean of x before it rounds, a program takes x in {', '.join(wrote.dtypes)}; a channel "
        "whose mean is many times its standard deviation loses by that",
    )


def compare(wrote: Exported, read: Mapping[str, np.ndarray], expected: np.ndarray, form: str) -> float:
    """The largest difference of what was read back, outputs and tensors. Raises RunError where it is not rounding."""
    tensors = {name.removeprefix("tensor/"): one for name, one in read.items() if name.startswith("tensor/")}
    if set(tensors) != set(wrote.tensors):
        other = ", ".join(sorted(set(tensors) ^ set(wrote.tensors))[:3])
        raise RunError(f"stage.format={form}: read back with other names of tensors ({other})")
    for name, tensor in wrote.tensors.items():
        if tensors[name].dtype != tensor.dtype or not np.array_equal(tensors[name], tensor, equal_nan=True):
            raise RunError(f"stage.format={form}: {name} read back is not what was written")
    if not wrote.program:
        return 0.0
    limit = limit_of(wrote, expected)
    return max(_difference(read[name], wanted, limit, form) for name, wanted in _wanted(expected).items())


def limit_of(wrote: Exported, outputs: np.ndarray) -> float:
    """The largest difference from `outputs` that rounding explains."""
    return max(SAME_WITHIN.get(dtype, SAME_WITHIN["float32"]) for dtype in wrote.dtypes) * float(
        np.max(np.abs(outputs))
    )


def _wanted(expected: np.ndarray) -> dict[str, np.ndarray]:
    """By the readers' names: a program that was traced may take batches of one size alone."""
    return {"outputs": expected, "alone": expected[:1]}


def _difference(outputs: np.ndarray, expected: np.ndarray, limit: float, form: str) -> float:
    """The largest difference. Raises RunError where it is above `limit`, or no number."""
    if outputs.shape != expected.shape:
        raise RunError(f"stage.format={form}: outputs of shape {outputs.shape} read back, expected {expected.shape}")
    difference = float(np.max(np.abs(outputs.astype(np.float64) - expected)))
    if not difference <= limit:
        raise RunError(
            f"stage.format={form}: its outputs differ by up to {difference:.2e} from the run's, more than rounding "
            f"explains ({limit:.1e}); it does not hold all of what the model does"
        )
    return difference


def _rows(
    source: Path,
    folder: Path,
    files: Sequence[Path],
    wrote: Exported,
    difference: float,
    examples: int,
    resolved: Resolved,
    quantized: bool,
) -> list[tuple[str, str]]:
    """`quantized`: what was written and compared is what the integers are made of."""
    shown = [(str(path.relative_to(folder)), size(path.stat().st_size)) for path in files[:10]]
    computes = ", ".join(wrote.dtypes)
    if resolved.precision not in ("fp32", "fp64"):
        computes += f"; the run's own precision was {resolved.precision}"
    what = f"the outputs of {examples} test examples" if wrote.program else "the tensors"
    rows: list[tuple[str, Any]] = [("run", source.name)]
    rows.append(("made of" if quantized else "computes in" if wrote.program else "holds", computes))
    differ = f"differ by {difference:.1e} at most" if difference else "are the same"
    rows.append(("float32 read back" if quantized else "read back", f"without this package: {what} {differ}"))
    return [*rows, ("folder", str(folder)), *shown]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
