"""How long a training is and which weights it keeps; parity of it all is in test_tasks.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from command import TORCH_THEN_WIDE, done, pipeline, refused, runs
from in_backend import experiment
from torch import nn

from pipeline.backends.shared.best import Best
from pipeline.backends.torch.step import Average
from pipeline.errors import RunError, UserError
from pipeline.experiment.effects import check_read, of_length, of_settings
from pipeline.experiment.training import Training
from pipeline.models import Shapes
from pipeline.models import weights as layers
from pipeline.models.mlp import Mlp
from pipeline.runs import weights
from pipeline.runs.fit import Epoch, Fit, Observation
from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_metrics
from pipeline.runs.result import metrics_of
from pipeline.stages import course
from pipeline.tasks.classification import Classification

DIGITS = ("dataset=digits", "model=linear", "tracking=none")
UNSTABLE = ("optimizer=sgd", "optimizer.learning_rate=30")  # the validation loss goes up and down


def finished(folder: Path, *words: str) -> Path:
    result = pipeline(folder, *DIGITS, *words)
    assert result.returncode == 0, result.stderr
    return runs(folder)[-1]


def validations(run: Path) -> list[float]:
    records = [record.metrics for record in read_metrics(run)]
    return [metrics["validation/loss"] for metrics in records if "validation/loss" in metrics]


def test_training_ends_when_validation_no_longer_improves_and_keeps_the_best_weights(tmp_path: Path) -> None:
    words = (*UNSTABLE, "training.validate_every=3", "training.steps=300")
    run = finished(tmp_path, *words, "training.patience=2", "training.weights=best")
    losses, kept = validations(run), read_json(run / "receipt.json")["kept_weights"]
    best = losses.index(min(losses))
    assert losses[best + 1 :] == losses[-2:]  # two more, none better
    assert kept["ended_by"] == "training.patience"
    assert (kept["weights"], kept["step"], kept["epoch"]) == ("best", 3 * (best + 1), best + 1)
    assert kept["value"] == min(losses)
    result = read_json(run / "result.json")
    (of_best,) = (one.metrics for one in read_metrics(run) if one.metrics.get("validation/loss") == min(losses))
    same = {"epoch/number", "epoch/train_loss", "validation/loss"}  # all of one epoch
    assert {name: result["last_epoch"][name] for name in same} == {name: of_best[name] for name in same}
    assert ["weights", f"of step {kept['step']}, the best by validation/loss ({min(losses):.4f})"] in result["table"]
    # The same training, stopped there, ends with the same weights.
    ended = pipeline(tmp_path, *DIGITS, *words[:-1], f"training.steps={3 * (best + 1)}", "training.epochs=7")
    assert f"\ntraining.epochs=7: training.steps={3 * (best + 1)} replaces it\n" in ended.stderr
    assert f"length         training.steps={3 * (best + 1)}, in place of training.epochs=7" in ended.stdout
    stopped = runs(tmp_path)[-1]
    assert read_json(stopped / "receipt.json")["weights_sha256"] == read_json(run / "receipt.json")["weights_sha256"]


def test_training_ends_when_its_time_is_over(tmp_path: Path) -> None:
    words = ("training.max_time=0.001", "loader.steps_per_execution=4", "training.ema=0.9999", "training.epochs=2")
    result = pipeline(tmp_path, *DIGITS, *words)
    assert result.returncode == 0, result.stderr
    (run,) = runs(tmp_path)
    said = "training.ema=0.9999: averages over about 10,000 steps, 1 / (1 - ema), and the training has 80: 99% of what "
    (note,) = read_json(run / "result.json")["notes"]
    assert note == f"{said}is saved is the initial weights"
    assert result.stderr.count(note) == 1
    assert read_json(run / "receipt.json")["kept_weights"]["ended_by"] == "training.max_time"
    assert metrics_of(run)["test/loss"].value >= 1
    steps = [record.step for record in read_metrics(run)]
    assert max(steps) < 40


@pytest.mark.wide
def test_a_large_batch_is_the_same_as_a_few_that_are_accumulated(tmp_path: Path) -> None:
    words = ("precision=fp64", "training.steps=20", "optimizer=sgd")
    whole = finished(tmp_path, *words)
    parts = finished(tmp_path, *words, "training.batch_size=8", "training.accumulate=4")
    mine, others = (weights.load(run / "artifacts/model/weights.npz") for run in (whole, parts))
    assert mine and mine.keys() == others.keys()
    for name, array in mine.items():
        assert others[name] == pytest.approx(array, abs=1e-12)


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["jax", "tensorflow", "torch"])
def test_an_accumulated_gradient_is_measured_in_any_dtype(tmp_path: Path, backend: str) -> None:
    """One in bfloat16 as in float32, and one of layers with different dtypes."""
    words = (f"backend={backend}", "training.steps=2", "training.accumulate=2", "training.log_gradient_norm=true")
    others = "precision=bf16", "model.layer_dtypes=[null,float64]"
    norms = [norms_of(done(tmp_path, "dataset=digits", *words, *more)) for more in ((), *((one,) for one in others))]
    assert len(norms[0]) == 1
    for other in norms[1:]:
        assert other == pytest.approx(norms[0], rel=0.02)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.wide
def test_gradients_in_16_bits_are_added_up_in_float32(tmp_path: Path, backend: str) -> None:
    """In bfloat16, with 8 bits, what is small beside the sum so far was lost."""
    sizes = ("training.steps=1", "training.batch_size=2", "training.accumulate=600")
    words = (f"backend={backend}", *sizes, "training.log_gradient_norm=true")
    wide, narrow = (norms_of(finished(tmp_path, *words, f"precision={name}")) for name in ("fp32", "bf16"))
    assert narrow == pytest.approx(wide, rel=3e-3)


def test_a_layer_without_a_dtype_behind_one_that_has_its_own_is_in_float32() -> None:
    """As in Keras, which casts what comes into a layer."""
    net = Mlp(units=(4, 3, 3), layer_dtypes=("float16", "float64", None, None)).torch(Shapes((2, 2), (5,)))
    dtypes = [one.weight.dtype for one in net if isinstance(one, nn.Linear)]
    assert dtypes == [torch.float16, torch.float64, torch.float32, torch.float32]
    assert net(torch.ones(1, 2, 2)).dtype == torch.float32


def norms_of(run: Path) -> list[float]:
    records = [record.metrics for record in read_metrics(run)]
    return [metrics["train/gradient_norm"] for metrics in records if "train/gradient_norm" in metrics]


MISTAKES = {
    "training.monitor=validation/beauty": (
        "training.monitor=validation/beauty: no such choice (did you mean validation/accuracy?); "
        "choose from validation/accuracy, validation/loss"
    ),
    "training.patience=2 dataset.validation=0": (
        "training.patience=2 with dataset=digits: it holds no examples out for validation; leave it out"
    ),
    "training.weights=best dataset.validation=0": (
        "training.weights=best with dataset=digits: it holds no examples out for validation; leave it out"
    ),
    "schedule=cosine schedule.warm_up=900 training.steps=900": (
        "schedule.warm_up=900: the training has 900 optimizer steps; choose fewer steps, such as schedule.warm_up=90, "
        "or train longer, by training.steps=901 or more"
    ),
    "training.monitor=validation/accuracy": (
        "training.monitor=validation/accuracy: has no effect without early stopping or the best weights; "
        "set training.patience=5 or training.weights=best, or leave it out"
    ),
    "optimizer=sgd optimizer.decay=matrices": (
        "optimizer.decay=matrices: nothing decays with optimizer.weight_decay=0; set optimizer.weight_decay=0.01, or "
        "leave it out"
    ),
    "loss.class_weights=[0,0]": (
        "loss.class_weights=[0.0, 0.0]: all are 0, so nothing would be trained; give a weight above 0"
    ),
    "loss.class_weights=[1,2,3]": "loss.class_weights: 3 weights; the data have 10 classes",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_message(tmp_path: Path, words: str) -> None:
    assert refused(tmp_path, *DIGITS, *words.split()) == MISTAKES[words]


def test_what_nothing_reads_is_said_where_the_user_has_switched_off_what_would() -> None:
    """A grid may vary `training.patience` or `optimizer.weight_decay`: its cells are not refused."""
    training = ("default", {"monitor": "validation/accuracy"})
    mine = experiment("torch", optimizer=("sgd", {"decay": "matrices"}), training=training)
    monitor, decay = of_settings(mine, ())
    assert monitor.startswith("training.monitor=validation/accuracy: has no effect without early stopping")
    assert decay == "optimizer.decay=matrices: nothing decays with optimizer.weight_decay=0"
    check_read(mine, ())  # of a saved run, or of a recipe
    check_read(mine, ("training.monitor", "training.patience", "optimizer.decay", "optimizer.weight_decay"))
    for keys in (("training.monitor", "optimizer.weight_decay"), ("optimizer.decay", "training.weights")):
        for swept in ((), ("model", "seed")):
            with pytest.raises(UserError, match=rf"^{keys[0]}=.*, or leave it out$"):
                check_read(mine, keys, swept)
        check_read(mine, keys, ("training", "optimizer"))


@pytest.mark.parametrize(
    ("settings", "steps", "validations", "notes"),
    [
        ({"ema": 0.99}, 300, 30, []),
        ({"ema": 0.999, "steps": 3000}, 3000, 3, []),
        (
            {"ema": 0.99},
            120,
            9,
            [
                "training.ema=0.99: averages over about 100 steps, 1 / (1 - ema), and the training "
                "has 120: 30% of what is saved is the initial weights"
            ],
        ),
        ({"accumulate": 10}, 1, 1, []),
        (
            {"accumulate": 1000},
            1,
            1,
            [
                "training.accumulate=1000: the training set has 10 batches, so a step takes all of them, and the "
                "training has 1 step; training.steps sets how many"
            ],
        ),
        (
            {"ema": 0.99},
            90,
            9,
            [
                "training.ema=0.99: averages over about 100 steps, 1 / (1 - ema), and the training "
                "has 90: 40% of what is saved is the initial weights"
            ],
        ),
        ({"validate_every": 90}, 90, 1, []),
        (
            {"validate_every": 91},
            90,
            1,
            ["training.validate_every=91: the training has 90 steps and is validated at its end"],
        ),
        ({"patience": 3}, 90, 5, []),
        ({"patience": 4}, 90, 5, ["training.patience=4: never ends a training of 5 validations"]),
        ({"weights": "best"}, 90, 2, []),
        (
            {"weights": "best"},
            90,
            1,
            ["training.weights=best: the training is validated once, at its end, so that the last are kept"],
        ),
    ],
)
def test_what_a_training_is_too_short_for(
    settings: dict[str, Any], steps: int, validations: int, notes: list[str]
) -> None:
    assert of_length(Training(**settings), steps, validations, 10) == notes


def test_bounds(tmp_path: Path) -> None:
    assert refused(tmp_path, "training.ema=1") == "training.ema=1: should be less than 1"
    assert refused(tmp_path, "training.clip_norm=0") == "training.clip_norm=0: should be greater than 0"
    assert refused(tmp_path, "training.accumulate=0") == "training.accumulate=0: should be greater than 0"


@pytest.mark.wide
def test_a_compiled_step_of_several_batches_trains_as_one_that_is_not(tmp_path: Path) -> None:
    """1,257 examples: an epoch's last batch is smaller, and is not compiled."""
    words = (
        *("precision=fp64", "training.batch_size=100", "training.accumulate=4", "training.epochs=2"),
        *("training.clip_norm=0.5", "training.log_every_n_steps=1", "schedule=cosine"),
    )
    found = []
    for compiled in ("false", "true"):
        run = finished(tmp_path, *words, f"backend.compile={compiled}")
        records = [record.metrics for record in read_metrics(run)]
        found.append([metrics["train/gradient_norm"] for metrics in records if "train/gradient_norm" in metrics])
        found.append([metrics["train/loss"] for metrics in records if "train/loss" in metrics])
    assert found[2] == pytest.approx(found[0], rel=1e-9)
    assert found[3] == pytest.approx(found[1], rel=1e-9)
    assert len(set(found[0])) > 4


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_an_average_of_narrow_weights_follows_them(tmp_path: Path, backend: str) -> None:
    """bfloat16 would round each of its moves away: it stayed at 0.4 where float32 comes to 0.87."""
    words = ("dataset=digits", f"backend={backend}", "model=mlp", "model.units=[16]", "precision=bf16")
    run = done(tmp_path, *words, "training.epochs=20", "training.ema=0.998", "tracking=none")
    assert metrics_of(run)["test/accuracy"].value > 0.75


def test_an_average_is_exact_and_leaves_the_weights_alone() -> None:
    net = torch.nn.Linear(2, 1, dtype=torch.bfloat16)
    for weight in net.parameters():
        torch.nn.init.zeros_(weight)
    average = Average(net, 0.999)
    for weight in net.parameters():
        torch.nn.init.ones_(weight)
    for _ in range(100):
        average.update()
    with average.in_the_net():
        assert [p.flatten()[0].item() for p in net.parameters()] == pytest.approx([1 - 0.999**100] * 2, rel=2**-8)
    assert all((p == 1).all() for p in net.parameters())
    assert [one.flatten()[0].item() for one in average.average] == pytest.approx([1 - 0.999**100] * 2, rel=1e-4)


def test_a_frozen_layers_inside_does_as_it_did() -> None:
    """A parameter of the whole net alone is frozen: dropout still drops, and the normalization still gathers."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = torch.nn.Parameter(torch.zeros(4))
            self.norm, self.drop = torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5)

    net = Net()
    layers.freeze_torch(net, {"shift"})
    net.train()  # as Lightning does after each validation
    assert (net.shift.requires_grad, net.norm.training, net.drop.training) == (False, True, True)
    frozen = {name for name in layers.from_torch(net) if name.startswith("norm.")}
    layers.freeze_torch(net, frozen)
    net.train()
    assert (net.norm.training, net.drop.training) == (False, True)


def test_biases_of_two_dimensions_do_not_decay() -> None:
    """As a GRU has them, of the inputs and of the state."""
    optimizer = experiment("torch", optimizer=("adamw", {"decay": "matrices"})).optimizer
    shapes = {"gru.kernel": (8, 12), "gru.bias": (2, 12), "norm.gamma": (8,), "dense.bias": (4,)}
    assert [name for name, shape in shapes.items() if optimizer.decays(name, shape)] == ["gru.kernel"]


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.parametrize("loader", ["memory", pytest.param("threads", marks=pytest.mark.wide)])
def test_no_other_step_is_taken_when_time_is_over(tmp_path: Path, backend: str, loader: str) -> None:
    """It took the rest of a block, of up to 64 steps."""
    result = pipeline(tmp_path, *DIGITS, f"backend={backend}", f"loader={loader}", "training.max_time=0.0001")
    assert result.returncode == 0, result.stderr
    assert "training ends at step 1 of 400" in result.stderr


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_limit_of_time_that_is_not_reached_changes_nothing(tmp_path: Path, backend: str) -> None:
    """It cuts the blocks of steps by what a step has taken."""
    words = (*DIGITS, f"backend={backend}", "training.accumulate=3", "training.epochs=2")
    runs_of = [done(tmp_path, *words), done(tmp_path, *words, "training.max_time=600")]
    digests = [read_json(run / "receipt.json")["weights_sha256"] for run in runs_of]
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("given", "trained", "compiled", "said"),
    [
        (2.0, 3.5, 6.0, "training.max_time=2: training took 9.50 s, of which 6.00 s compiling: a step under way is "),
        (2.0, 3.5, 0.0, "training.max_time=2: training took 3.50 s: a step under way is finished, and so is compiling"),
        (2.0, 2.5, 0.25, "None"),
        (100.0, 101.5, 2.0, "None"),
        (None, 101.5, 2.0, "None"),
    ],
)
def test_a_training_longer_than_its_time_says_so(
    given: float | None, trained: float, compiled: float, said: str
) -> None:
    """A compilation of half a minute passed a limit of five seconds without a word."""
    asked = experiment("torch", training=("default", {"max_time": given}))
    epoch = Epoch(number=1, seconds=trained, steps=6, units=100, train_loss=1.0)
    fit = Fit({}, (epoch,), Observation(how=""), parameters=4, peak_memory={})
    assert str(course.said_of_overtime(asked, fit, compiled)).startswith(said)


@pytest.mark.wide
def test_compiling_that_takes_all_the_time_is_in_the_result(tmp_path: Path) -> None:
    run = done(tmp_path, DIGITS[0], DIGITS[2], "backend=jax", "model=cnn", "training.max_time=0.1", "training.epochs=2")
    notes = [one for one in read_json(run / "result.json")["notes"] if one.startswith("training.max_time=0.1: ")]
    receipt = read_json(run / "receipt.json")
    assert (len(notes) == 1) == (receipt["training_s"] + receipt.get("compile_s", 0.0) > 1.1)


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.wide)])
def test_the_step_under_way_is_finished_when_time_is_over(tmp_path: Path, backend: str) -> None:
    """Of more batches than a block holds: JAX ended at step 0, with the initial weights."""
    words = ("training.batch_size=5", "training.accumulate=100", "training.max_time=0.0001", "training.epochs=3")
    result = pipeline(tmp_path, *DIGITS, f"backend={backend}", *words)
    assert result.returncode == 0, result.stderr
    assert "training ends at step 1 of 9" in result.stderr
    (run,) = runs(tmp_path)
    (epoch,) = [one for one in read_metrics(run) if "epoch/number" in one.metrics]
    assert epoch.step == 1


def test_a_monitored_score_that_is_no_number_ends_the_training() -> None:
    """Every NaN counted as better than the one before: `patience` never ended, and `best` was the last."""
    best = Best(Training(monitor="validation/accuracy", weights="best"), Classification((8, 8, 1), ("a", "b")))
    best.take((0.5, 0.9), 10, 1, dict)
    with pytest.raises(RunError, match=r"^validation/accuracy became nan at step 20; training\.monitor"):
        best.take((0.4, float("nan")), 20, 2, dict)
    assert (best.value, best.step) == (0.9, 10)


@pytest.mark.wide
def test_a_gradient_is_clipped_in_float16_by_a_norm_beyond_it(tmp_path: Path) -> None:
    """torch gives the norm in the gradients' dtype: an infinite one made all of them 0, and nothing was trained."""
    run = done(
        tmp_path, "experiment=diabetes", "dataset.normalise=false", "model.units=[1024]", "optimizer=sgd",
        "optimizer.learning_rate=0.01", "precision=fp16", "training.clip_norm=1", "training.epochs=2",
        "training.log_every_n_steps=1",
    )  # fmt: skip
    norms = [norm for record in read_metrics(run) if (norm := record.metrics.get("train/gradient_norm"))]
    assert len(norms) > 5 and max(norms) > 65_504
    losses = [loss for record in read_metrics(run) if (loss := record.metrics.get("epoch/train_loss"))]
    assert losses[1] < 0.9 * losses[0]
