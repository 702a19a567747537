"""One real run of each backend on the digits, as the command leaves it; then what can be done with a saved run."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import shutil
import struct
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import in_backend
import numpy as np
import pytest
from command import DIGITS, TORCH_THEN_WIDE, done, failed, pipeline, refused, script, status
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from rich.console import Console

from pipeline.backends.shared.progress import Watch
from pipeline.datasets.pixels import pixels
from pipeline.errors import RunError, UserError
from pipeline.loaders.batch_plan import Block, Plan
from pipeline.report.figures import by, confusion_matrix, image_sheet
from pipeline.runs import weights
from pipeline.runs.fit import Epoch, Fit, Observation, Start
from pipeline.runs.journal import Journal
from pipeline.runs.json_files import read_json
from pipeline.runs.loss_scale import LossScale
from pipeline.runs.records import read_metrics
from pipeline.runs.result import read_result
from pipeline.runs.run import Run
from pipeline.runs.saved import check_hashes
from pipeline.stages import course
from pipeline.stages.evaluate import _beside
from pipeline.stages.predict_images import read_images
from pipeline.tasks.classification import Classification

BACKENDS = ("torch", "tensorflow", "jax")
TRAINING = 1437 - 180
STEPS = 40  # of an epoch: 39 batches of 32 and one of 9
NAMES = [str(digit) for digit in range(10)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("classifier")


@pytest.fixture(scope="module")
def trained(place: Path) -> dict[str, Path]:
    """The run folder of each backend, torch's with tracking as it ships: a tracker takes longer than a run."""
    tracking = {"torch": "tracking.wait=600", "tensorflow": "tracking=none", "jax": "tracking=none"}
    return {
        name: done(place, *DIGITS, f"backend={name}", "device.placement_log=true", tracking[name]) for name in BACKENDS
    }


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.parametrize("backend", BACKENDS)
def test_artifacts(trained: dict[str, Path], backend: str) -> None:
    run = trained[backend]
    made = {str(path.relative_to(run / "artifacts")) for path in (run / "artifacts").rglob("*") if path.is_file()}
    described = "model/model.txt" if backend == "torch" else "model/model.json"
    figures = {"figures/training_curves.png", "figures/confusion_matrix.png", "figures/test_images.png"}
    assert made == {"model/weights.npz", "model/card.json", described, "placement.txt", "predictions.csv", *figures}
    assert read(run / "artifacts/model/card.json") == {
        "task": "classification",
        "x": [8, 8, 1],
        "outputs": [10],
        "classes": NAMES,
        "scale": 16.0,
    }
    for name in figures:
        with Image.open(run / "artifacts" / name) as figure:
            figure.load()
            assert figure.format == "PNG"
            assert 400 <= figure.width <= 4000
            assert 300 <= figure.height <= 4000
            grey = np.asarray(figure.convert("L"))
            assert grey.std() > 5  # something is drawn


def test_description_of_the_model(trained: dict[str, Path]) -> None:
    net = (trained["torch"] / "artifacts/model/model.txt").read_text()
    assert "Linear(in_features=64, out_features=128, bias=True)" in net
    for backend in ("tensorflow", "jax"):
        layers = read(trained[backend] / "artifacts/model/model.json")["config"]["layers"]
        dense = [layer["config"] for layer in layers if layer["class_name"] == "Dense"]
        assert [layer["units"] for layer in dense] == [128, 10]
        assert [layer["dtype"]["config"]["name"] for layer in dense] == ["float32", "float32"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_load_without_the_framework(trained: dict[str, Path], backend: str) -> None:
    with np.load(trained[backend] / "artifacts/model/weights.npz", allow_pickle=False) as stored:
        shapes = {name: stored[name].shape for name in stored.files}
        assert {stored[name].dtype for name in stored.files} == {np.dtype("float32")}
    assert list(shapes.values()) == [(64, 128), (128,), (128, 10), (10,)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_journal(trained: dict[str, Path], backend: str) -> None:
    records = list(read_metrics(trained[backend]))
    steps = [record.step for record in records if "train/loss" in record.metrics]
    assert steps == [10, 20, 30, 40, 50, 60, 70, 80]
    epochs = [record for record in records if "epoch/number" in record.metrics]
    assert [(record.step, record.metrics["epoch/number"]) for record in epochs] == [(STEPS, 1.0), (2 * STEPS, 2.0)]
    assert epochs[1].metrics["epoch/train_loss"] < epochs[0].metrics["epoch/train_loss"]
    for number, epoch in enumerate(epochs):  # nearly: the last of an epoch's 40 batches has 9 images
        losses = [r.metrics["train/loss"] for r in records if "train/loss" in r.metrics][4 * number : 4 * number + 4]
        assert epoch.metrics["epoch/train_loss"] == pytest.approx(np.mean(losses), rel=0.03)
    assert all({"validation/loss", "validation/accuracy", "epoch/images_per_s"} <= set(e.metrics) for e in epochs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_receipt_is_complete(trained: dict[str, Path], backend: str) -> None:
    receipt = read(trained[backend] / "receipt.json")
    assert (receipt["seed"], receipt["backend"], receipt["parameters"]) == (0, backend, 9610)
    hashes = ("config_sha256", "code_sha256", "data_sha256", "weights_sha256")
    assert all(len(receipt[name]) == 64 and int(receipt[name], 16) for name in hashes)
    assert receipt["git"]["pipeline"].keys() == {"commit", "dirty"}
    assert (receipt["device"]["requested"], receipt["device"]["effective"]) == ("auto", "cpu")
    assert receipt["device"]["as_requested"] is True
    assert receipt["device"]["reason"] == "auto: no NVIDIA GPU found"
    assert receipt["device"]["hardware"]["name"]
    precision = receipt["precision"]
    assert (precision["requested"], precision["effective"], precision["as_requested"]) == ("fp32", "fp32", True)
    assert precision["observed"]["matrix_products"] == {"float32": 5}  # two forward, three backward
    assert len(precision["observed"]["devices"]) == 1
    packages = {"torch": "pytorch-lightning", "tensorflow": "tensorflow", "jax": "jax"}
    assert {"python", "numpy", "hydra-core", "mlflow", packages[backend]} <= receipt["versions"].keys()
    assert "not installed" not in receipt["versions"].values()
    assert 50e6 < receipt["peak_memory"]["process_bytes"] < 100e9
    assert receipt["wall_time_s"] > receipt["training_s"] > 0
    # a block of steps is one call on TensorFlow and JAX: the end of its first step cannot be measured
    marks = [name for name in receipt if name.startswith("first_")]
    assert marks == ["first_step_s" if backend == "torch" else "first_block_s"]
    assert receipt["wall_time_s"] > receipt[marks[0]] > 0
    assert ("compile_s" in receipt) == (backend != "torch")
    compiling = receipt.get("compile_s", 0.0)
    assert receipt["wall_time_s"] > receipt["training_s"] + compiling  # which is not training
    assert backend == "torch" or compiling > 0
    assert receipt["task"] == {"name": "classification", "unit": "images", "units": 1, "score": "accuracy"}
    rate = receipt["training_rate"]
    assert (rate["unit"], rate["n"]) == ("images/s", 1)
    assert rate["min"] == rate["median"] == rate["max"] > 0


def test_each_backend_has_its_config_and_code_and_all_have_one_data_hash(trained: dict[str, Path]) -> None:
    receipts = [read(run / "receipt.json") for run in trained.values()]
    assert len({receipt["data_sha256"] for receipt in receipts}) == 1
    assert len({receipt["code_sha256"] for receipt in receipts}) == len(BACKENDS)
    assert len({receipt["config_sha256"] for receipt in receipts}) == len(BACKENDS)


def test_backends_agree(trained: dict[str, Path]) -> None:
    results = [read(run / "result.json")["scalars"] for run in trained.values()]
    means = {f"test/macro_{name}" for name in ("precision", "recall", "f1")}
    accuracy = {f"test/accuracy{end}" for end in ("", "_low", "_high")}
    assert all(result.keys() == {"test/loss", "images_per_s", "peak_memory"} | accuracy | means for result in results)
    assert np.ptp([result["test/loss"] for result in results]) < 1e-3
    assert all(result["test/accuracy"] > 0.7 for result in results)


PLACED = {
    "torch": ("mm", "cpu", {("_fused_adam_", "float32"), ("nll_loss_forward", "float32")}),
    "tensorflow": (
        "MatMul",
        "/job:localhost/replica:0/task:0/device:CPU:0",
        {
            ("Placeholder", "resource"),
            ("While", "int32"),
            ("GatherV2", "float32"),
            ("GatherV2", "int32"),
            ("ReadVariableOp", "float32"),
            ("AssignVariableOp", "float32"),
            ("Cast", "float64"),
            ("Equal", "bool"),
        },
    ),
    "jax": ("dot_general", "cpu:0", {("gather", "float32"), ("gather", "int32"), ("eq", "bool"), ("while", "int32")}),
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_placement_log(trained: dict[str, Path], backend: str) -> None:
    product, device, others = PLACED[backend]
    lines = (trained[backend] / "artifacts/placement.txt").read_text().splitlines()
    assert lines[0].startswith("# ")
    assert lines[1].split() == ["operation", "device", "dtype", "count"]
    rows = [line.split() for line in lines[2:]]
    assert all(len(row) == 4 and row[1] == device and int(row[3]) > 0 for row in rows)
    products = [row for row in rows if product in row[0] and row[2] == "float32"]
    assert sum(int(row[3]) for row in products) >= 5
    assert others <= {(row[0], row[2]) for row in rows}


def test_mlflow_has_the_run(trained: dict[str, Path], place: Path) -> None:
    from mlflow import MlflowClient

    client, folder = MlflowClient(f"sqlite:///{place}/mlflow.db"), trained["torch"]
    run = client.get_run(read(folder / "mlflow.json")["run_id"])
    assert (run.info.status, run.info.run_name) == ("FINISHED", folder.name)
    wanted = {"training.epochs": "2", "optimizer.learning_rate": "0.001", "seed": "0", "model.units": "[128]"}
    assert wanted.items() <= run.data.params.items()
    assert run.data.tags["receipt.device.effective"] == "cpu"
    assert run.data.tags["receipt.precision.observed.matrix_products.float32"] == "5"
    scalars = read(folder / "result.json")["scalars"]
    assert {name: run.data.metrics[f"result/{name}"] for name in scalars} == scalars
    for name in ("train/loss", "validation/accuracy"):
        logged = [(r.step, r.metrics[name]) for r in read_metrics(folder) if name in r.metrics]
        assert [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)] == logged
    names = {
        item.path for folder in ("", "figures", "model") for item in client.list_artifacts(run.info.run_id, folder)
    }
    assert {
        "config.yaml",
        "receipt.json",
        "figures/confusion_matrix.png",
        "model/weights.npz",
        "placement.txt",
    } <= names


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_loss_of_the_test_set_is_that_of_the_experiment(trained: dict[str, Path], backend: str, place: Path) -> None:
    """Cross-entropy by default, to the bit."""
    wanted = ("training.metrics=[cross_entropy]", "tracking=none")
    again = done(place, "stage=evaluate", f"run={trained[backend].name}", *wanted)
    then, now = (read(run / "result.json")["scalars"] for run in (trained[backend], again))
    assert now["test/cross_entropy"] == now["test/loss"] == then["test/loss"]


def test_another_loss_is_measured_too(tmp_path: Path) -> None:
    wanted = ("training.metrics=[cross_entropy,brier]", "training.epochs=1", "tracking=none")
    result = read(done(tmp_path, *DIGITS[:2], "loss=mse", *wanted) / "result.json")["scalars"]
    assert result["test/loss"] == pytest.approx(result["test/brier"] / 10)
    assert result["test/cross_entropy"] > 5 * result["test/loss"]


@pytest.mark.parametrize("held_out", ["", "dataset.validation=0"])
def test_a_run_that_blows_up_in_its_last_step_has_failed(held_out: str, tmp_path: Path) -> None:
    """The loss of the only step is that of the initial weights; only the weights that it leaves are unusable."""
    size = TRAINING if not held_out else 1437
    words = ["model=mlp", f"model.units={[32] * 8}", "dataset=digits", "training.epochs=1"]
    words += ["optimizer=sgd", "optimizer.learning_rate=1000", "optimizer.weight_decay=1000"]  # a factor of 1e6 a layer
    words += [f"training.batch_size={size}", "tracking=none", *held_out.split()]
    result = pipeline(tmp_path, *words)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    what = r"an output for test example \d+" if held_out else "the validation loss"
    last = rf"error: {what} became \S+ at step 1 \(epoch 1\); try a smaller optimizer.learning_rate"
    assert re.fullmatch(last, result.stderr.splitlines()[-1])
    (run,) = (tmp_path / "runs").iterdir()
    assert status(run).state == "FAILED"
    assert not (run / "result.json").exists()


def test_an_epochs_figures_are_means_over_its_images(tmp_path: Path) -> None:
    """Blocks of unlike batches: 20 steps of 32 images, one of 9. The journal's own records are means over steps."""
    run = Run(Journal.begin(tmp_path, "watched", {}), Console(file=io.StringIO()))
    wanted = in_backend.experiment("torch", training=("default", {"epochs": 1, "log_every_n_steps": 7}))
    plan = Plan.of(wanted, 649)
    watch = Watch(wanted, run, Classification((8, 8, 1), tuple(NAMES)), plan)
    generator = np.random.default_rng(0)
    losses, correct = generator.uniform(0.1, 3.0, 21), generator.integers(0, 10, 21).astype(float)
    sizes = np.array([32] * 20 + [9])
    watch.begin_epoch()
    for start, end in ((0, 8), (8, 20), (20, 21)):
        watch.block(Block(plan, 0, start, end - start), losses[start:end], correct[start:end])
    watch.pause()
    watch.end_epoch()
    (epoch,) = watch.epochs
    assert (epoch.units, epoch.steps) == (sizes.sum(), 21) == (649, 21)
    assert epoch.train_loss == pytest.approx(np.average(losses, weights=sizes), rel=1e-12)
    assert epoch.train_score == pytest.approx(correct.sum() / 649, rel=1e-12)
    records = [(record.step, record.metrics) for record in read_metrics(run.folder)]
    steps = {step: metrics for step, metrics in records if "train/loss" in metrics}
    assert list(steps) == [7, 14, 21]
    for end in steps:
        part = slice(end - 7, end)
        assert steps[end]["train/loss"] == pytest.approx(losses[part].mean(), rel=1e-12)
        assert steps[end]["train/accuracy"] == pytest.approx((correct / sizes)[part].mean(), rel=1e-12)
    (figures,) = [metrics for _, metrics in records if "epoch/train_loss" in metrics]
    both = (figures["epoch/train_loss"], figures["epoch/train_accuracy"])
    assert both == (epoch.train_loss, epoch.train_score)
    run.journal.finish("FINISHED")


@pytest.mark.parametrize("accumulate", [1, 3])
def test_where_blocks_are_cut_changes_no_bit_of_what_is_written(tmp_path: Path, accumulate: int) -> None:
    """A stop ends a block early; the run that goes on has other blocks than one that nobody stopped."""
    generator = np.random.default_rng(0)
    losses, scores = generator.uniform(0.1, 3.0, 21), generator.uniform(0.0, 10.0, 21)
    found = [watched(tmp_path, losses, scores, cuts, accumulate) for cuts in ((20,), (1, 8, 9, 20), range(1, 21))]
    assert found[0] == found[1] == found[2]
    assert found[0]


def watched(
    tmp_path: Path, losses: np.ndarray, scores: np.ndarray, cuts: Iterable[int], accumulate: int
) -> list[dict[str, float]]:
    """What the journal has of an epoch whose blocks end at `cuts`, but for its times."""
    run = Run(Journal.begin(tmp_path, "watched", {}), Console(file=io.StringIO()))
    settings = {"epochs": 1, "log_every_n_steps": 2, "accumulate": accumulate}
    wanted = in_backend.experiment("torch", training=("default", settings))
    plan = Plan.of(wanted, 649)
    watch = Watch(wanted, run, Classification((8, 8, 1), tuple(NAMES)), plan)
    watch.begin_epoch()
    for start, end in pairwise((0, *cuts, 21)):
        watch.block(Block(plan, 0, start, end - start), losses[start:end], scores[start:end])
    watch.pause()
    watch.end_epoch()
    run.journal.finish("FINISHED")
    timed = ("_s", "_seconds")
    records = [record.metrics for record in read_metrics(run.folder)]
    return [{name: value for name, value in one.items() if not name.endswith(timed)} for one in records]


def test_weights_that_are_no_numbers_are_not_saved() -> None:
    epoch = Epoch(number=2, seconds=1.0, steps=7, units=100, train_loss=1.0, train_score=0.5)
    broken = {"1.kernel": np.ones((2, 2)), "1.mask": np.array([-np.inf]), "4.bias": np.array([0, np.nan])}
    fit = Fit(weights=broken, epochs=(epoch, epoch), observed=Observation(how=""), parameters=5, peak_memory={})
    with pytest.raises(RunError, match=r"^weight 4\.bias became nan at step 14 \(epoch 2\); "):
        course.check_weights(in_backend.experiment("torch"), fit)
    course.check_weights(in_backend.experiment("torch"), replace(fit, weights={"1.mask": np.array([-np.inf])}))


def test_weights_count_as_left_alone_by_the_updates_that_made_them() -> None:
    """Of the best, after one step, behind projections that start as zeros, it was said that six had not changed them;
    one behind which overflow had skipped all steps but one had the same."""
    epoch = Epoch(number=1, seconds=1.0, steps=6, units=100, train_loss=1.0)
    same = {"0.kernel": np.ones((2, 2))}
    start = Start(digests=weights.digests(same, same))
    fit = Fit(same, (epoch,), Observation(how=""), parameters=4, peak_memory={}, start=start)
    skipping = LossScale(2.0**16)
    skipping.skipped_steps = 5
    assert replace(fit, loss_scale=skipping).unchanged == []
    assert replace(fit, kept={"weights": "best", "step": 1}).unchanged == []
    for one, said in (
        (replace(fit, kept={"weights": "last", "step": 6}), "in 6 steps: "),
        (replace(fit, kept={"weights": "best", "step": 3}), "in 3 steps: "),
    ):
        assert one.unchanged == ["0.kernel"]
        assert said in str(
            course.said_of_unchanged(in_backend.experiment("torch"), one, {"unchanged_weights": one.unchanged})
        )


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_an_average_that_stayed_is_not_taken_for_weights_that_did(tmp_path: Path, backend: str) -> None:
    """It was said that the training had not changed the weights, of which it was the average alone."""
    words = ("dataset=digits", "model=linear", "training.epochs=1", f"backend={backend}", "tracking=none")
    run = done(tmp_path, *words, "training.ema=0.9999999999")
    receipt, notes = read_json(run / "receipt.json"), read_json(run / "result.json")["notes"]
    (kernel,) = receipt["unchanged_averages"]  # the bias starts as 0, to which any number can be added
    assert "unchanged_weights" not in receipt
    said = (
        f"training.ema=0.9999999999: 40 steps have changed the weights, but not the average of {kernel}, which is "
        "judged and saved: a step moves it by 1e-10 of the difference, too little for its dtype; use a smaller "
        "training.ema"
    )
    assert [one for one in notes if "changed" in one] == [said]


# stage=evaluate


@pytest.mark.parametrize("backend", BACKENDS)
def test_evaluate_gives_the_test_figures_again(trained: dict[str, Path], place: Path, backend: str) -> None:
    again = done(place, "stage=evaluate", f"run={trained[backend].name}", "tracking=none")
    then, now = (read(run / "result.json")["scalars"] for run in (trained[backend], again))
    del then["images_per_s"], then["peak_memory"]
    assert now == then
    receipt = read(again / "receipt.json")
    assert receipt["source_run"] == trained[backend].name
    assert receipt["held_out"] == read(trained[backend] / "receipt.json")["held_out"]
    assert receipt["weights_sha256"] == read(trained[backend] / "receipt.json")["weights_sha256"]
    assert set(receipt["precision"]["observed"]["matrix_products"]) == {"float32"}
    assert receipt["precision"]["as_requested"] is True
    assert status(again).name == f"evaluate-mlp-digits-{backend}-fp32"


@pytest.mark.parametrize("backend", BACKENDS)
def test_evaluate_says_in_which_dtype_the_products_ran(trained: dict[str, Path], place: Path, backend: str) -> None:
    """Of a pass by itself: on a processor XLA has no products of bfloat16, and the table says so."""
    words = ("precision=bf16", "device=cpu", "tracking=none")
    again = done(place, "stage=evaluate", f"run={trained[backend].name}", *words)
    observed = read(again / "receipt.json")["precision"]["observed"]
    assert set(observed["matrix_products"]) == {"bfloat16"}
    assert observed["how"].endswith(", compiled as one program for the one device") == (backend == "jax")
    said = dict(read(again / "result.json")["table"])["precision"]
    compiled = {"jax": " (compiled to float32)"}.get(backend, "")
    assert said == f"bf16; matmuls in bfloat16{compiled}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("torch", "tensorflow"),
        pytest.param("tensorflow", "jax", marks=pytest.mark.wide),
        pytest.param("jax", "torch", marks=pytest.mark.wide),
    ],
)
def test_evaluate_on_another_backend(trained: dict[str, Path], place: Path, one: str, other: str) -> None:
    wanted = ("training.metrics=[macro_f1]", "training.evaluation_batch_size=50")
    again = done(place, "stage=evaluate", f"run={trained[one].name[:-1]}", f"backend={other}", "tracking=none", *wanted)
    then, now = (read(run / "result.json")["scalars"] for run in (trained[one], again))
    assert now["test/accuracy"] == then["test/accuracy"]
    assert now["test/loss"] == pytest.approx(then["test/loss"], abs=1e-6)
    assert 0 < now["test/macro_f1"] <= 1
    assert read(again / "receipt.json")["backend"] == other


@pytest.mark.parametrize(
    "change", ["model=cnn", "seed=3", "model.units=[64]", "training.epochs=5", "optimizer=sgd", "loader=threads"]
)
def test_what_a_saved_run_has_fixed_is_refused(trained: dict[str, Path], place: Path, change: str) -> None:
    run = trained["torch"].name
    said = refused(place, "stage=evaluate", f"run={run}", change)
    assert said.startswith(f"{change} with stage=evaluate: run {run} was made with {change.partition('=')[0]}=")
    assert "what can be changed is backend, device, precision, " in said


def test_a_placement_log_without_a_training_step_is_refused(trained: dict[str, Path], place: Path) -> None:
    said = refused(place, "stage=evaluate", f"run={trained['torch'].name}", "device.placement_log=true")
    assert said == "device.placement_log=true with stage=evaluate: is for training steps, and none runs"
    done(place, "stage=evaluate", f"run={trained['torch'].name}", "device.placement_log=false", "tracking=none")


# Saved runs that are damaged, foreign or hostile


class Payload:
    """Unpickled, it makes a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return (Path.touch, (self.trace,))


def missing(file: Path, _: Path) -> None:
    file.unlink()


def truncated(file: Path, _: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3000])


def flipped(file: Path, _: Path) -> None:
    content = bytearray(file.read_bytes())
    content[5000] ^= 1
    file.write_bytes(content)


def pickled_array(file: Path, trace: Path) -> None:
    objects = np.empty(1, object)
    objects[0] = Payload(trace)
    np.savez(file, kernel=objects)


def pickled_file(file: Path, trace: Path) -> None:
    import pickle

    file.write_bytes(pickle.dumps(Payload(trace)))


def other_values(file: Path, _: Path) -> None:
    kept = arrays(file)
    next(iter(kept.values()))[0, 0] += 1e-6  # too little to change an accuracy
    weights.save(file, kept)


def all_nan(file: Path, _: Path) -> None:
    weights.save(file, {name: np.full_like(array, np.nan) for name, array in arrays(file).items()})


def other_shape(file: Path, _: Path) -> None:
    weights.save(file, {name: array[..., :5] for name, array in arrays(file).items()})
    sealed(file)


def other_names(file: Path, _: Path) -> None:
    np.savez(file, kernel=np.zeros((64, 10)), bias=np.zeros(10))
    sealed(file)


def bomb(file: Path, _: Path) -> None:
    """64 MB of zeros in 64 kB, damaged at their end: whoever unpacks them finds the damage."""
    np.savez_compressed(file, kernel=np.zeros(1 << 26, np.uint8))
    content = bytearray(file.read_bytes())
    content[60_000] ^= 1
    file.write_bytes(content)


def overlapping(file: Path, _: Path) -> None:
    """Two entries of an archive's list that share their bytes."""
    content = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        start, count = archive.start_dir, len(archive.infolist())
    entries = content[start:-22]
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 2 * count, 2 * count, 2 * len(entries), start, 0)
    file.write_bytes(content[:start] + entries * 2 + end)


def arrays(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as stored:
        return {name: stored[name] for name in stored.files}


def sealed(file: Path) -> None:
    """The run's receipt as it would be, had the run saved the weights that are in the file now."""
    receipt = file.parents[2] / "receipt.json"
    receipt.write_text(json.dumps({**read(receipt), "weights_sha256": weights.digest(weights.load(file))}))


def torch_checkpoint(file: Path, _: Path) -> None:
    file.write_bytes(b"PK\x03\x04" + bytes(200))


DAMAGE: dict[Callable[[Path, Path], None], str] = {
    truncated: "weights.npz: damaged (",
    flipped: "weights.npz: damaged (BadZipFile: Bad CRC-32",
    pickled_array: "weights.npz: not a readable set of weights (Object arrays cannot be loaded when allow_pickle=False",
    pickled_file: "weights.npz: damaged (BadZipFile: File is not a zip file",
    bomb: "weights.npz: not a readable set of weights (it unpacks to 67,108,992 bytes from ",
    overlapping: "weights.npz: not a readable set of weights (it unpacks to ",
    other_values: ": artifacts/model/weights.npz now differs from what it saved (another sha256)",
    all_nan: ": artifacts/model/weights.npz now differs from what it saved (another sha256)",
    torch_checkpoint: "weights.npz: damaged (",
    other_shape: "the saved run: weights of another model: 1.kernel has shape (64, 5); this model has (64, 128)",
    other_names: "the saved run: weights of another model: it has kernel (64, 10), bias (10,); this model has ",
}


@pytest.fixture
def copied(trained: dict[str, Path], tmp_path: Path) -> Path:
    """A saved run in its own place, to be damaged."""
    run = tmp_path / "runs" / trained["torch"].name
    shutil.copytree(trained["torch"], run)
    return run


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_weights_that_are_not_the_runs(copied: Path, tmp_path: Path, damage: Callable[[Path, Path], None]) -> None:
    trace = tmp_path / "code was executed"
    damage(copied / "artifacts/model/weights.npz", trace)
    assert DAMAGE[damage] in failed(tmp_path, "stage=evaluate", f"run={copied.name}")
    assert not trace.exists()


def test_a_run_without_a_model_is_refused_before_a_run_begins(copied: Path, tmp_path: Path) -> None:
    missing(copied / "artifacts/model/weights.npz", tmp_path)
    said = refused(tmp_path, "stage=evaluate", f"run={copied.name}")
    assert said.startswith(f"run={copied.name}: has no artifacts/model/weights.npz; in a grid, a search or a stage ")
    status = read(copied / "status.json") | {"state": "FAILED", "error": "out of memory"}
    (copied / "status.json").write_text(json.dumps(status))
    said = refused(tmp_path, "stage=predict", f"run={copied.name}")
    assert said == f"run={copied.name}: has no artifacts/model/weights.npz; it is FAILED: out of memory"


@pytest.mark.parametrize("stage", ["evaluate", "predict"])
def test_weights_that_give_no_numbers(
    copied: Path, pictures: tuple[Path, np.ndarray], tmp_path: Path, stage: str
) -> None:
    """The argmax of a NaN is a class too: a tenth of the images would count as correct."""
    file = copied / "artifacts/model/weights.npz"
    all_nan(file, tmp_path)
    sealed(file)
    words = [f"stage={stage}", "run=latest", "tracking=none"]
    result = pipeline(tmp_path, *words, *([f"stage.images=[{pictures[0] / 'grey.png'}]"] if stage == "predict" else []))
    assert result.returncode == 1, result.stderr
    what = "test example 0" if stage == "evaluate" else "image 0"
    wanted = f"error: run={copied.name}: the outputs for {what} are nan at precision=fp32; the run diverged: train it"
    assert result.stderr.splitlines()[-1].startswith(wanted)
    assert [status(run).state for run in (tmp_path / "runs").iterdir() if run != copied] == ["FAILED"]


def test_predict_takes_no_weights_but_the_runs(copied: Path, pictures: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    other_values(copied / "artifacts/model/weights.npz", tmp_path)
    said = failed(tmp_path, "stage=predict", "run=latest", f"stage.images=[{pictures[0] / 'grey.png'}]")
    assert said == f"run={copied.name}: artifacts/model/weights.npz now differs from what it saved (another sha256)"


def test_predict_takes_no_class_names_but_the_runs(
    copied: Path, pictures: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    card = copied / "artifacts/model/card.json"
    card.write_text(json.dumps({**read(card), "classes": NAMES[::-1]}))
    words = ("stage=predict", "run=latest", f"stage.images=[{pictures[0] / 'grey.png'}]")
    assert failed(tmp_path, *words) == (
        f"run={copied.name}: artifacts/model/card.json now differs from what it saved (another sha256)"
    )
    receipt = copied / "receipt.json"
    receipt.write_text(json.dumps({key: value for key, value in read(receipt).items() if key != "card_sha256"}))
    result = pipeline(tmp_path, *words, "tracking=none")
    assert result.returncode == 0, result.stderr
    assert (
        f"{copied.name}: its receipt has no card_sha256: not verified that these are its class names" in result.stderr
    )


def test_what_a_receipt_cannot_vouch_for_is_said(copied: Path, tmp_path: Path) -> None:
    receipt = read(copied / "receipt.json")
    kept = {name: value for name, value in receipt.items() if name not in ("weights_sha256", "data_sha256")}
    (copied / "receipt.json").write_text(json.dumps(kept))
    config = copied / "config.yaml"
    config.write_text(config.read_text().replace("activation: relu", "activation: tanh"))
    result = pipeline(tmp_path, "stage=evaluate", "run=latest", "tracking=none")
    assert result.returncode == 0, result.stderr
    for part in ("weights", "data"):
        assert (
            f"{copied.name}: its receipt has no {part}_sha256: not verified that these are its {part}" in result.stderr
        )
    assert f"{copied.name}: config.yaml is not what its receipt names (another config_sha256): " in result.stderr
    (copied / "receipt.json").write_text("{")
    assert check_hashes(copied, {"weights": "1", "data": "2"}) == (
        f"run={copied.name}: receipt.json is missing or damaged: not verified: weights, data",
    )
    (copied / "receipt.json").write_text(json.dumps(receipt))
    config.write_text(config.read_text().replace("activation: tanh", "activation: relu"))
    found = {"weights": receipt["weights_sha256"], "data": receipt["data_sha256"]}
    assert check_hashes(copied, found) == ()
    (copied / "receipt.json").write_text(json.dumps(receipt | {"code_sha256": "of an edited model"}))
    (said,) = check_hashes(copied, found)
    assert said.startswith(f"run={copied.name}: the code, or a file or variable that it reads, is not what trained it ")
    (copied / "receipt.json").write_text(json.dumps(receipt | {"config_sha256": "older", "code_sha256": "older"}))
    of_config, of_code = check_hashes(copied, found)  # as of a run from before an update: both have changed
    assert of_config.endswith("somebody changed it, or settings have been added to the package since")
    assert of_code == said


def test_config_of_a_saved_run_names_specs_only(copied: Path, tmp_path: Path) -> None:
    config = copied / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("pipeline.models.mlp.Mlp", "os.system"))
    said = refused(tmp_path, "stage=evaluate", "run=latest")
    assert said.startswith("model._target_=os.system: not on the allow-list (pipeline); ")
    config.write_text("!!python/object/apply:os.mkdir [executed]\n" + text)
    assert refused(tmp_path, "stage=evaluate", "run=latest") == f"run=latest: {config} is missing or damaged"


def test_other_data_than_it_was_trained_on(copied: Path, tmp_path: Path) -> None:
    receipt = read(copied / "receipt.json")
    (copied / "receipt.json").write_text(json.dumps({**receipt, "data_sha256": "0" * 64}))
    said = failed(tmp_path, "stage=evaluate", "run=latest")
    assert said == f"run={copied.name}: the data now differ from those it was trained on (another sha256)"


def test_figures_beside_those_of_the_training(copied: Path, tmp_path: Path) -> None:
    result = read(copied / "result.json")
    loss = result["scalars"]["test/loss"]
    result["scalars"]["test/loss"] = loss + 0.25
    (copied / "result.json").write_text(json.dumps(result))
    outcome = pipeline(tmp_path, "stage=evaluate", "run=latest", "tracking=none")
    assert outcome.returncode == 0, outcome.stderr
    assert f"{loss:.4f}  when trained: {loss + 0.25:.4f} (-2.5e-01)" in outcome.stdout
    assert _beside(2.2e-5, 2.3e-5) == "when trained: 2.3e-05 (-1.0e-06)"  # it was 0.0000


# stage=predict


def idx(images: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([images.ndim]) + struct.pack(f">{images.ndim}I", *images.shape) + images.tobytes()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """Digits as files of many kinds, and the first of them as they are."""
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("pictures")
    digits = np.round(load_digits().images[:4] * 255 / 16).astype(np.uint8)
    first = Image.fromarray(digits[0])
    first.save(folder / "grey.png")
    first.convert("RGB").save(folder / "colour.png")
    Image.merge("LA", (Image.new("L", (8, 8), 255), first)).convert("RGBA").save(folder / "transparent.png")
    first.resize((64, 64), Image.Resampling.NEAREST).save(folder / "large.png")
    Image.fromarray(255 - digits[0]).save(folder / "dark.png")
    first.save(folder / "picture.jpg")
    (folder / "many.idx").write_bytes(idx(digits))
    (folder / "many.idx.gz").write_bytes(gzip.compress(idx(digits)))
    (folder / "shoes.idx").write_bytes(idx(np.zeros((2, 28, 28), np.uint8)))
    (folder / "labels.idx").write_bytes(idx(np.zeros(4, np.uint8)))
    (folder / "none.idx").write_bytes(idx(np.zeros((0, 8, 8), np.uint8)))
    (folder / "short.idx").write_bytes(idx(digits)[:-5])
    (folder / "text.png").write_text("no picture")
    (folder / "cut.png").write_bytes((folder / "large.png").read_bytes()[:-60])
    (folder / "text.txt").write_text("no picture")
    return folder, digits


def probabilities(run: Path) -> dict[str, list[float]]:
    with (run / "artifacts/probabilities.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["image", "predicted", *NAMES]
    likely = {row[0]: [float(value) for value in row[2:]] for row in rows}
    assert len(likely) == len(rows)
    assert all(row[1] == NAMES[int(np.argmax(likely[row[0]]))] for row in rows)
    assert all(sum(row) == pytest.approx(1, abs=1e-4) for row in likely.values())
    return likely


def test_predict(trained: dict[str, Path], pictures: tuple[Path, np.ndarray], place: Path) -> None:
    folder, digits = pictures
    names = ["grey.png", "colour.png", "transparent.png", "large.png", "many.idx", "many.idx.gz"]
    images = ",".join(str(folder / name) for name in names)
    run = done(place, "stage=predict", f"run={trained['torch'].name}", f"stage.images=[{images}]", "tracking=none")
    kept = read_result(run)
    assert kept is not None and ("run", trained["torch"].name) in kept.table
    found = probabilities(run)
    many = [f"many.idx[{number}]" for number in range(4)], [f"many.idx.gz[{number}]" for number in range(4)]
    assert list(found) == [*names[:4], *many[0], *many[1]]
    assert np.array([found[name] for name in many[0]]) == pytest.approx(expected(trained["torch"], digits), abs=2e-5)
    assert [found[name] for name in many[1]] == [found[name] for name in many[0]]
    assert all(found[name] == found["many.idx[0]"] for name in names[:3])
    of_folder = place / "later"
    of_folder.mkdir()
    for name in ("notes.txt", "2.png", "1.jpg"):
        shutil.copyfile(folder / "grey.png", of_folder / name)
    for number in range(5):
        shutil.copyfile(folder / "large.png", of_folder / f"large{number}.png")
    again = done(place, "stage=predict", f"run={trained['torch'].name}", "stage.images=[later]", "tracking=none")
    of_images = probabilities(again)
    assert list(of_images) == ["1.jpg", "2.png", *(f"large{number}.png" for number in range(5))]
    resized = [f"large{number}.png: resized from 64x64 to 8x8" for number in range(3)]
    beside = "stage.images=later: leaves out notes.txt"
    assert read(again / "result.json")["notes"] == [beside, *resized, "and 2 more such notes"]
    assert all(of_images[name] == pytest.approx(found["grey.png"], abs=1e-4) for name in ("1.jpg", "2.png"))
    assert status(run).name == "predict-mlp-digits-torch-fp32"
    assert read(run / "result.json")["table"][-1] == ["probabilities", "artifacts/probabilities.csv"]
    with Image.open(run / "artifacts/figures/predictions.png") as sheet:
        assert sheet.size[0] > 200
    receipt = read(run / "receipt.json")
    assert (receipt["source_run"], receipt["device"]["effective"]) == (trained["torch"].name, "cpu")
    assert receipt["weights_sha256"] == read(trained["torch"] / "receipt.json")["weights_sha256"]
    assert receipt["wall_time_s"] > 0
    inverted = done(
        place,
        "stage=predict",
        f"run={trained['torch'].name}",
        f"stage.images=[{folder / 'dark.png'}]",
        "stage.invert=true",
        "tracking=none",
        "backend=jax",
    )
    assert probabilities(inverted)["dark.png"] == pytest.approx(found["grey.png"], abs=1e-4)


@pytest.mark.wide
def test_a_grid_knows_the_images_that_were_predicted(
    trained: dict[str, Path], pictures: tuple[Path, np.ndarray], place: Path
) -> None:
    """By what is in the file: their hash was compared with that of the training data, and nothing was ever done."""
    image = shutil.copyfile(pictures[0] / "grey.png", place / "mine.png")
    words = ("stage=predict", f"run={trained['torch'].name}", "stage.images=[mine.png]", "tracking=none")
    run = done(place, *words)
    again = ("-m", *words, "sweep.dry_run=true")
    assert f"finished before: the one cell: finished as {run.name}" in pipeline(place, *again).stdout
    shutil.copyfile(pictures[0] / "dark.png", image)
    assert f"changed since {run.name}: the data" in pipeline(place, *again).stdout


def test_images_of_other_numbers_than_shades_are_drawn_from_black_to_white(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """matplotlib clipped standardised images, with a warning for each."""
    titles = []
    monkeypatch.setattr(Figure, "suptitle", lambda _, title, **__: titles.append(title))
    images = np.linspace(-2.5, 3.5, 2 * 8 * 8 * 3).reshape(2, 8, 8, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for one in (images, (images + 2.5) / 6, np.full_like(images, 7.0)):
            image_sheet(tmp_path / "sheet.png", one, np.full((2, 3), 1 / 3), ["a", "b", "c"], None, "title")
    assert titles == ["title; black is -2.5 and white 3.5", "title", "title; black is 7 and white 7"]


def test_the_title_of_a_single_picture_is_not_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(FigureCanvasAgg, "print_png", lambda self, _: drawn.append(self.figure))
    title = "20261130-142953-predict-mlp-fashion_mnist-tensorflow-mixed_-6e24: what it sees"  # an id of 61 characters
    image = np.full((1, 8, 8, 1), 2.5)
    image_sheet(tmp_path / "sheet.png", image, np.full((1, 3), 1 / 3), ["a", "b", "c"], None, title)
    drawn[0].canvas.draw()
    extent = drawn[0].texts[0].get_window_extent()
    assert drawn[0].bbox.x0 <= extent.x0 <= extent.x1 <= drawn[0].bbox.x1


def test_curves_are_drawn_along_steps_where_validations_are_counted_in_them() -> None:
    epochs = [Epoch(number, seconds=1.0, steps=steps, units=8, train_loss=1.0) for number, steps in ((1, 50), (2, 30))]
    assert by(epochs) == ("epoch", [1, 2])
    assert by([replace(epoch, passes=0.5 * epoch.number) for epoch in epochs]) == ("step", [50, 80])


def test_a_sheet_and_a_confusion_matrix_measure_no_artist_that_lies_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To find the limits anew for each bar and frame, and room for each count, took a fifth of a figure's time."""
    measured = Counter[str]()

    def counting(one: type, name: str) -> None:
        method = getattr(one, name)

        def counted(*words: Any, **named: Any) -> Any:
            measured[name] += 1
            return method(*words, **named)

        monkeypatch.setattr(one, name, counted)

    counting(Axes, "_update_patch_limits")
    counting(Text, "get_tightbbox")
    likely = np.full((24, 3), 1 / 3)
    image_sheet(tmp_path / "sheet.png", np.zeros((24, 8, 8, 1)), likely, ["a", "b", "c"], None, "title")
    confusion_matrix(tmp_path / "matrix.png", np.full((10, 10), 7), NAMES, "title")
    assert measured.total() <= 3  # the colorbar's


def test_names_above_the_pictures(tmp_path: Path) -> None:
    def sheet(names: list[str] | None) -> np.ndarray:
        path = tmp_path / "sheet.png"
        image_sheet(path, np.zeros((2, 8, 8, 1)), np.full((2, 3), 1 / 3), ["a", "b", "c"], None, "title", names)
        with Image.open(path) as drawn:
            return np.asarray(drawn.convert("L"))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(sheet(["$x_1.png", "鞋.png"]), sheet(["$x_1.png", "鞋.png"]))
    long = "a_picture_of_something_taken_on_a_fine_day_0001.png"
    assert not np.array_equal(sheet([long, long]), sheet(None))
    assert not np.array_equal(sheet([long, long]), sheet([long, long.replace("1", "2")]))


def expected(run: Path, digits: np.ndarray) -> np.ndarray:
    """The probabilities by NumPy: an independent reading of the saved weights."""
    with np.load(run / "artifacts/model/weights.npz") as stored:
        kernel_1, bias_1, kernel_2, bias_2 = (stored[name].astype(np.float64) for name in stored.files)
    logits = np.maximum(digits.reshape(-1, 64) / 255 @ kernel_1 + bias_1, 0) @ kernel_2 + bias_2
    powers = np.exp(logits - logits.max(1, keepdims=True))
    likely: np.ndarray = powers / powers.sum(1, keepdims=True)
    return likely


def test_predict_says_what_it_resized(trained: dict[str, Path], pictures: tuple[Path, np.ndarray], place: Path) -> None:
    image = pictures[0] / "large.png"
    result = pipeline(
        place, "stage=predict", f"run={trained['torch'].name}", f"stage.images=[{image}]", "tracking=none"
    )
    assert result.returncode == 0, result.stderr
    assert "large.png: resized from 64x64 to 8x8" in result.stderr


def test_16_bit_grey_is_scaled_not_clipped(tmp_path: Path) -> None:
    shades = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    Image.fromarray(shades).save(tmp_path / "deep.png")
    _, images, _ = read_images((str(tmp_path / "deep.png"),), (8, 8, 1), invert=False)
    assert images[0, ..., 0] == pytest.approx(shades / 65535, abs=0.5 / 255 + 1e-9)


def test_a_picture_is_not_changed_in_silence(tmp_path: Path) -> None:
    """32-bit grey was cut to its last bits, a photograph lay on its side, and of two files of one name nobody knew."""
    drawn = np.zeros((8, 8), np.uint8)
    drawn[0, :] = 255
    turned = Image.Exif()
    turned[0x0112] = 6  # orientation: its first row is the right-hand side
    Image.fromarray(drawn).save(tmp_path / "photo.png", exif=turned)
    names, images, notes = read_images((str(tmp_path / "photo.png"),), (8, 8, 1), invert=False)
    assert (names, notes) == (["photo.png"], [])
    assert np.array_equal(images[0, ..., 0] * 255, np.rot90(drawn, -1))
    Image.fromarray(np.full((8, 8), 200_000, np.int32)).save(tmp_path / "wide.tif")
    with pytest.raises(UserError, match=r"wide\.tif: holds an image of Pillow's mode I, of more than 8 bits"):
        read_images((str(tmp_path / "wide.tif"),), (8, 8, 1), invert=False)
    frames = [Image.fromarray(drawn), Image.fromarray(255 - drawn)]
    frames[0].save(tmp_path / "film.gif", save_all=True, append_images=frames[1:])
    (tmp_path / "more").mkdir()
    shutil.copyfile(tmp_path / "photo.png", tmp_path / "more/photo.png")
    paths = tuple(str(tmp_path / name) for name in ("photo.png", "more/photo.png", "film.gif"))
    names, _, notes = read_images(paths, (8, 8, 1), invert=False)
    assert names == [*paths[:2], "film.gif"]
    assert notes == ["film.gif: holds 2 images; this is of the first"]


def test_a_picture_is_that_of_a_folder_of_images(tmp_path: Path) -> None:
    """A JPEG that a model was trained on was refused as "not an IDX file"."""
    path = tmp_path / "shoe.jpg"
    Image.fromarray(np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)).save(path)
    _, images, _ = read_images((str(path),), (8, 8, 3), invert=False)
    with Image.open(path) as stored:
        assert np.array_equal(images[0], pixels(stored, (8, 8), 3, "") / 255)


def test_what_lies_beside_the_images_of_a_folder_is_noted(tmp_path: Path) -> None:
    for name in ("a.png", "more/b.png", ".hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (8, 8)).save(tmp_path / name, format="PNG")
    (tmp_path / "c.heic").touch()
    names, _, notes = read_images((str(tmp_path),), (8, 8, 1), invert=False)
    assert (names, notes) == (["a.png"], [f"stage.images={tmp_path}: leaves out c.heic, more"])


@pytest.mark.parametrize(("ink", "invert"), [(0, True), (255, False)])
def test_a_drawing_on_a_transparent_ground(tmp_path: Path, ink: int, invert: bool) -> None:
    """Dark ink where it is inverted, light ink where not: either way light on dark is what the model sees."""
    drawn = np.zeros((8, 8), np.uint8)
    drawn[2:6, 3:5] = 255
    grey = Image.new("L", (8, 8), ink)
    Image.merge("LA", (grey, Image.fromarray(drawn))).save(tmp_path / "drawing.png")
    _, images, _ = read_images((str(tmp_path / "drawing.png"),), (8, 8, 1), invert)
    assert np.array_equal(images[0, ..., 0], drawn / 255)


WRONG = {
    "cut.png": "stage.images={path}: not a readable image (",
    "shoes.idx": "stage.images={path}: holds images of shape (28, 28, 1); this model takes (8, 8, 1)",
    "labels.idx": "stage.images={path}: holds images of shape (); this model takes (8, 8, 1)",
    "none.idx": "stage.images={path}: holds no image",
    "short.idx": "stage.images={path}: truncated: shape (4, 8, 8) needs 272 bytes, found 267",
}


@pytest.mark.parametrize(
    "name", ["cut.png", "shoes.idx", *(pytest.param(name, marks=pytest.mark.wide) for name in [*WRONG][2:])]
)
def test_images_that_cannot_be_read(
    trained: dict[str, Path], pictures: tuple[Path, np.ndarray], tmp_path: Path, name: str
) -> None:
    path = pictures[0] / name
    said = failed(tmp_path, "stage=predict", f"run={trained['torch']}", f"stage.images=[{path}]")
    assert said.startswith(WRONG[name].format(path=path))


@pytest.mark.wide
def test_predict_without_images(trained: dict[str, Path], pictures: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    wanted = ("stage=predict", f"run={trained['torch']}")
    there, absent = pictures[0] / "grey.png", pictures[0] / "absent.png"
    said = refused(tmp_path, *wanted, f"stage.images=[{there},{absent}]")
    assert said == f"stage.images={absent}: no such file"
    said = refused(tmp_path, *wanted, f"stage.images=[{pictures[0] / 'text.png'}]")
    assert said == f"stage.images={pictures[0] / 'text.png'}: not a PNG, nor another image"
    said = refused(tmp_path, *wanted, f"stage.images=[{pictures[0] / 'text.txt'}]")
    assert said.startswith(f"stage.images={pictures[0] / 'text.txt'}: neither an image (.png, .jpg, ")
    assert said.endswith(") nor an IDX file")
    (tmp_path / "empty").mkdir()
    said = refused(tmp_path, *wanted, "stage.images=[empty]")
    assert said.startswith("stage.images=empty: a folder without an image directly in it (.png, .jpg, ")
    (tmp_path / "begun.png").write_bytes((pictures[0] / "grey.png").read_bytes()[:20])
    said = refused(tmp_path, *wanted, "stage.images=[begun.png]")
    assert said.startswith("stage.images=begun.png: not a readable image (")
    said = refused(tmp_path, *wanted)
    assert said == (
        "stage.images=[]: name at least one image or IDX file, such as stage.images=[shoe.png]; a model of rows of "
        "numbers takes stage.rows=rows.csv"
    )


# Other shapes of a run


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_no_validation_and_an_uneven_batch(backend: str, tmp_path: Path) -> None:
    """1,437 images in batches of 100: the last has 37."""
    wanted = ("dataset.validation=0", "training.batch_size=100", "training.epochs=1", "tracking=none")
    run = done(tmp_path, *DIGITS[:2], f"backend={backend}", *wanted)
    (epoch,) = [record for record in read_metrics(run) if "epoch/number" in record.metrics]
    assert epoch.step == 15
    assert not [name for name in epoch.metrics if name.startswith("validation")]
    assert read(run / "result.json")["scalars"]["test/accuracy"] > 0.3
    assert (run / "artifacts/figures/training_curves.png").stat().st_size > 5000
    assert status(run).state == "FINISHED"


COVERING = """
import sys
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from pipeline import experiment as experiments
from pipeline.machine.capability import resolve
from pipeline.cli.conf_path import conf_path
from pipeline.runs.journal import Journal
from pipeline.runs.run import Run
from pipeline.datasets.loading import load_data
from pipeline.sweep import hydra_plugins
from pipeline.cli.terminal import messages

backend, *combinations = sys.argv[1:]
hydra_plugins.register()
with initialize_config_dir(str(conf_path()), version_base="1.3"):
    for words in combinations:
        small = ["dataset.train_size=100", "training=quick", "training.batch_size=32", "device=cpu"]
        cell = [*small, f"backend={backend}", "training.epochs=2", *words.split()]
        config = compose("config", cell)
        experiment = experiments.load(OmegaConf.to_container(config, resolve=True))
        run = Run(Journal.begin(Path("runs"), "x", experiment.config), messages())
        resolved = resolve(backend, experiment.device, "fp32", ())
        fit = experiment.backend.load().fit(experiment, load_data(experiment), resolved, run)
        run.journal.finish("FINISHED")
        print(fit.epochs[0].train_loss, fit.epochs[1].train_loss)
"""


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.wide)])
def test_every_optimizer_loss_and_activation_trains(backend: str, tmp_path: Path) -> None:
    """A set of combinations in which every choice occurs, in one process: eight fits of a few steps."""
    conf = Path(__file__).parents[1] / "conf"
    optimizers, losses = (
        sorted(path.stem for path in (conf / group).glob("*.yaml")) for group in ("optimizer", "loss")
    )
    activations = ("relu", "tanh", "sigmoid", "gelu", "silu", "elu")
    assert len(optimizers) >= max(len(losses), len(activations))
    of_numbers = "dataset=diabetes dataset.normalise=true stage=train optimizer.learning_rate=1e-4"
    data = {loss: of_numbers if loss in ("huber", "squared_error") else "dataset=digits" for loss in losses}
    chosen = [(losses[place % len(losses)], activations[place % len(activations)]) for place in range(len(optimizers))]
    combinations = [
        f"optimizer={name} loss={loss} model.activation={activation} {data[loss]}"
        for name, (loss, activation) in zip(optimizers, chosen, strict=True)
    ]
    (tmp_path / "covering.py").write_text(COVERING)
    result = script(tmp_path, backend, tmp_path / "covering.py", backend, *combinations)
    assert result.returncode == 0, result.stderr
    pairs = [[float(word) for word in line.split()] for line in result.stdout.splitlines()]
    assert len(pairs) == len(combinations)
    assert all(second < first for first, second in pairs), pairs
