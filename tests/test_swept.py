"""Keys on which no result depends, swept: whose value a run has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command import DIGITS, done, pipeline, write_files
from in_backend import experiment, on_cpu

from pipeline.runs.journal import Journal
from pipeline.runs.json_files import write_json
from pipeline.runs.receipt import before
from pipeline.runs.records import State
from pipeline.runs.result import Metric, Result
from pipeline.runs.swept import has, told_apart_by
from pipeline.sweep.history import History
from pipeline.sweep.plan import Cell, decide_one
from pipeline.sweep.schedule import Outcome
from pipeline.sweep.session import edited_meanwhile

EVERY = "training.checkpoint.every"


def test_a_run_is_of_a_cell_with_its_values(tmp_path: Path) -> None:
    """A killed run of every=1 was gone on with for the cell of every=null, and both cells had its rate."""
    asked = experiment("torch")
    assert told_apart_by(asked, ()) == {}
    assert (
        told_apart_by(asked, ("optimizer.learning_rate", "model", "+seed", "no.such")) == {}
    )  # in the hash, or nowhere
    wanted = told_apart_by(asked, (EVERY, "optimizer"))
    assert wanted == {EVERY: None}
    run = Journal.begin(tmp_path, "cell", asked.config).folder
    assert has(run, wanted) and has(run, {}) and not has(run, {EVERY: 1})
    assert has(run, {"training.checkpoint.of_today": None})  # of a run from before the key
    assert not has(tmp_path / "none", wanted)


def test_a_cell_that_ran_an_edit_is_found(tmp_path: Path) -> None:
    asked = experiment("torch")
    cell = Cell(3, {"seed": "1"}, dict(asked.config), [], asked, on_cpu(asked))
    write_files(tmp_path, {"run/code.json": "{}"})
    write_json(tmp_path / "run" / "receipt.json", {"code_sha256": "new"})
    ran = Outcome(cell, "FINISHED", "", 1.0, tmp_path / "run")
    said = "the code was edited while the cells ran: seed=1 ran other code than was planned"
    assert edited_meanwhile([ran], {3: "old"}) == said and edited_meanwhile([ran], {3: "new"}) is None
    assert edited_meanwhile([ran], {}) is None  # it had run before


@pytest.mark.wide
def test_a_grid_or_a_search_says_which_run_latest_is(tmp_path: Path) -> None:
    """The same command again began from the weights of one of its own cells, without a word."""
    start = done(tmp_path, *DIGITS, "model=linear", "training.steps=2")
    words = ("-m", *DIGITS, "model=linear", "training.steps=2", "tracking=none")
    search = ("hydra/sweeper=optuna", "hydra.sweeper.trials=2", "optimizer=adam,sgd")
    for more in (("seed=1,2",), search):
        result = pipeline(tmp_path, *words, "model.start=latest", *more)
        assert result.returncode == 0, result.stderr
        assert result.stderr.splitlines()[0] == f"latest is {start.name}"
        start = max((tmp_path / "runs").glob("*-linear-*"))
    named = pipeline(tmp_path, *words, f"model.start={start.name}", "seed=1,2", "sweep.dry_run=true")
    assert named.stdout.splitlines()[0] == "2 cells: 2 to run"


def past(root: Path, state: State, *, result: bool = False, **receipt: Any) -> str:
    """A run of the cell in `decided`, and how its receipt differs from one of now. Returns its id."""
    asked = experiment("torch")
    journal = Journal.begin(root, "past", dict(asked.config))
    journal.write_receipt(before(asked, on_cpu(asked)) | receipt)
    if result:
        journal.write_result(Result((Metric("test/loss", 0.5, direction="min"),)))
    if state != "RUNNING":
        journal.finish(state, "it broke" if state == "FAILED" else None)
    return journal.id


def decided(root: Path, retry: str = "killed") -> tuple[str, str]:
    asked = experiment("torch")
    found = decide_one(Cell(0, {}, dict(asked.config), [], asked, on_cpu(asked)), retry, History(root))
    return found.verdict, found.reason


@pytest.mark.parametrize(
    ("state", "result", "verdict", "reason"),
    [
        ("FINISHED", True, "done", "finished as {run}"),
        ("FINISHED", False, "run", "{run} has lost its result.json"),
        ("PRUNED", True, "run", "{run} was cut short by a search"),
        ("KILLED", False, "run", "{run} was killed before its end; it has no checkpoint, so it starts over"),
        ("FAILED", False, "failed", "it broke; sweep.retry=failed runs it again"),
        ("RUNNING", False, "elsewhere", "{run}, process "),
    ],
)
def test_a_run_of_before_decides_by_its_end_unless_something_has_changed(
    tmp_path: Path, state: State, result: bool, verdict: str, reason: str
) -> None:
    assert decided(tmp_path) == ("run", "new")
    run = past(tmp_path, state, result=result)
    found = decided(tmp_path)
    assert found[0] == verdict and found[1].startswith(reason.format(run=run))
    assert decided(tmp_path, "all") == ("run", "sweep.retry=all")
    changed = past(tmp_path / "changed", state, result=result, code_sha256="of before")
    assert decided(tmp_path / "changed") == ("run", f"changed since {changed}: the code")


def test_the_nearest_run_of_before_says_why_a_cell_runs_again(tmp_path: Path) -> None:
    """Of those that differ in as much a finished one; and one that failed alike runs again where that is asked for."""
    finished = past(tmp_path, "FINISHED", result=True, code_sha256="of before")
    past(tmp_path, "KILLED", code_sha256="of before that")
    past(tmp_path, "FINISHED", result=True, code_sha256="of before", profiler="another")
    assert decided(tmp_path) == ("run", f"changed since {finished}: the code")
    past(tmp_path, "FAILED")
    assert decided(tmp_path, "failed") == ("run", "failed before: it broke")


@pytest.mark.parametrize(
    ("receipt", "said"),
    [
        ({"imported_beside": {"no_such_module": {"sha256": "of before"}}}, "no_such_module"),
        ({"profiler": {"_target_": "pipeline.profilers.torch.Torch"}}, "the profiler"),
        ({"resumed": [{"differences": []}, {"differences": ["code"]}]}, "half of it was trained elsewhere"),
        ({"versions": {"numpy": "1.0"}}, "numpy 1.0 -> "),
        ({"environment": {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}}, "ONEDNN_DEFAULT_FPMATH_MODE BF16 -> unset"),
        ({"device": {"hardware": {"name": "another CPU"}}}, "the device (another CPU -> "),
        ({"data_sha256": "of before"}, "the data"),
    ],
)
def test_what_has_changed_since_a_cell_finished_is_named(tmp_path: Path, receipt: dict[str, Any], said: str) -> None:
    run = past(tmp_path, "FINISHED", result=True, **receipt)
    verdict, reason = decided(tmp_path)
    assert verdict == "run" and said in reason.removeprefix(f"changed since {run}: ")
