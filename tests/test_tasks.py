"""Any task trains on every backend: tasks, datasets, models, a loss and a stage from outside the repository."""

from __future__ import annotations

import csv
import json
import re
import resource
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from anonymous_memory import most_anonymous
from command import TORCH_THEN_WIDE, environment, pipeline, refused, runs, script, status, write_files
from in_tasks import STEPS, TRAININGS

from pipeline.runs.json_files import read_json
from pipeline.runs.result import metrics_of
from pipeline.tasks.language_modelling import by_what_follows

HERE = Path(__file__).parent
BACKENDS = ("torch", "tensorflow", "jax")
OTHERS = tuple(pytest.param(name, marks=pytest.mark.wide) for name in ("jax", "tensorflow"))  # beside torch
CHOICES = {
    "conf/dataset/counting.yaml": "_target_: own_tasks.Counting\nexamples: 320\n",
    "conf/dataset/plane.yaml": "_target_: own_tasks.Plane\nfile: null\n",
    "conf/dataset/reversed.yaml": "_target_: own_tasks.Reversed\n",
    "conf/model/tiny.yaml": "_target_: own_tasks.TinyTransformer\ntied: false\n",
    "conf/model/dense.yaml": "_target_: own_tasks.Dense\n",
    "conf/model/mixing.yaml": "_target_: own_tasks.EncoderDecoder\n",
    "conf/model/subclassed.yaml": "_target_: own_tasks.Subclassed\n",
    "conf/loss/weighted.yaml": "_target_: own_tasks.WeightedError\n",
    "conf/loss/squared.yaml": "_target_: own_tasks.SquaredError\n",
    "conf/stage/noted.yaml": "_target_: own_tasks.Noted\n",
}
LANGUAGE = ("dataset=counting", "model=tiny", "training.batch_size=16", "training.epochs=1", "tracking=none")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's folder: a module, and choices for it."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copyfile(HERE / "own_tasks.py", folder / "own_tasks.py")
    write_files(folder, CHOICES)
    return folder


def allowed(lab: Path) -> dict[str, str]:
    """The variables by which the folder's module is found and allowed."""
    return {"PIPELINE_MODULES": "own_tasks", "PYTHONPATH": str(lab)}


@pytest.fixture(scope="module")
def trained(lab: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the trainings of in_tasks.py came to on a backend."""

    @cache
    def of(backend: str) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp(backend)
        shutil.copytree(lab / "conf", folder / "conf")
        ended = script(folder, backend, HERE / "in_tasks.py", backend, str(folder), **allowed(lab))
        assert ended.returncode == 0, ended.stderr[-4000:]
        found: dict[str, Any] = json.loads((folder / "facts.json").read_text())
        return found

    return of


SAME = [name for name in TRAININGS if name not in ("narrow", "scaled")]


@pytest.mark.parametrize("backend", OTHERS)
@pytest.mark.parametrize("name", SAME)
def test_every_backend_takes_the_same_steps(trained: Any, name: str, backend: str) -> None:
    one, other = trained("torch")[name], trained(backend)[name]
    assert len(one["losses"]) == len(other["losses"]) == STEPS
    np.testing.assert_allclose(other["losses"], one["losses"], rtol=0, atol=1e-5)
    np.testing.assert_allclose([*other["weights"].values()], [*one["weights"].values()], rtol=1e-4)
    assert other["metrics"]["test/loss"] == pytest.approx(one["metrics"]["test/loss"], rel=1e-4)


@pytest.mark.parametrize("backend", OTHERS)
def test_momentum_with_a_schedule_trains_the_same_net(trained: Any, backend: str) -> None:
    """Keras's own velocity holds the rates of its steps, torch's does not."""
    one, other = trained("torch")["momentum"], trained(backend)["momentum"]
    np.testing.assert_allclose(other["losses"], one["losses"], rtol=0, atol=1e-12)
    np.testing.assert_allclose([*other["weights"].values()], [*one["weights"].values()], rtol=1e-10)


@pytest.mark.parametrize("backend", OTHERS)
@pytest.mark.parametrize("name", ["everything", "everything_augmented"])
def test_all_that_a_training_offers_is_the_same_on_every_backend(trained: Any, name: str, backend: str) -> None:
    """fp64: accumulation, clipping, a schedule, decay groups, a moving average, label smoothing; of images also
    augmentation and normalisation.
    """
    torch, other = trained("torch")[name], trained(backend)[name]
    for what in ("losses", "rates", "norms", "validation"):
        np.testing.assert_allclose(other[what], torch[what], rtol=0, atol=1e-10, err_msg=what)
    np.testing.assert_allclose([*other["weights"].values()], [*torch["weights"].values()], rtol=1e-10)
    for key in ("step", "epoch"):
        assert other["kept"][key] == torch["kept"][key]
    assert max(torch["norms"]) > 0.1 > 0  # it was clipped
    assert torch["rates"][0] == pytest.approx(1e-3 / 3)
    assert torch["kept"]["weights"] == "best"
    settings = {"_target_": "pipeline.augmentations.images.Images", "crop": 0.7, "shift": 2, "flip": True, "cutout": 3}
    assert torch["augmentation"] == (settings if name == "everything_augmented" else None)
    assert (torch["normalisation"] is None) == (name == "everything")
    assert other["normalisation"] == torch["normalisation"]


@pytest.mark.wide
@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_accumulated_gradients_of_a_scaled_loss_are_clipped_unscaled(trained: Any, backend: str) -> None:
    """Frameworks overflow at other scales, so other steps are skipped; a norm that is still scaled is 1e4 and more."""
    found = trained(backend)["scaled"]
    assert found["metrics"]["loss_scale/skipped_steps"] > 0
    assert found["norms"]
    assert all(1 < norm < 10 for norm in found["norms"])


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_real_targets_in_a_narrow_precision(trained: Any, backend: str) -> None:
    narrow, wide = (trained(backend)[name] for name in ("narrow", "regression"))
    assert narrow["observed"].keys() == {"bfloat16"}
    half = STEPS // 2  # bfloat16 weights lose a part of every update
    np.testing.assert_allclose(narrow["losses"][:half], wide["losses"][:half], rtol=0.02)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_a_task_names_its_units_and_its_score(trained: Any, backend: str) -> None:
    found = trained(backend)
    assert found["regression"]["task"] == {"name": "regression", "unit": "rows", "units": 1, "score": "absolute_error"}
    assert {"test/loss", "test/absolute_error", "rows_per_s"} <= found["regression"]["metrics"].keys()
    assert "test/accuracy" not in found["regression"]["metrics"]
    assert found["language_modelling"]["task"]["unit"] == "tokens"
    assert found["language_modelling"]["task"]["name"] == "language_modelling"
    metrics = found["language_modelling"]["metrics"]
    assert metrics["test/perplexity"] == pytest.approx(np.exp(metrics["test/loss"]), rel=1e-9)
    assert found["stage"]["notes"] == ["a stage from outside"]


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_metrics_are_measured_of_any_task(trained: Any, backend: str) -> None:
    """A user's own metric too, with two settings at once."""
    found = trained(backend)["regression"]
    metrics, declared = found["metrics"], found["declared"]
    assert metrics["test/root_mean_squared_error"] == pytest.approx(metrics["test/loss"] ** 0.5, rel=1e-12)
    assert 0 < metrics["test/within_1"] < metrics["test/within_1000"] == 100
    assert declared["test/within_1"] == {"unit": "%", "kind": "result", "direction": "max"}
    metrics = trained(backend)["language_modelling"]["metrics"]
    assert metrics["test/bits_per_token"] == pytest.approx(metrics["test/loss"] / np.log(2), rel=1e-12)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_weights_have_the_path_of_their_layer_and_tied_ones_count_once(trained: Any, backend: str) -> None:
    plain, tied = (list(trained(backend)[name]["weights"]) for name in ("language_modelling", "tied"))
    block = "" if backend == "torch" else "attention."
    own = ["tokens.embeddings", "positions.embeddings", "norm.gamma", "norm.beta"]
    assert plain == [*own, *(f"{block}{name}.kernel" for name in ("query", "key", "value")), "logits.kernel"]
    assert tied == plain[:-1]


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_attention_is_observed(trained: Any, backend: str) -> None:
    """Products for query, key, value and logits, and attention: one that is fused, or two products."""
    seen = trained(backend)["language_modelling"]["observed"]
    assert seen.keys() == {"float32"}
    backward = 2 * 3 + 2  # two for each layer's product
    assert seen["float32"] >= (3 + 1) + backward + 2  # and attention, both ways


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_streamed_batches_are_those_of_memory(trained: Any, backend: str) -> None:
    found = trained(backend)
    np.testing.assert_allclose(found["streamed"]["losses"], found["language_modelling"]["losses"], rtol=1e-6)


# Stages and tools round a training


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.wide
def test_precisions_of_a_language_model_are_compared(lab: Path, tmp_path: Path, backend: str) -> None:
    words = ("stage=amp", "stage.precisions=[fp32,fp64]", "stage.repeats=1", "optimizer=adam", *LANGUAGE)
    metrics = metrics_of(above(lab, tmp_path, *words, f"backend={backend}"))
    assert metrics["fp32/tokens_per_s"].unit == "tokens/s"
    assert {"fp32/test_accuracy", "fp64/test_accuracy", "fp32/first_loss_error"} <= metrics.keys()


@pytest.mark.wide
def test_rungs_of_a_regression_are_compared(lab: Path, tmp_path: Path) -> None:
    words = ("stage=ladder", "dataset=plane", "model=dense", "loss=squared", "tracking=none", "training.epochs=2")
    left = [f"~stage.rungs.{name}" for name in ("baseline", "transfer", "workers", "amp", "compiled")]
    run = above(lab, tmp_path, *words, *left, "training.batch_size=16")
    with (run / "artifacts" / "ladder.csv").open() as file:
        first, _ = csv.DictReader(file)
    assert {"rows_per_s", "test_absolute_error", "training_s"} <= first.keys()
    (table,) = read_json(run / "result.json")["tables"]
    assert (table["columns"][2], table["columns"][6]) == ("rows/s", "absolute_error")


@pytest.mark.wide
def test_a_grid_and_a_profiler_of_a_language_model(lab: Path, tmp_path: Path) -> None:
    window = ("profiler=torch", "profiler.skip=4", "profiler.steps=2")
    words = ("-m", "model.tied=false,true", "stage=train", *LANGUAGE, *window, searched(lab))
    ended = pipeline(tmp_path, *words, **allowed(lab))
    assert ended.returncode == 0, ended.stderr
    profiled = [run for run in runs(tmp_path) if (run / "artifacts" / "profile").is_dir()]
    assert len(profiled) == 2
    for run in profiled:
        assert metrics_of(run)["tokens_per_s_with_profiler"].unit == "tokens/s"
    again = pipeline(tmp_path, *words, **allowed(lab))
    assert again.returncode == 0, again.stderr
    assert len([run for run in runs(tmp_path) if (run / "artifacts" / "profile").is_dir()]) == 2  # both done before


def above(lab: Path, folder: Path, *words: str) -> Path:
    """The run of a stage that runs cells."""
    ended = pipeline(folder, *words, searched(lab), **allowed(lab))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (found,) = [run for run in runs(folder) if (run / "cells").exists()]
    return found


def searched(lab: Path) -> str:
    """Where the choices lie."""
    return f"hydra.searchpath=[file://{lab / 'conf'}]"


# Refusals


def test_logits_are_moved_by_what_comes_before_them_alone() -> None:
    x_NT, noise = np.arange(24).reshape(3, 8) % 5, np.random.default_rng(0)
    known_NTV = np.eye(5)[x_NT]

    def of(x: np.ndarray) -> np.ndarray:
        return np.eye(5)[x]

    assert by_what_follows(lambda x: np.cumsum(of(x), axis=1), x_NT, 4, 5) == 0
    assert by_what_follows(lambda x: np.roll(of(x), -1, axis=1), x_NT, 4, 5) == 1
    assert by_what_follows(lambda x: of(x) + noise.normal(size=known_NTV.shape), x_NT, 4, 5) == 0  # it draws
    rounded = 1e-5 * np.roll(known_NTV, -1, axis=1)
    assert by_what_follows(lambda x: known_NTV if (x == x_NT).all() else known_NTV + rounded, x_NT, 4, 5) == 0


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.wide
def test_a_language_model_that_looks_ahead_has_no_result(lab: Path, tmp_path: Path, backend: str) -> None:
    """Its bits per byte were near 0, beside n-grams that look at what came before."""
    words = ("stage=train", *LANGUAGE, "+model.causal=false", f"backend={backend}", searched(lab))
    ended = pipeline(tmp_path, *words, **allowed(lab))
    (run,) = runs(tmp_path)
    assert (ended.returncode, status(run).state) == (1, "FAILED")
    assert re.match(
        r"RunError: the model looks ahead: other tokens from 5 on move its logits at the first 4 tokens by up to "
        r"\d\.\de[+-]\d+; it sees what it should predict, ",
        str(status(run).error),
    )
    assert (run / "artifacts/model/weights.npz").is_file() and not (run / "result.json").exists()


@pytest.mark.wide
def test_bits_per_byte_of_margins_are_noted(lab: Path, tmp_path: Path) -> None:
    """They are of a softmax of outputs that were never trained to be probabilities."""
    words = ("stage=train", *LANGUAGE, "loss=hinge", searched(lab))
    assert pipeline(tmp_path, *words, **allowed(lab)).returncode == 0
    (run,) = runs(tmp_path)
    said = "of a softmax of the outputs, and loss=hinge trains margins, not probabilities"
    assert f"test/perplexity, test/bits_per_byte: {said}" in read_json(run / "result.json")["notes"]


def test_refused_before_the_run(lab: Path, tmp_path: Path) -> None:
    for words, said in {
        ("dataset=counting", "model=tiny", "stage=classifier"): (
            "dataset=counting with stage=classifier: its task is LanguageModelling, not Classification; "
            "use stage=transformer; or dataset=digits"
        ),
        ("dataset=counting", "model=tiny", "stage=train", "training.metrics=[mean_squared_error]"): (
            "training.metrics=mean_squared_error: takes numbers, and the targets of dataset=counting are classes; "
            "choose from accuracy, bits_per_token, brier, calibration_error, cross_entropy, macro_f1, macro_precision, "
            "macro_recall, perplexity, top5_accuracy"
        ),
        ("dataset=plane", "model=dense", "stage=train", "training.metrics=[accuracy]"): (
            "training.metrics=accuracy: takes classes, and the targets of dataset=plane are numbers; choose from "
            "mean_absolute_error, mean_squared_error, root_mean_squared_error"
        ),
        ("dataset=counting", "model=tiny", "stage=train", "augmentation=images"): (
            "augmentation=images: takes images (height, width, channels); the examples of this dataset have shape (8,) "
            "and hold tokens"
        ),
        ("dataset=counting", "dataset.normalise=true", "model=tiny", "stage=train"): (
            "dataset.normalise=true with dataset=counting: its examples are tokens; it is for images and rows of "
            "numbers"
        ),
    }.items():
        assert refused(tmp_path, *words, searched(lab), **allowed(lab)) == said


def test_whatever_a_dataset_of_yours_raises_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "own_damaged.py").write_text(
        "from typing import ClassVar\n"
        "from pipeline.contracts import Dataset\n"
        "from pipeline.spec import spec\n"
        "from pipeline.tasks.classification import Classification\n"
        "@spec\n"
        "class Damaged(Dataset):\n"
        "    task: ClassVar = Classification\n"
        "    def load(self, root, seed):\n"
        "        return open('gone.csv')\n"
    )
    write_files(tmp_path, {"conf/dataset/damaged.yaml": "_target_: own_damaged.Damaged\n"})
    known = {"PIPELINE_MODULES": "own_damaged", "PYTHONPATH": str(tmp_path)}
    said = refused(tmp_path, "dataset=damaged", "stage=train", "model=linear", "--config-dir=conf", **known)
    assert said == (
        "dataset=damaged: load raises FileNotFoundError: [Errno 2] No such file or directory: 'gone.csv', "
        "in load (own_damaged.py, line 9)"
    )


def test_a_model_of_images_refuses_tokens(lab: Path, tmp_path: Path) -> None:
    words = ("stage=train", "dataset=counting", "model=cnn", searched(lab))
    assert refused(tmp_path, *words, **allowed(lab)) == (
        "model=cnn with dataset=counting: it takes numbers, and the examples of this dataset are tokens; "
        "use model=gpt or dataset=digits"
    )


# Larger than memory

WIDTH, ROWS = 1024, 2**20  # 4 GiB of float32
ANONYMOUS = 2**30  # bytes of memory without a file behind it
RESERVED = 3 * 2**30  # address space for such memory: XLA's and TensorFlow's threads reserve more than they touch


@pytest.mark.wide
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mapped_file_larger_than_memory(lab: Path, tmp_path: Path, backend: str) -> None:
    """What a process may reserve for itself alone is limited by the kernel; pages of a file do not count."""
    file = tmp_path / "x.npy"
    numbers = np.lib.format.open_memmap(file, "w+", np.float32, (ROWS, WIDTH))
    numbers[:: ROWS // 64] = np.random.default_rng(0).normal(size=(64, WIDTH))  # the rest stays a hole, read as zeros
    del numbers
    words = [f"dataset.file={file}", "dataset=plane", "model=dense", "loss=squared", "stage=train", "loader=threads"]
    words += ["training.batch_size=4096", "training.epochs=1", "tracking=none", f"backend={backend}", searched(lab)]

    command = [sys.executable, "-m", "pipeline", *words]
    variables = environment(**allowed(lab), OMP_NUM_THREADS="1")
    said = tmp_path / "said"
    with said.open("w") as stream:
        process = subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=stream, stderr=stream)
    resource.prlimit(process.pid, resource.RLIMIT_DATA, (RESERVED, RESERVED))  # before it has imported a framework
    largest = most_anonymous(process)
    assert process.returncode == 0, said.read_text()[-2000:]
    assert 2**26 < largest < ANONYMOUS
    (run,) = runs(tmp_path)
    assert metrics_of(run)["test/loss"].value >= 0
