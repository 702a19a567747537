"""stage=lightning and stage=keras: a user's own training that is killed goes on from its last epoch's end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from command import pipeline, refused, runs
from test_own_trainings import KERAS, KNOWN, journal
from test_resume import killed

from pipeline.runs.json_files import read_json
from pipeline.runs.result import metrics_of

LIT = ("stage=lightning", "stage.module=own_lightning.Lit", "stage.data=own_lightning.Clouds", "tracking=none")
OF_KERAS = ("stage=keras", "stage.model=own_keras.model", "stage.data=own_keras.arrays", "tracking=none")
EPOCHS = 40


def goes_on(folder: Path, words: tuple[str, ...], number: int, known: dict[str, str]) -> Path:
    """Killed, and gone on with by `resume=latest`: the run."""
    assert killed(folder, (*words, f"stage.epochs={EPOCHS}"), 0.1, number, **known) in (-9, 143)
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
        == f"resume={run.name}: {run.name} has no checkpoint; run it anew"
    )
