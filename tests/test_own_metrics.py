"""Metrics of a user's own, and what a result says of each class: in a training, in stage=evaluate, and refused."""

from __future__ import annotations

import csv
import io
import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml
from command import done, pipeline, refused, runs, status, without_place
from in_backend import experiment
from PIL import Image
from rich.console import Console
from sklearn import metrics as reference

from pipeline.contracts import Loss
from pipeline.datasets import Data, Split
from pipeline.datasets.loading import load_data
from pipeline.errors import UserError
from pipeline.experiment.training import Training
from pipeline.machine.capability import resolve
from pipeline.metrics.brier import Brier
from pipeline.metrics.classification import cross_entropy
from pipeline.metrics.total import Total
from pipeline.runs.code.code_hash import hash_of
from pipeline.runs.journal import Journal
from pipeline.runs.json_files import read_json
from pipeline.runs.judged_on import asked_for
from pipeline.runs.listing import config_of, flat_config
from pipeline.runs.records import read_metrics
from pipeline.runs.result import Metric, read_result
from pipeline.runs.run import Run
from pipeline.spec import build_as, spec
from pipeline.stages.measuring import Measured, measure, try_loss, try_metrics
from pipeline.tasks import Judge
from pipeline.tasks.language_modelling import LanguageModelling

HERE = Path(__file__).parent
WORDS = ("dataset=digits", "training=quick", "tracking=none")
TORCHMETRICS = "pipeline.metrics.of_torchmetrics.Torchmetrics"
ASKED = "training.metrics=[brier,own_metrics.Recall,torchmetrics.MulticlassAUROC]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's folder."""
    made = tmp_path_factory.mktemp("metrics")
    shutil.copyfile(HERE / "own_metrics.py", made / "own_metrics.py")
    return made


def known(folder: Path) -> dict[str, str]:
    """The variables by which the folder's module is found and allowed."""
    return {"PIPELINE_MODULES": "own_metrics", "PYTHONPATH": str(folder)}


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    return done(folder, *WORDS, ASKED, **known(folder))


def test_a_receipt_has_the_names_of_the_metrics_that_were_asked_for(folder: Path) -> None:
    """Which a class may give itself: the runs to compare have a metric that their configs do not name."""
    run = done(folder, *WORDS, "training.metrics=[brier,own_metrics.Named]", **known(folder))
    assert read_json(run / "receipt.json")["metrics"] == ["brier", "found"]
    assert asked_for(run, flat_config(config_of(run)), "test/found") == {"_target_": "own_metrics.Named"}


def predictions(run: Path) -> tuple[list[str], list[str]]:
    """The actual and the predicted class of each test example, by name."""
    with (run / "artifacts/predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [row["actual"] for row in rows], [row["predicted"] for row in rows]


def test_a_metric_of_the_users_is_in_the_result(trained: Path) -> None:
    result = read_result(trained)
    assert result is not None
    named = {metric.name: metric for metric in result.metrics}
    actual, predicted = predictions(trained)
    recall = reference.recall_score(actual, predicted, labels=["0"], average=None)[0]
    assert named["test/recall"].value == recall
    assert (named["test/recall"].direction, named["test/brier"].direction) == ("max", "min")
    assert 0.5 < named["test/MulticlassAUROC"].value < 1
    shown = [name for name, _ in result.table]
    assert shown[:6] == [f"test {name}" for name in ("loss", "accuracy", "brier", "recall", "MulticlassAUROC")] + [
        "worst class"
    ]
    receipt = json.loads((trained / "receipt.json").read_text())
    assert "torchmetrics" in receipt["versions"]
    code = json.loads((trained / "code.json").read_text())
    assert hash_of(code) == receipt["code_sha256"]
    assert {"own_metrics", "pipeline.metrics.brier", "pipeline.metrics.of_torchmetrics"} <= code.keys()


def test_each_class_is_in_the_result(trained: Path) -> None:
    """And not in the table at the end of the run."""
    result = read_result(trained)
    assert result is not None
    actual, predicted = predictions(trained)
    names = [str(digit) for digit in range(10)]
    wanted = np.array(
        reference.precision_recall_fscore_support(actual, predicted, labels=names, zero_division=0), dtype=float
    )
    (table,) = result.details
    assert (table.columns, result.tables) == (("class", "precision", "recall", "f1", "examples"), ())
    np.testing.assert_allclose(np.array([row[1:] for row in table.rows], float).T, wanted, atol=5.1e-5)
    values = {metric.name: metric.value for metric in result.metrics}
    for name, numbers in zip(("precision", "recall", "f1"), wanted, strict=False):
        assert values[f"test/macro_{name}"] == pytest.approx(numbers.mean())


@pytest.mark.wide
def test_the_metrics_code_counts(trained: Path, folder: Path) -> None:
    """Another metric in the place of the user's is another code, and evaluate says so."""
    evaluate = ("stage=evaluate", f"run={trained.name}", "tracking=none")
    again = done(folder, *evaluate, "training.metrics=[own_metrics.Recall]", **known(folder))
    then, now = (read_result(run) for run in (trained, again))
    assert then is not None
    assert now is not None
    values = [{one.name: one.value for one in result.metrics}["test/recall"] for result in (then, now)]
    assert values[0] == values[1]
    assert dict(now.table)["test recall"].endswith("  the same as when trained")
    assert now.details == then.details
    assert now.notes == ()
    source = folder / "own_metrics.py"
    source.write_text(source.read_text().replace("found.sum()", "found.sum() * 1"))
    edited = pipeline(folder, *evaluate, "training.metrics=[]", **known(folder))
    assert "the code, or a file or variable that it reads, is not what trained it" in edited.stderr
    shutil.copyfile(HERE / "own_metrics.py", source)


def test_evaluate_compares_a_metric_with_the_same_settings_alone(trained: Path, folder: Path) -> None:
    """Also where both come to the same number."""
    asked = "training.metrics=[brier,{_target_: own_metrics.Recall, digit: 1}]"
    again = read_result(done(folder, "stage=evaluate", f"run={trained.name}", asked, "tracking=none", **known(folder)))
    then = read_result(trained)
    assert again is not None
    assert then is not None
    table = dict(again.table)
    assert table["test recall"].endswith(f"  when trained, with other settings: {dict(then.table)['test recall']}")
    assert table["test brier"].endswith("  the same as when trained")
    assert table["test accuracy"].endswith("  the same as when trained")


@pytest.mark.wide
def test_a_metric_that_becomes_nan_loses_nothing(folder: Path) -> None:
    """Which class has no test example is known when all are seen."""
    asked = "training.metrics=[{_target_: own_metrics.Recall, digit: 10},brier]"
    ended = pipeline(folder, *WORDS, asked, **known(folder))
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "failed: test/recall: value() gave nan, not a number"
    run = runs(folder)[-1]
    assert status(run).state == "FAILED"
    result = read_result(run)
    assert result is not None
    assert "test/brier" in {metric.name for metric in result.metrics}
    assert done(folder, "stage=evaluate", f"run={run.name}", "training.metrics=[]", "tracking=none", **known(folder))


TRIED: dict[str, str] = {
    "own_metrics.Text": "training.metrics=text: value() gave a str, not a number",
    "own_metrics.Nothing": "training.metrics=nothing: value() gave None, not a number",
    "own_metrics.Each": "training.metrics=each: value() gave a ndarray of shape (2,), not a number",
    "own_metrics.Broken": "training.metrics=broken: sums() failed (IndexError: index 99 is out of bounds for axis 1 "
    "with size 10)",
    "own_metrics.Writes": "training.metrics=writes: sums() failed (ValueError: output array is read-only)",
    "torchmetrics.MulticlassF1": "training.metrics=MulticlassF1: torchmetrics has no such metric (did you mean "
    "torchmetrics.MulticlassF1Score?)",
}


@pytest.mark.parametrize("asked", TRIED)
def test_a_metric_is_tried_before_the_run(folder: Path, asked: str) -> None:
    said = refused(folder, *WORDS, f"training.metrics=[{asked}]", **known(folder))
    assert without_place(said) == TRIED[asked]
    assert asked not in ("own_metrics.Broken", "own_metrics.Writes") or ", in sums (own_metrics.py, line " in said


@pytest.mark.wide
def test_a_share_of_five_classes_that_is_always_1_is_refused(tmp_path: Path) -> None:
    """In a training and in stage=evaluate; of six classes it says something."""
    rng, asked = np.random.default_rng(0), "training.metrics=[top5_accuracy]"
    for classes in (5, 6):
        x, y = rng.standard_normal((60, 4)).astype(np.float32), np.arange(60) % classes
        np.savez(tmp_path / f"{classes}.npz", x=x, y=y)
    words = ("dataset=npz", "model=linear", "training.steps=2", "training.batch_size=8", "tracking=none")
    said = (
        "training.metrics=top5_accuracy: the data have 5 classes, of which the true one is always among the 5 highest; "
        "leave it out"
    )
    assert refused(tmp_path, *words, "dataset.file=5.npz", asked) == said
    run = done(tmp_path, *words, "dataset.file=5.npz")
    assert refused(tmp_path, "stage=evaluate", f"run={run.name}", asked, "tracking=none") == said
    assert len(runs(tmp_path)) == 1
    six = read_result(done(tmp_path, *words, "dataset.file=6.npz", asked))
    assert six is not None
    assert "test/top5_accuracy" in {metric.name for metric in six.metrics}


class Own(Loss):
    """What it measures and what it trains, each as given."""

    def __init__(self, measured: Callable[[Any, Any], Any], trained: Callable[[Any, Any], Any]) -> None:
        self.measured, self.trained = measured, trained

    def numpy(self, outputs: np.ndarray, targets: np.ndarray) -> float:
        found: float = self.measured(outputs, targets)
        return found

    def torch(self) -> Callable[[Any, Any], Any]:
        return self.trained


def torchs(outputs: Any, targets: Any, reduction: str = "mean") -> Any:
    from torch.nn import functional

    return functional.cross_entropy(outputs, targets, reduction=reduction)


def picked(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Of probabilities those of the true class."""
    if (outputs < 0).any():
        raise ValueError("takes probabilities")
    return outputs[np.arange(len(targets)), targets]


def likely(outputs: Any) -> Any:
    assert (outputs >= 0).all()
    return outputs


def writing(outputs: np.ndarray, targets: np.ndarray) -> float:
    outputs -= outputs.max(axis=1, keepdims=True)
    return cross_entropy(outputs, targets)


LOSSES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any], str | None]] = {
    "right": (cross_entropy, torchs, None),
    "vector": (
        cross_entropy,
        partial(torchs, reduction="none"),
        "torch() gives float32 of shape (64,); give a number, ",
    ),
    "array": (lambda o, y: o[:, 0] + y, torchs, "numpy() gives float64 of shape (64,); give a number, the mean over "),
    "text": (lambda *_: "low", torchs, "numpy() gives <U3 of shape (); give a number, the mean over the examples"),
    "other": (lambda *_: 42.0, torchs, "for the same outputs and targets numpy() gives 42 and torch() 2."),
    "fails": (
        lambda o, y: np.square(o - y).mean(),
        torchs,
        "numpy() fails on random outputs: ValueError: operands could",
    ),
    "writes": (writing, torchs, "numpy() fails on random outputs: ValueError: output array is read-only"),
    "numbers": (cross_entropy, lambda o, y: torchs(o, y / 2), "torch() fails on random outputs: RuntimeError: "),
    "nan": (lambda *_: float("nan"), torchs, None),
    "of probabilities": (
        lambda o, y: -np.log(picked(o, y)).mean(),
        lambda o, y: -likely(o).gather(1, y[:, None]).log().mean(),
        None,
    ),
    "draws": (cross_entropy, lambda o, y: torchs(o + 0.1 * o.new_empty(o.shape).normal_(), y), None),
}


class Sized(Brier):
    """One that notes the sizes of the outputs that it gets."""

    sizes: ClassVar[list[int]] = []

    def sums(self, outputs: np.ndarray, targets: np.ndarray) -> tuple[float, int]:
        self.sizes.append(outputs.size)
        return 0.0, len(targets)


@pytest.mark.parametrize(("vocabulary", "sizes"), [(2**8, [2**20] * 2), (2**12, [2**22] * 2)])
def test_a_metric_is_tried_on_few_sequences(vocabulary: int, sizes: list[int]) -> None:
    """It was on 64 of any length, which took 4 GiB of a large vocabulary, whatever training.evaluation_batch_size."""
    y = np.zeros((200, 1024), np.uint8)
    split = Split(y, y)
    data = Data(split, split, split, LanguageModelling(1024, vocabulary), "")
    Sized.sizes.clear()
    try_metrics((Sized(),), data)
    assert Sized.sizes == sizes


@pytest.mark.parametrize("how", LOSSES)
def test_a_loss_is_tried_on_random_outputs(how: str) -> None:
    """In NumPy, which measures, and on the backend, which trains: they have to be the same number."""
    measured, trained, said = LOSSES[how]
    asked = experiment("torch")
    data = load_data(asked)
    tried = replace(asked, loss=Own(measured, trained))
    resolved = resolve("torch", tried.device, "fp32", ())
    with tried.backend.load().loss_of(tried, resolved) as function:
        if said is None:
            try_loss(tried, data, function)
            return
        with pytest.raises(UserError) as caught:
            try_loss(tried, data, function)
    assert said in str(caught.value) and str(caught.value).startswith("loss=own with dataset=digits: ")


def test_a_loss_that_holds_tensors_is_tried_on_the_runs_device() -> None:
    """On a GPU one with a weight for each class was refused, since its weights were on the CPU."""
    import torch

    class Weighted(torch.nn.Module):
        weights: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weights", torch.ones(10))

        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            assert self.weights.device == outputs.device == targets.device
            return torch.nn.functional.cross_entropy(outputs, targets, weight=self.weights)

    asked = experiment("torch")
    tried = replace(asked, loss=Own(cross_entropy, Weighted()))
    without_memory = SimpleNamespace(kind="cpu", index=0, torch="meta")  # which every torch has
    resolved: Any = SimpleNamespace(place=without_memory, precision="fp32")
    with tried.backend.load().loss_of(tried, resolved) as function, pytest.raises(NotImplementedError, match="copy"):
        function(np.zeros((4, 10), np.float32), np.zeros(4, np.int64))


@pytest.mark.wide
def test_a_softmax_of_margins_is_not_called_probabilities(tmp_path: Path) -> None:
    """By a note, in a training, in stage=evaluate and in stage=predict."""
    said = "of a softmax of the outputs, and loss=hinge trains margins, not probabilities"
    run = done(tmp_path, *WORDS, "loss=hinge", "model=linear", "training.metrics=[brier,macro_f1,calibration_error]")
    again = done(tmp_path, "stage=evaluate", f"run={run.name}", "tracking=none")
    for one in (run, again):
        assert f"test/brier, test/calibration_error: {said}" in notes_of(one)
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    predict = ("stage=predict", f"run={run.name}", "tracking=none")
    assert f"probabilities.csv: {said}" in notes_of(done(tmp_path, *predict, "stage.images=[a.png]"))


@pytest.mark.wide
def test_a_softmax_of_margins_of_rows_is_not_called_probabilities(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(60, 4)).astype(np.float32), y=np.arange(60) % 3)
    words = ("dataset=npz", "dataset.file=rows.npz", "model=linear", "training.steps=2", "training.batch_size=8")
    run = done(tmp_path, *words, "loss=hinge", "tracking=none")
    assert not any("softmax" in note for note in notes_of(run))
    np.save(tmp_path / "new.npy", rng.normal(size=(2, 4)))
    made = done(tmp_path, "stage=predict", f"run={run.name}", "stage.rows=new.npy", "tracking=none")
    said = "predictions.csv: of a softmax of the outputs, and loss=hinge trains margins, not probabilities"
    assert said in notes_of(made)


def notes_of(run: Path) -> tuple[str, ...]:
    result = read_result(run)
    assert result is not None
    return result.notes


def test_what_judges_and_metrics_get_cannot_be_written_to(tmp_path: Path) -> None:
    """Nor the test set through it. A metric of torchmetrics takes that without a warning."""
    metrics = [{"_target_": TORCHMETRICS, "metric": "MulticlassAccuracy"}]
    asked = experiment("torch", training=("default", {"metrics": metrics}))
    data = load_data(asked)
    seen: list[np.ndarray] = []

    class Watching(Brief):
        def add(self, x: np.ndarray, outputs: np.ndarray, y: np.ndarray) -> None:
            seen.extend((x, outputs, y))

    def predict(x: np.ndarray) -> np.ndarray:
        return np.zeros((len(x), 10))

    resolved = resolve("torch", asked.device, "fp32", ())
    terminal = io.StringIO()
    run = Run(Journal.begin(tmp_path, "judged", {}), Console(file=terminal, force_terminal=True, width=80))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = measure(asked, resolved, data, predict, Watching(), lambda *_: None, run)
    assert f"{len(data.test)} of {len(data.test)} examples" in terminal.getvalue()  # a large one takes minutes
    assert found.fault is None
    assert seen
    assert not any(one.flags.writeable for one in seen)
    assert data.test.y.flags.writeable


@pytest.mark.wide
def test_a_cell_of_a_grid_tries_a_metric_before_it_trains(folder: Path) -> None:
    """A cell has a run by then: it keeps the message, for the grid's table and for the next grid."""
    before = set(runs(folder))
    words = ("-m", *WORDS, "model=linear", "training.metrics=[own_metrics.Broken]")
    assert pipeline(folder, *words, **known(folder)).returncode == 1
    (cell,) = (run for run in set(runs(folder)) - before if "linear" in run.name)
    assert (status(cell).state, without_place(str(status(cell).error))) == ("FAILED", TRIED["own_metrics.Broken"])
    assert not list(read_metrics(cell))
    assert (cell / "receipt.json").is_file()


TAKEN: dict[str, str] = {
    "own_metrics.Accuracy": "training.metrics=accuracy: Classification measures another metric of that name; a field "
    "`name` of the class gives yours another",
    "{_target_: pipeline.metrics.of_torchmetrics.Torchmetrics, metric: MulticlassF1Score, called: macro_f1, arguments: "
    "{average: micro}}": "training.metrics=macro_f1: Classification measures another metric of that name; `called` in "
    "its node gives yours another",
}


@pytest.mark.parametrize("asked", TAKEN)
def test_the_judges_number_does_not_stand_for_another_metric(folder: Path, asked: str) -> None:
    assert refused(folder, *WORDS, f"training.metrics=[{asked}]", **known(folder)) == TAKEN[asked]


@spec
class Mine(Brier):
    """Named as `Brief`'s judge names a number."""

    name: str = "mine"


class Brief(Judge):
    """Of a task that does not say what it measures."""

    def add(self, x: np.ndarray, outputs: np.ndarray, y: np.ndarray) -> None: ...

    def metrics(self) -> tuple[Metric, ...]:
        return (Metric("test/mine", 0.5),)


@pytest.mark.parametrize(("name", "names"), [("mine", ["test/mine"]), ("other", ["test/mine", "test/other"])])
def test_a_metric_named_as_the_judges_ends_the_run_as_failed(name: str, names: list[str]) -> None:
    total = Total(Mine(name=name))
    total.add(np.eye(3), np.arange(3))
    found = Measured(Brief(), [total])
    assert [metric.name for metric in found.metrics] == names
    assert found.metrics[0].value == 0.5
    assert found.fault == ("test/mine: the task measures another metric of that name" if name == "mine" else None)


REFUSED: dict[str, str] = {
    "own_metrics.Sideways": "own_metrics.Sideways.direction=up: no such choice; choose from max, min, none",
    "own_metrics.Undirected": "training.metrics._target_=own_metrics.Undirected: has no direction; "
    "pipeline.contracts.Metric says what it is",
    "own_metrics.Recal": "training.metrics._target_=own_metrics.Recal: module own_metrics has no Recal "
    "(did you mean Recall?)",
    "os.path": "training.metrics._target_=os.path: not on the allow-list (pipeline, own_metrics); to allow a "
    "module of yours set PIPELINE_MODULES=<module>[,<module>]",
    "7": "training.metrics: 7: name a metric, as macro_f1 or mine.Recall, or give {_target_: ...}",
    "{_target_: own_metrics.Recall, digit: a}": "training.metrics.digit='a': should be a valid integer",
    "own_metrics.Recall,{_target_: own_metrics.Recall, digit: 1}": "training.metrics=[recall,recall]: one of them is "
    "named twice; a field `name` of the class would tell them apart",
    "{<<: &f1 {_target_: pipeline.metrics.of_torchmetrics.Torchmetrics, metric: F1Score}, arguments: {average: macro}},"
    "{<<: *f1, arguments: {average: weighted}}": "training.metrics=[F1Score,F1Score]: one of them is named twice; "
    "`called` in its node would tell them apart",
}


@pytest.mark.parametrize("asked", REFUSED)
def test_what_is_no_metric_is_refused(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv("PIPELINE_MODULES", "own_metrics")
    monkeypatch.setattr("pipeline.allowed._taken", None)
    with pytest.raises(UserError) as caught:
        build_as(Training, {"metrics": yaml.safe_load(f"[{asked}]")}, "training")
    assert str(caught.value) == REFUSED[asked]


def test_classes_without_an_example_are_noted(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    y = np.arange(60) % 4
    parts = {"train": y[y != 2], "test": y[y < 3]}
    arrays = {f"x_{part}": generator.random((len(labels), 4, 4, 1), np.float32) for part, labels in parts.items()}
    np.savez(tmp_path / "mine.npz", **arrays, **{f"y_{part}": labels for part, labels in parts.items()})  # type: ignore[arg-type]
    words = ("dataset=npz", "dataset.file=mine.npz", "training=quick", "training.batch_size=8", "tracking=none")
    result = read_result(done(tmp_path, *words, "dataset.classes=[ant,bee,cat,dog]"))
    assert result is not None
    assert result.notes == ("no training example of cat", "no test example of dog")
    assert dict(result.table)["worst class"].startswith("cat: precision 0.0000")
