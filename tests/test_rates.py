"""The rate of a training is of its warm periods: not of the first one of each process."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import in_backend
import numpy as np
import pytest
from command import done
from rich.console import Console

from pipeline.backends.shared.progress import Watch
from pipeline.backends.shared.progress import _line as line_of
from pipeline.loaders.batch_plan import Block, Plan
from pipeline.profilers.session import head
from pipeline.runs.checkpoint import Checkpoint
from pipeline.runs.fit import Epoch, Fit, Observation
from pipeline.runs.journal import Journal
from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_metrics
from pipeline.runs.run import Run
from pipeline.stages.rates import left_out, steady, timings
from pipeline.stages.training_table import normalisation_row, overhead_row, time_rows, weights_row
from pipeline.tasks.classification import Classification
from pipeline.tasks.regression import Regression

BATCHES = 21  # of 32 examples, the last one of 9
EPOCHS = 5


def watched(folder: Path, *stops: tuple[int, int]) -> Watch:
    """A training of five epochs, stopped after so many epochs and so many batches of the next, and gone on with."""
    wanted = in_backend.experiment("torch", training=("default", {"epochs": EPOCHS}))
    plan, checkpoint = Plan.of(wanted, 649), None
    for epochs, batches in (*stops, (EPOCHS, 0)):
        run = Run(Journal.begin(folder, "watched", {}), Console(file=io.StringIO()), checkpoint)
        watch = Watch(wanted, run, Classification((8, 8, 1), tuple("0123456789")), plan)
        while len(watch.epochs) < epochs:
            advance(watch, plan, BATCHES)
            watch.pause()
            watch.end_epoch()
        if batches:
            advance(watch, plan, batches)
        kept = json.loads(json.dumps(watch.keeper.progress() | {"marks": {}, "seconds": 0.0}))
        checkpoint = Checkpoint(run.folder, watch.step, kept)
        run.journal.finish("KILLED")
    return watch


def advance(watch: Watch, plan: Plan, end: int) -> None:
    """Up to a batch of the epoch that is due."""
    watch.begin_epoch()
    epoch, begin = divmod(watch.batches, BATCHES)
    watch.block(Block(plan, epoch, begin, end - begin), np.ones(end - begin), np.ones(end - begin))


@pytest.mark.parametrize(
    ("stops", "counted", "said"),
    [
        ([], [2, 3, 4, 5], "the first epoch, cold, not counted"),
        ([(0, 8)], [2, 3, 4, 5], "the first epoch, cold, not counted"),
        ([(2, 0)], [2, 4, 5], "the first epoch and 1 of a resumption, cold, not counted"),
        ([(2, 8)], [2, 4, 5], "the first epoch and 1 of a resumption, cold, not counted"),
        ([(2, 8), (2, 9)], [2, 4, 5], "the first epoch and 1 of a resumption, cold, not counted"),
        ([(1, 3), (3, 0)], [3, 5], "the first epoch and 2 of a resumption, cold, not counted"),
        ([(5, 0)], [2, 3, 4, 5], "the first epoch, cold, not counted"),
        ([(1, 3), (2, 0), (3, 20), (4, 0)], [1, 2, 3, 4, 5], "5 epochs, each with a cold start, which is included"),
    ],
)
def test_the_first_period_of_each_process_is_left_out(
    tmp_path: Path, stops: list[tuple[int, int]], counted: list[int], said: str
) -> None:
    """Whether a process went on between two epochs or in the middle of one, and after other stops too."""
    watch = watched(tmp_path, *stops)
    epochs = tuple(watch.epochs)
    assert [epoch.number for epoch in epochs] == [1, 2, 3, 4, 5]
    assert [epoch.number for epoch in steady(epochs)] == counted
    assert left_out(epochs) == said
    rate = timings(watch.run, epochs, "images")["training_rate"]
    assert (rate["n"], rate["cold"]) == (len(counted), len(counted) == EPOCHS)
    assert rate["timed_s"] == sum(epoch.seconds for epoch in epochs if epoch.number in counted)


def test_a_single_epoch_is_cold_and_counted() -> None:
    epochs = (Epoch(1, 1.0, 5, 8, 0.5, cold=True),)
    assert steady(epochs) == epochs
    assert left_out(epochs) == "one epoch, cold start included"
    assert left_out(epochs, "period (training.validate_every=250)") == (
        "one period (training.validate_every=250), cold start included"
    )


def test_a_rate_of_milliseconds_is_called_uncertain() -> None:
    """24,708 images/s of 64 images in 2.6 ms had five digits, beside a training of 0.00 s."""
    epochs = tuple(Epoch(number, 0.0013, 4, 64, 0.5, cold=number == 1) for number in (1, 2, 3))
    rate: dict[str, Any] = {"timed_s": 0.0026, "cores_of_others": None}
    receipt: dict[str, Any] = {"wall_time_s": 4.0, "training_s": 0.0039, "training_rate": rate}
    fit = Fit({}, epochs, Observation(how=""), parameters=4, peak_memory={})
    shown = dict(time_rows(fit, receipt, "images", "epoch"))
    assert shown["wall time"] == "4.00 s, of which training 3.90 ms"
    assert shown["training rate"].endswith("cold, not counted; uncertain, timed over 2.60 ms")
    receipt["training_rate"] |= {"timed_s": 0.5}
    assert dict(time_rows(fit, receipt, "images", "epoch"))["training rate"].endswith("cold, not counted")


def test_small_losses_are_not_written_as_zero() -> None:
    """Of targets that are small numbers, as lengths in metres, each epoch had the loss 0.0000."""
    small = Epoch(1, 1.0, 5, 8, 2.34e-7, train_score=3.1e-4, validation_loss=2.5e-7, validation_score=3.2e-4)
    said = line_of(small, "epoch 1/1", Regression((1,), 1))
    assert said == "epoch 1/1  loss 2.3e-07  mean_absolute_error 3.1e-04  validation 3.2e-04  8 examples/s"
    kept = {"weights": "best", "step": 5, "monitor": "validation/loss", "value": 2.5e-7}
    assert weights_row(kept) == [("weights", "of step 5, the best by validation/loss (2.5e-07)")]
    assert normalisation_row({"mean": [2e-5], "std": [1e-6]}) == [
        ("normalised", "by the training examples: mean 2.0e-05; standard deviation 1.0e-06")
    ]


def test_a_checkpoint_that_does_not_say_which_epochs_were_cold_had_the_first_one_cold(tmp_path: Path) -> None:
    """Of an older version, with training.checkpoint.strict=false."""
    before = watched(tmp_path, (2, 0))
    kept = json.loads(json.dumps(before.keeper.progress() | {"marks": {}, "seconds": 0.0}))
    for epoch in kept["epochs"]:
        del epoch["cold"]
    run = Run(Journal.begin(tmp_path, "again", {}), Console(file=io.StringIO()), Checkpoint(tmp_path, 1, kept))
    watch = Watch(in_backend.experiment("torch"), run, before.task, before.plan)
    assert [epoch.cold for epoch in watch.epochs] == [True, False, False, False, False]


def test_a_profile_of_accumulated_steps_is_of_batches() -> None:
    """It named optimizer steps that the training did not have."""
    seen = {"profiler": "torch", "counts": "batches", "steps": [21, 25], "epoch": 1, "step_s": 0.002}
    assert head(seen).startswith("# profiler=torch: batches 21 to 25 (counted from 1), in epoch 1; 2.000 ms a batch")
    assert "optimizer steps 21 to 25" in head({**seen, "counts": "steps"})
    ((_, text),) = overhead_row({**seen, "overhead": None})
    assert text == "torch: batches 21 to 25 took 2.00 ms each (mean); overhead not measured: no batches after them"


def test_the_price_of_a_profiler_says_of_what_it_is() -> None:
    """Of a step of more than a second it showed 1.23e+03 ms."""
    seen = {"profiler": "torch", "steps": [21, 25], "step_s": 1.2345, "step_after_s": 1.0, "steps_after": 75}
    ((_, text),) = overhead_row({**seen, "overhead": 0.2345})
    assert text == (
        "torch: steps 21 to 25 took 1,234 ms each (mean) with it, 1,000 ms (median) without it in the 75 after them: "
        "overhead +23%"
    )


@pytest.mark.wide
@pytest.mark.parametrize(
    ("words", "timed"),
    [
        pytest.param("backend=tensorflow loader=threads training.steps=2", 400, id="tensorflow"),
        pytest.param("backend=tensorflow loader=threads training.steps=1", 400, id="tensorflow, one step"),
        pytest.param("backend.compile=true training.steps=3", 800, id="torch"),  # its first is not compiled
    ],
)
def test_a_step_that_compiles_is_in_no_rate(tmp_path: Path, words: str, timed: int) -> None:
    """Its examples counted and its time did not: 32,900 images/s of two steps, one of which was timed."""
    receipt = read_json(done(tmp_path, "dataset=digits", "training.batch_size=400", *words.split()) / "receipt.json")
    assert receipt["training_rate"]["median"] * receipt["training_s"] == pytest.approx(timed)
    assert receipt["wall_time_s"] > receipt["training_s"] + receipt.get("compile_s", 0.0)  # compiling is not training


@pytest.mark.wide
def test_compiling_on_tensorflow_is_no_training_however_batches_come(tmp_path: Path) -> None:
    """The program of the last, smaller batch was compiled within the only epoch that counted: 469 in place of 22,000
    images/s."""
    words = (
        "backend=tensorflow",
        "dataset=digits",
        "loader=threads",
        "training.steps=60",
        "training.validate_every=20",
    )
    receipt = read_json(done(tmp_path, *words) / "receipt.json")
    assert receipt["compile_s"] > receipt["training_s"]


@pytest.mark.wide
def test_clipping_takes_layers_of_several_dtypes_on_tensorflow(tmp_path: Path) -> None:
    words = ("experiment=layer_dtypes", "dataset=digits", "backend=tensorflow", "training.steps=20")
    for loader in ("memory", "threads"):
        run = done(tmp_path, *words, f"loader={loader}", "training.clip_norm=0.1", "training.log_every_n_steps=1")
        norms = [record.metrics.get("train/gradient_norm", 0.0) for record in read_metrics(run)]
        assert max(norms) > 0.1 and np.isfinite(norms).all()


STREAMED = """
import sys
from pathlib import Path
from pipeline.ready import ready_again
from pipeline.runs.records import read_config
from pipeline.datasets.loading import load_data

experiment, resolved = ready_again(read_config(Path(sys.argv[1])), Path(sys.argv[1]), "run")
experiment.backend.load()
from pipeline.backends.keras import breakdown, fit

data = load_data(experiment)
with breakdown.runtime_settings(experiment, resolved):
    model, *_ = fit.initial_model(experiment, data.task.shapes, resolved)
    made = fit.optimizer_of(experiment, model, resolved), fit.widened_loss(experiment)
    engine = fit.engine_module.Engine(experiment, data.task, model, *made)
    go = breakdown.training_go(engine, experiment, data, 0.001)
    for _ in range(3):
        go()
    engine.sync()
    print(type(go).__name__, 3 * go.steps, int(engine.optimizer.iterations.value))
"""


@pytest.mark.wide
@pytest.mark.parametrize("loader", ["threads", "memory"])
def test_the_steps_that_are_taken_apart_update_as_often_as_the_trainings_do(tmp_path: Path, loader: str) -> None:
    """Streamed, each batch was the first of two: no update was ever taken, and its time was none."""
    words = ("backend=jax", "dataset=digits", "training.accumulate=2", f"loader={loader}", "training.epochs=1")
    run = done(tmp_path, *words)
    shown = subprocess.run([sys.executable, "-c", STREAMED, str(run)], capture_output=True, text=True, check=True)
    kind, batches, updates = shown.stdout.split()[-3:]
    assert kind == {"threads": "Stream", "memory": "Resident"}[loader]
    assert 0.4 < int(updates) / int(batches) < 0.6


def test_a_window_with_the_first_step_has_no_overhead() -> None:
    """On JAX its compilation counted: +1607490 %."""
    profile = {"profiler": "memory", "steps": [1, 2], "step_s": 0.9, "step_after_s": 0.4, "steps_after": 5}
    ((_, text),) = overhead_row({**profile, "overhead": None, "cold": True})
    assert text.endswith("overhead not measured: the first step, which starts cold, is among them")


@pytest.mark.parametrize(("overhead", "said"), [(0.25, ": overhead +25%"), (-0.41, ": no overhead beyond their noise")])
def test_a_profiler_makes_no_step_faster(overhead: float, said: str) -> None:
    profile = {"profiler": "memory", "steps": [21, 25], "step_s": 0.5, "step_after_s": 0.4, "steps_after": 5}
    ((_, text),) = overhead_row({**profile, "overhead": overhead})
    assert text.endswith(said)
