"""Keys on which no result depends, swept: whose value a run has."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import DIGITS, done, pipeline, write_files
from in_backend import experiment, on_cpu

from pipeline.runs.journal import Journal
from pipeline.runs.json_files import write_json
from pipeline.runs.swept import has, told_apart_by
from pipeline.sweep.plan import Cell
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
    said = "the code was edited meanwhile: seed=1 ran other code than the plan's"
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
