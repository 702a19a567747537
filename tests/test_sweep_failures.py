"""Sweeps on bad days: cells that fail in every way, workers and sweeps that are killed, and going on afterwards."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from command import COMMAND, done, environment, pipeline, refused, runs, status
from in_backend import experiment, on_cpu
from rich.console import Console
from test_sweep import QUIET, grids, table, trained

from pipeline.errors import UserError
from pipeline.runs.checkpoint import newest_step
from pipeline.runs.records import read_config, read_metrics
from pipeline.runs.run import Run
from pipeline.sweep.plan import Cell, Decision
from pipeline.sweep.schedule import Listed, Outcome
from pipeline.sweep.session import Session
from pipeline.sweep.workers import Workers

# A model that does what a bad day does, by its number: 15 are fine, 5 are not, each in its own way.
PLANTED = """
import os, signal, sys, time
from pipeline.contracts import Model
from pipeline.models.linear import Linear
from pipeline.spec import spec

@spec
class Planted(Model):
    number: int = 0

    def torch(self, shapes):
        if self.number == 3:
            raise KeyError("planted")
        if self.number == 6:
            sys.exit(0)
        if self.number == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.number == 12:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1000)
        if self.number == 15:
            os._exit(0)
        return Linear().torch(shapes)
"""
# A model that waits in the middle of the training of the second cell, while a file is there.
HELD = """
import os, time
from pathlib import Path
from pipeline.contracts import Model
from pipeline.spec import spec

@spec
class Held(Model):
    def torch(self, shapes):
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.steps, self.layers = 0, nn.Sequential(nn.Flatten(), nn.Linear(64, shapes.classes))

            def forward(self, x):
                self.steps += self.training
                is_second = len(list(Path(os.environ["RUNS"]).glob("*/status.json"))) == 3  # the grid's is one
                while self.steps > 200 and is_second and Path(os.environ["HOLD"]).exists():
                    time.sleep(0.05)
                return self.layers(x)

        return Net()
"""
LANGUAGE: tuple[str, ...] = (
    *("stage=transformer", "dataset=text", "dataset.path=mine.txt", "dataset.context=16", "model.layers=1"),
    *("model.heads=2", "model.width=16", "training.batch_size=8", "training.steps=2", "training.validate_every=2"),
    *("training.log_every_n_steps=1", "schedule.warm_up=1", "stage.baselines=false", "stage.attention=false"),
    "tracking=none",
)
BAD = {"3", "6", "9", "12", "15"}


@pytest.mark.wide
def test_five_bad_cells_of_twenty_cost_no_other(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    environ = {"PIPELINE_MODULES": "planted", "PYTHONPATH": os.pathsep.join([str(tmp_path), *_python_path()])}
    words = ("-m", f"--config-dir={tmp_path / 'conf'}", f"model={','.join(f'n{number}' for number in range(20))}")
    (tmp_path / "conf" / "model").mkdir(parents=True)
    for number in range(20):
        text = f"# planted\n_target_: planted.Planted\nnumber: {number}\n"
        (tmp_path / "conf" / "model" / f"n{number}.yaml").write_text(text)
    result = pipeline(tmp_path, *words, *QUIET, "sweep.timeout=30", **environ)
    assert result.returncode == 1
    rows = {row["model"].removeprefix("n"): row for row in table(grids(tmp_path)[0])}
    assert {number for number, row in rows.items() if row["state"] != "done"} == BAD
    reasons = {number: (rows[number]["state"], rows[number]["reason"]) for number in sorted(BAD, key=int)}
    assert reasons == {
        "3": ("failed", "model: its builder fails: KeyError: 'planted', in torch (planted.py, line 13)"),
        "6": ("failed", "SystemExit: 0"),
        "9": ("killed", "killed by SIGKILL (the system does that when memory runs out)"),
        "12": ("failed", "took longer than sweep.timeout=30 s"),
        "15": ("killed", "its process ended without a message"),
    }
    assert "15 done · 3 failed · 2 killed · 0 skipped" in result.stderr
    assert "Traceback" not in result.stderr
    assert all(status(run).state != "RUNNING" for run in runs(tmp_path))
    assert status(grids(tmp_path)[0]).state == "FAILED"
    again = pipeline(tmp_path, *words, *QUIET, "sweep.timeout=30", "sweep.dry_run=true", **environ)
    assert (
        "20 cells: 2 to run, 15 finished before, 3 failed before" in again.stdout
    )  # the killed run again by themselves
    retried = pipeline(tmp_path, *words, *QUIET, "sweep.retry=failed", "sweep.dry_run=true", **environ)
    assert "20 cells: 5 to run, 15 finished before" in retried.stdout
    assert "to run: model=n3: failed before: model: its builder fails: KeyError: 'planted'" in retried.stdout


def test_a_grid_of_which_a_cell_failed_before_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exit status is 1; its status said FINISHED."""
    monkeypatch.chdir(tmp_path)
    asked = experiment("torch")
    cell = Cell(0, {}, dict(asked.config), [], asked, on_cpu(asked))
    session = Session("grid", asked, {}, Console(file=io.StringIO()))
    decisions = [Decision(cell, "failed", "it broke"), Decision(cell, "done", "finished"), Decision(cell, "run", "new")]
    session.run(Listed([]), Workers, decisions, 1, lambda *_: None)
    (grid,) = runs(tmp_path)
    assert (status(grid).state, status(grid).error) == ("FAILED", "1 cell failed")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_grid_whose_disk_is_full_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended in a traceback, where a single run ends in one message."""
    monkeypatch.chdir(tmp_path)
    session = Session("grid", experiment("torch"), {}, Console(file=io.StringIO()))

    def keep(run: Run, _: Sequence[Outcome]) -> None:
        table = run.artifact("grid.csv")
        table.symlink_to("/dev/full")
        table.write_text("number,state\n")

    with pytest.raises(UserError, match=r"^output_dir: cannot write .*: No space left on device; "):
        session.run(Listed([]), Workers, [], 0, keep)
    (grid,) = runs(tmp_path)
    assert status(grid).state == "FAILED" and "No space left" in str(status(grid).error)


@pytest.mark.wide
def test_first_cells_that_fail_alike_end_the_sweep(tmp_path: Path) -> None:
    words = ("-m", "seed=range(8)", "training.batch_size=5000", "tracking=none", "dataset=digits")
    result = pipeline(tmp_path, *words)
    assert result.returncode == 1
    assert "gave up: the first 3 cells all failed alike (training.batch_size=5000: larger than" in result.stderr
    assert [row["state"] for row in table(grids(tmp_path)[0])] == ["failed"] * 3 + ["not run"] * 5
    assert len(trained(tmp_path)) == 3


@pytest.mark.parametrize(
    ("swept", "said"),
    [
        pytest.param(
            "model.freeze=[nothing*],[tokens]",
            "model.freeze=[nothing*]: matches no weight; this model has tokens.embeddings, ",
            marks=pytest.mark.wide,
            id="freeze",
        ),
        pytest.param(
            "model.adapters.rank=17,2",
            "model.adapters.rank=17: larger than blocks.0.attention.query, whose kernel is 16 x 16; choose 1 to 16",
            marks=pytest.mark.wide,
            id="rank",
        ),
        pytest.param(
            "dataset.tokens=bytes,characters",
            "it was trained with another vocabulary",
            marks=pytest.mark.wide,
            id="vocabulary",
        ),
    ],
)
def test_what_only_data_and_model_show_ends_its_cell_before_it_trains(tmp_path: Path, swept: str, said: str) -> None:
    (tmp_path / "mine.txt").write_text("A whale is no fish, and swims in the sea. " * 50)
    words = [*LANGUAGE, swept]
    if "freeze" not in swept:
        words.append(f"model.start={done(tmp_path, *LANGUAGE)}")
    if "rank" in swept:
        words.append("model.adapters.layers=[*.query]")
    result = pipeline(tmp_path, "-m", *words)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "Traceback" not in result.stderr and "1 done · 1 failed · 0 skipped" in result.stderr
    (grid,) = grids(tmp_path)
    first, other = table(grid)
    assert (first["state"], other["state"], other["reason"]) == ("failed", "done", "")
    assert said in first["reason"] and first["reason"] in result.stderr
    runs_of = {run.name: run for run in trained(tmp_path)}
    ended, trained_on = runs_of[first["run"]], runs_of[other["run"]]
    assert (status(ended).state, status(ended).error) == ("FAILED", first["reason"])
    losses = [[one for one in read_metrics(run) if "train/loss" in one.metrics] for run in (ended, trained_on)]
    assert [len(one) for one in losses] == [0, 2]
    assert (status(trained_on).state, status(grid).state) == ("FINISHED", "FAILED")


def test_a_vocabulary_that_no_text_can_have_is_refused_before_any_cell(tmp_path: Path) -> None:
    said = refused(tmp_path, "-m", *LANGUAGE, "dataset.tokens=bpe", "dataset.vocabulary=300,100")
    assert said.startswith("dataset.vocabulary=100: the 256 bytes are tokens already; give 257 or more (cell 2: ")


@pytest.mark.wide
def test_a_worker_killed_in_the_middle(tmp_path: Path) -> None:
    """kill -9 of the worker costs the cell that it ran; the same command again ends with every cell done once."""
    model, environ = held(tmp_path)
    words = ("-m", "seed=range(4)", *model)
    process = begin(tmp_path, *words, **environ)
    wait_until(lambda: len(trained(tmp_path)) == 2 and metrics_of(trained(tmp_path)[1]), process)
    (worker,) = [
        child for child in psutil.Process(process.pid).children() if "pipeline.sweep.worker" in child.cmdline()
    ]
    worker.kill()
    (tmp_path / "hold").unlink()
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1, err
    assert "its worker: killed by SIGKILL" in err
    states = [row["state"] for row in table(grids(tmp_path)[0])]
    assert states == ["done", "killed", "done", "done"]
    again = pipeline(tmp_path, *words, **environ)
    assert again.returncode == 0, again.stderr
    assert "4 cells: 1 to run, 3 finished before" in again.stderr
    finished = [read_config(run)["seed"] for run in trained(tmp_path) if status(run).state == "FINISHED"]
    assert sorted(finished) == [0, 1, 2, 3]


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.wide), signal.SIGKILL])
@pytest.mark.wide
def test_a_sweep_that_is_stopped_leaves_no_process_and_goes_on_later(number: signal.Signals, tmp_path: Path) -> None:
    model, environ = held(tmp_path)
    words = ("-m", "seed=range(3)", *model)
    process = begin(tmp_path, *words, **environ)
    wait_until(lambda: len(trained(tmp_path)) == 2 and metrics_of(trained(tmp_path)[1]), process)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    (tmp_path / "hold").unlink()
    process.communicate(timeout=600)
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=600)
    assert not alive
    again = pipeline(tmp_path, *words, **environ)
    assert again.returncode == 0, again.stderr
    assert "3 cells: 2 to run, 1 finished before" in again.stderr
    killed = [run for run in trained(tmp_path) if status(run).state == "KILLED"]
    assert len(killed) == (0 if number == signal.SIGINT else 1)  # SIGINT leaves a checkpoint: that run went on
    finished = [read_config(run)["seed"] for run in trained(tmp_path) if status(run).state == "FINISHED"]
    assert sorted(finished) == [0, 1, 2]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.wide)])
@pytest.mark.wide
def test_a_signal_to_every_process_at_once_loses_no_step(number: signal.Signals, tmp_path: Path) -> None:
    """Slurm signals all processes of a step, systemd all of a service. The worker's death killed its cell, and so did
    the grid's own signal, which was the cell's second one."""
    words = ("-m", "seed=0,1", "model=linear", "dataset=digits", "training.epochs=2000", "tracking=none")
    process = begin(tmp_path, *words)
    wait_until(lambda: trained(tmp_path) and metrics_of(trained(tmp_path)[0]), process)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for each in reversed(family):  # the cell before the grid, whose own signal is another
        each.send_signal(number)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    _, alive = psutil.wait_procs(family, timeout=600)
    assert not alive
    (run,) = trained(tmp_path)
    assert (status(run).state, status(run).error) == ("KILLED", f"stopped by {number.name}")
    assert newest_step(run)


def held(folder: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """Words and environment of a training that waits in its second cell while `folder`/hold exists, as it does now."""
    (folder / "hold").touch()
    (folder / "held.py").write_text(HELD)
    path = os.pathsep.join([str(folder), *_python_path()])
    # Files that the code named would be part of the code, and the code another one when they are gone or more.
    environ = {"HOLD": str(folder / "hold"), "RUNS": str(folder / "runs")}
    words = ("model=linear", "model._target_=held.Held", "dataset=digits", "training.epochs=40", "tracking=none")
    return words, {"PIPELINE_MODULES": "held", "PYTHONPATH": path, **environ}


def begin(folder: Path, *arguments: str, **changes: str) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environ = environment(**changes)
    return subprocess.Popen([*COMMAND, *arguments], cwd=folder, env=environ, start_new_session=True, **pipes)


def metrics_of(run: Path) -> bool:
    return len(list(read_metrics(run))) > 3


def wait_until(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.05)


def _python_path() -> list[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
