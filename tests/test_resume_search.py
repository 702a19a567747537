"""A search that was killed in a trial goes on with that trial's run, not with another point."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest
from command import environment, pipeline, status
from test_search import study
from test_sweep import trained

from pipeline.runs.json_files import read_json
from pipeline.sweep.search_killed import TRIES

WORDS = (
    *("-m", "hydra/sweeper=optuna", "dataset=digits", "model=linear", "tracking=none", "sweep.jobs=1"),
    *("optimizer.learning_rate=tag(log,interval(1e-4,1e-1))", "training.epochs=60", "training.batch_size=8"),
    *("training.checkpoint.every=50", "hydra.sweeper.pruner=median", "hydra.sweeper.trials=3"),
)


@pytest.mark.wide
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_trial_goes_on(tmp_path: Path, number: int) -> None:
    process = begun(tmp_path, WORDS, until=second_has_a_checkpoint)
    ended(process, number)
    before = {run.name: status(run).state for run in trained(tmp_path)}
    asked = [trial.params for trial in study(tmp_path)]
    result = pipeline(tmp_path, *WORDS)
    assert result.returncode == 0, result.stderr
    assert "3 trials, 1 of them done before" in result.stderr
    runs = trained(tmp_path)
    killed = [run for run in runs if before.get(run.name) == "KILLED" or (run.name in before and run != runs[0])]
    assert len(runs) == 3
    assert [read_json(run / "receipt.json")["resumed"][0]["step"] > 0 for run in killed] == [True]
    trials = study(tmp_path)
    assert [trial.state.name for trial in trials].count("COMPLETE") == 3
    killed_trial, again = (trial for trial in trials if trial.params == asked[1])
    assert (killed_trial.state.name, again.state.name) == ("FAIL", "COMPLETE")
    assert list(again.intermediate_values) == list(range(1, 61))  # also those before the kill


@pytest.mark.wide
def test_a_trial_that_was_killed_before_its_first_checkpoint_is_run_again(tmp_path: Path) -> None:
    """Another point was proposed in its place, so that a kill changed what a search looks at."""
    words = [word for word in WORDS if "checkpoint" not in word] + ["training.checkpoint.every_s=3600"]
    process = begun(tmp_path, words, until=lambda folder: len(trained(folder)) > 1)
    ended(process, signal.SIGKILL)
    killed, asked = trained(tmp_path)[1], [trial.params for trial in study(tmp_path)]
    assert len(asked) == 2 and not list((killed / "checkpoints").glob("step-*"))
    result = pipeline(tmp_path, *words)
    assert result.returncode == 0, result.stderr
    trials = study(tmp_path)
    assert [trial.state.name for trial in trials if trial.params == asked[1]] == ["FAIL", "COMPLETE"]
    assert [trial.state.name for trial in trials].count("COMPLETE") == 3
    assert status(killed).state == "KILLED" and len(trained(tmp_path)) == 4


FRAIL = """
import os, signal
from pathlib import Path
from pipeline.contracts import Model
from pipeline.spec import spec

@spec
class Frail(Model):
    scale: float = 1.0

    def torch(self, shapes):
        from torch import nn

        class Net(nn.Module):
            def __init__(self, scale):
                super().__init__()
                self.scale, self.seen = scale, 0
                self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

            def forward(self, x):
                self.seen += self.training
                if self.seen > 20:  # no longer a rehearsal
                    dies = Path(os.environ["DIES"])
                    if not dies.exists():  # the first one that trains
                        dies.write_text(str(self.scale))
                    if dies.read_text() == str(self.scale):
                        os.kill(os.getpid(), signal.SIGKILL)
                return self.scale * self.layers(x)

        return Net(self.scale)
"""


@pytest.mark.wide
def test_in_place_of_a_trial_that_dies_by_itself_another_point_is_tried(tmp_path: Path) -> None:
    """As of memory that runs out there each time: the same point came first in each session, which ended with it."""
    (tmp_path / "frail.py").write_text(FRAIL)
    model = ("model=linear", "model._target_=frail.Frail", "+model.scale=interval(0.1,1)")
    fixed = [word for word in WORDS if not word.startswith(("optimizer", "training", "model", "hydra.sweeper.trials"))]
    words = (*fixed, *model, "training.epochs=2", "hydra.sweeper.trials=2")
    variables = {"PIPELINE_MODULES": "frail", "PYTHONPATH": ".", "DIES": str(tmp_path / "dies")}
    first = pipeline(tmp_path, *words, **variables)
    assert first.returncode == 1 and "killed by SIGKILL" in first.stderr, first.stderr
    dead = float((tmp_path / "dies").read_text())
    result = pipeline(tmp_path, *words, **variables)
    assert result.returncode == 0, result.stderr
    points = [([*trial.params.values()] == [dead], trial.state.name) for trial in study(tmp_path)]
    assert sorted(points) == [(False, "COMPLETE"), (False, "COMPLETE"), (True, "FAIL")]


@pytest.mark.wide
def test_a_trial_that_dies_by_itself_each_time_is_given_up(tmp_path: Path) -> None:
    """With a checkpoint it came first in each session, for ever, and a session of one trial tried nothing else."""
    with_checkpoint = "if self.seen > 20 and any(Path(os.environ['RUNS']).glob('*/checkpoints/step-*')):"
    (tmp_path / "frail.py").write_text(FRAIL.replace("if self.seen > 20:", with_checkpoint))
    model = ("model=linear", "model._target_=frail.Frail", "+model.scale=interval(0.1,1)")
    fixed = [word for word in WORDS if not word.startswith(("optimizer", "training", "model", "hydra.sweeper.trials"))]
    words = (
        *fixed,
        *model,
        "training.epochs=60",
        "training.batch_size=32",
        "training.checkpoint.every=5",
        "hydra.sweeper.trials=2",
    )
    variables = {"PIPELINE_MODULES": "frail", "PYTHONPATH": ".", "DIES": str(tmp_path / "dies")}
    variables["RUNS"] = str(tmp_path / "runs")
    for session in range(TRIES):
        result = pipeline(tmp_path, *words, **variables)
        assert result.returncode == 1 and "killed by SIGKILL" in result.stderr, (session, result.stderr)
        assert "it is not tried again" not in result.stderr
    (dead,) = (run for run in trained(tmp_path) if status(run).state == "KILLED")
    assert len(read_json(dead / "receipt.json")["resumed"]) == TRIES - 1
    result = pipeline(tmp_path, *words, **variables)
    assert result.returncode == 0, result.stderr
    scale = (tmp_path / "dies").read_text()
    assert f"model.scale={scale}: its process has died {TRIES} times; it is not tried again (" in result.stderr
    points = [(str(trial.params["+model.scale"]) == scale, trial.state.name) for trial in study(tmp_path)]
    assert sorted(points) == [(False, "COMPLETE"), (False, "COMPLETE"), *[(True, "FAIL")] * TRIES]


def begun(folder: Path, words: Sequence[str], until: Callable[[Path], bool]) -> subprocess.Popen[bytes]:
    """The command as a process of which `until` is true by now, or that has ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", *words],
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and not until(folder):
        time.sleep(0.01)
    return process


def ended(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal, and wait for the end of the process and of its worker, which ends by itself where that is killed.

    The process had not ended before.
    """
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    assert process.wait(timeout=600) in (-9, 143)
    _, alive = psutil.wait_procs(family, timeout=600)
    assert not alive


def second_has_a_checkpoint(folder: Path) -> bool:
    runs = trained(folder)
    return len(runs) > 1 and any((runs[1] / "checkpoints").glob("step-*"))
