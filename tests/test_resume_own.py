"""stage=lightning and stage=keras: a user's own training that is killed goes on from its last epoch's end."""

from __future__ import annotations

import io
import signal
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (bfloat16, by its name)
import numpy as np
import pytest
from command import pipeline, refused, runs
from rich.console import Console
from test_own_trainings import KERAS, KNOWN, journal
from test_resume import killed, result_of

from pipeline.backends.keras import remembered, state
from pipeline.backends.shared.own import Watch
from pipeline.errors import UserError
from pipeline.runs.checkpoint import Checkpoint
from pipeline.runs.journal import Journal
from pipeline.runs.json_files import read_json
from pipeline.runs.result import metrics_of
from pipeline.runs.run import Run

LIT = ("stage=lightning", "stage.module=own_lightning.Lit", "stage.data=own_lightning.Clouds", "tracking=none")
OF_KERAS = ("stage=keras", "stage.model=own_keras.model", "stage.data=own_keras.arrays", "tracking=none")
EPOCHS = 40


def goes_on(folder: Path, words: tuple[str, ...], number: int, known: dict[str, str]) -> Path:
    """Killed, and gone on with by `resume=latest`: the run."""
    each = "training.checkpoint.every=8"
    assert killed(folder, (*words, each, f"stage.epochs={EPOCHS}"), 0.1, number, **known) in (-9, 143)
    result = pipeline(folder, "resume=latest", **known)
    assert result.returncode == 0, result.stderr
    (run,) = runs(folder)
    (entry,) = read_json(run / "receipt.json")["resumed"]
    epochs = [line["step"] // 8 for line in journal(run) if "val_loss" in str(line) and not line["step"] % 8]
    assert epochs == list(range(1, EPOCHS + 1))  # each once
    assert entry["note"] == f"not exact: from the end of epoch {entry['step'] // 8}"
    found = metrics_of(run)
    assert (found["epochs"].value, found["steps"].value) == (EPOCHS, 8 * EPOCHS)
    assert not (run / "checkpoints").exists()
    return run


@pytest.mark.wide
def test_a_lightning_module_goes_on(tmp_path: Path) -> None:
    goes_on(tmp_path, LIT, signal.SIGTERM, KNOWN)


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_without_chance_it_ends_as_one_that_nobody_killed(tmp_path: Path, backend: str) -> None:
    """Neither draws anything after its start: weights, momentum and the learning rate's schedule go on."""
    words, known = (LIT, KNOWN) if backend == "torch" else (OF_KERAS, KERAS)
    words = (*words, f"backend={backend}", *(() if backend == "torch" else ("+stage.fit.shuffle=false",)))
    run = goes_on(tmp_path / "killed", words, signal.SIGKILL, known)
    (tmp_path / "whole").mkdir()
    assert pipeline(tmp_path / "whole", *words, f"stage.epochs={EPOCHS}", **known).returncode == 0
    (whole,) = runs(tmp_path / "whole")
    assert result_of(run) == result_of(whole)
    digests = [read_json(one / "receipt.json")["weights_sha256"] for one in (run, whole)]
    assert digests[0] == digests[1]


@pytest.mark.wide
def test_before_the_first_epochs_end_there_is_nothing_to_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*LIT, "stage.epochs=100", "training.checkpoint.every_s=0")
    monkeypatch.setattr("test_resume.CHECKPOINTS", "runs/*/metrics.jsonl")
    assert killed(tmp_path, words, 0.5, signal.SIGTERM, **KNOWN) == 143
    (run,) = runs(tmp_path)
    assert (
        refused(tmp_path, f"resume={run.name}", **KNOWN)
        == f"resume={run.name}: {run.name} has no checkpoint; run it again"
    )


@pytest.mark.parametrize("name", ["fit_s", "training_s"])
def test_the_time_before_a_kill_is_in_that_of_the_fit(tmp_path: Path, name: str) -> None:
    """Of an older version it was left out, with training.checkpoint.strict=false."""
    checkpoint = Checkpoint(tmp_path, 8, {"epochs": 1, "marks": {}, "seconds": 0.0, name: 3600.0})
    run = Run(Journal.begin(tmp_path, "own", {}), Console(file=io.StringIO()), checkpoint)
    assert 3600 <= Watch(run).fit_s < 3660
    run.journal.finish("FINISHED")


MORTAL = ("stage=lightning", "stage.module=own_lightning.Mortal", "stage.data=own_lightning.Clouds", "tracking=none")


def died(folder: Path, words: tuple[str, ...], where: str, known: dict[str, str]) -> Path:
    """Killed by its own code at an epoch or in the test, and gone on with: the run."""
    folder.mkdir(exist_ok=True)
    (folder / f"die-{where}").touch()
    assert pipeline(folder, *words, "training.checkpoint.every=8", **known).returncode == -signal.SIGKILL
    (folder / f"die-{where}").unlink()
    result = pipeline(folder, "resume=latest", **known)
    assert result.returncode == 0, result.stderr
    (run,) = runs(folder)
    return run


def lines(run: Path) -> list[dict[str, float]]:
    """Of the journal, but for the times."""
    return [{name: value for name, value in line.items() if name != "time"} for line in journal(run)]


@pytest.mark.wide
def test_what_a_module_does_at_an_epochs_end_is_kept(tmp_path: Path) -> None:
    """It counts and logs there. Journal, result and weights are those of a run that nobody killed."""
    words = (*MORTAL, "stage.epochs=4")
    run = died(tmp_path / "killed", words, "2", KNOWN)
    (tmp_path / "whole").mkdir()
    assert pipeline(tmp_path / "whole", *words, **KNOWN).returncode == 0
    (whole,) = runs(tmp_path / "whole")
    assert metrics_of(run)["ended"].value == metrics_of(whole)["ended"].value == 4
    assert lines(run) == lines(whole)
    assert result_of(run) == result_of(whole)
    digests = [read_json(one / "receipt.json")["weights_sha256"] for one in (run, whole)]
    assert digests[0] == digests[1]


@pytest.mark.wide
def test_a_training_that_had_stopped_early_is_tested_only(tmp_path: Path) -> None:
    words = (*MORTAL, "stage.epochs=9", "stage.arguments.stops=true")
    run = died(tmp_path / "killed", words, "test", KNOWN)
    found = metrics_of(run)
    assert (found["epochs"].value, found["ended"].value) == (2, 2)
    (tmp_path / "whole").mkdir()
    assert pipeline(tmp_path / "whole", *words, **KNOWN).returncode == 0
    (whole,) = runs(tmp_path / "whole")
    assert result_of(run) == result_of(whole)
    assert read_json(run / "result.json")["last_epoch"]


@pytest.mark.wide
def test_callbacks_of_keras_go_on_with_what_they_remember(tmp_path: Path) -> None:
    """The best weights, of an epoch before the checkpoint, are the result's; and the first epoch's number counts."""
    words = (
        *OF_KERAS,
        "stage.callbacks=own_keras.best_kept",
        "backend=jax",
        "stage.epochs=12",
        "+stage.fit.shuffle=false",
        "+stage.fit.initial_epoch=2",
    )
    run = died(tmp_path / "killed", words, "32", KERAS)
    (tmp_path / "whole").mkdir()
    assert pipeline(tmp_path / "whole", *words, **KERAS).returncode == 0
    (whole,) = runs(tmp_path / "whole")
    assert metrics_of(run)["epochs"].value == metrics_of(whole)["epochs"].value == 7
    assert result_of(run) == result_of(whole)
    digests = [read_json(one / "receipt.json")["weights_sha256"] for one in (run, whole)]
    assert digests[0] == digests[1]


@pytest.mark.wide
@pytest.mark.parametrize("model", ["adaptive", "late"])
def test_what_keras_makes_with_the_first_step_is_put_back(tmp_path: Path, model: str) -> None:
    """On TensorFlow: an optimizer's moments, and the weights of a model that was not built."""
    words = (
        *("stage=keras", f"stage.model=own_keras.{model}", "stage.data=own_keras.arrays", "tracking=none"),
        *("stage.callbacks=own_keras.best_kept", "backend=tensorflow", "stage.epochs=6", "+stage.fit.shuffle=false"),
    )
    run = died(tmp_path / "killed", words, "32", KERAS)
    (tmp_path / "whole").mkdir()
    assert pipeline(tmp_path / "whole", *words, **KERAS).returncode == 0
    (whole,) = runs(tmp_path / "whole")
    assert result_of(run) == result_of(whole)
    digests = [read_json(one / "receipt.json")["weights_sha256"] for one in (run, whole)]
    assert digests[0] == digests[1]


class Remembers:
    def __init__(self) -> None:
        self.best, self.wait, self.history, self.params = float("-inf"), 0, {"loss": [1.0]}, {"epochs": 3}
        self.best_weights: list[np.ndarray] | None = None
        self.least: Any = np.float32(3)
        self.compare = max


def test_what_a_callback_remembers_is_read_back(tmp_path: Path) -> None:
    before, after = Remembers(), Remembers()
    before.best, before.wait, before.history, before.least = 0.5, 2, {"loss": [1.0, 0.5]}, np.float32(1)
    before.params = {"epochs": 9}
    before.best_weights = [np.arange(3, dtype="float32"), np.ones(2, dtype="bfloat16")]
    state.write([np.zeros(1)], tmp_path / "state", remembered.taken([before]))
    remembered.put_back([after], state.read_beside(tmp_path / "state", 1))
    assert (after.best, after.wait, after.history, after.least) == (0.5, 2, {"loss": [1.0, 0.5]}, 1)
    assert (after.params, after.compare, type(after.least)) == ({"epochs": 3}, max, np.float32)
    assert after.best_weights is not None
    for one, other in zip(before.best_weights, after.best_weights, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_a_state_of_another_model_is_refused(tmp_path: Path) -> None:
    state.write([np.zeros(1)], tmp_path / "state", remembered.taken([Remembers()]))
    with pytest.raises(UserError, match="state: holds 1 arrays, and model and optimizer have 3; train again"):
        state.read_beside(tmp_path / "state", 3)


@pytest.mark.wide
def test_a_state_that_cannot_be_written_does_not_end_the_training(tmp_path: Path) -> None:
    words = (*(word.replace(".Lit", ".Full") for word in LIT), "stage.epochs=2", "training.checkpoint.every=8")
    result = pipeline(tmp_path, *words, "+stage.trainer.enable_checkpointing=false", **KNOWN)
    assert result.returncode == 0, result.stderr
    assert "no checkpoint of step 8: No space left on device" in result.stdout + result.stderr
