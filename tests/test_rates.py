"""The rate of a training is of its warm periods: not of the first one of each process."""

from __future__ import annotations

import io
import json
from pathlib import Path

import in_backend
import numpy as np
import pytest
from rich.console import Console

from pipeline.backends.shared.progress import Watch
from pipeline.loaders.batch_plan import Block, Plan
from pipeline.runs.checkpoint import Checkpoint
from pipeline.runs.fit import Epoch
from pipeline.runs.journal import Journal
from pipeline.runs.run import Run
from pipeline.stages.rates import left_out, steady, timings
from pipeline.stages.training_table import overhead_row
from pipeline.tasks.classification import Classification

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


def test_a_single_epoch_is_cold_and_counted() -> None:
    epochs = (Epoch(1, 1.0, 5, 8, 0.5, cold=True),)
    assert steady(epochs) == epochs
    assert left_out(epochs) == "one epoch, cold start included"


def test_a_checkpoint_that_does_not_say_which_epochs_were_cold_had_the_first_one_cold(tmp_path: Path) -> None:
    """Of an older version, with training.checkpoint.strict=false."""
    before = watched(tmp_path, (2, 0))
    kept = json.loads(json.dumps(before.keeper.progress() | {"marks": {}, "seconds": 0.0}))
    for epoch in kept["epochs"]:
        del epoch["cold"]
    run = Run(Journal.begin(tmp_path, "again", {}), Console(file=io.StringIO()), Checkpoint(tmp_path, 1, kept))
    watch = Watch(in_backend.experiment("torch"), run, before.task, before.plan)
    assert [epoch.cold for epoch in watch.epochs] == [True, False, False, False, False]


def test_a_window_with_the_first_step_has_no_overhead() -> None:
    """On JAX its compilation counted: +1607490 %."""
    profile = {"profiler": "memory", "steps": [1, 2], "step_s": 0.9, "step_after_s": 0.4, "steps_after": 5}
    ((_, text),) = overhead_row({**profile, "overhead": None, "cold": True})
    assert text.endswith("overhead not measured: the first step, which starts cold, is among them")


@pytest.mark.parametrize(("overhead", "said"), [(0.25, "(overhead +25%)"), (-0.41, "(no overhead beyond their noise)")])
def test_a_profiler_makes_no_step_faster(overhead: float, said: str) -> None:
    profile = {"profiler": "memory", "steps": [21, 25], "step_s": 0.5, "step_after_s": 0.4, "steps_after": 5}
    ((_, text),) = overhead_row({**profile, "overhead": overhead})
    assert text.endswith(said)
