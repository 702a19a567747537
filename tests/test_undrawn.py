"""Figures that cannot be drawn cost no result, whatever stage or sweep has measured it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command import environment, pipeline
from test_amp import SMALL
from test_graph import QUICK
from test_ladder import SHORT
from test_loading import QUICK as LOADS
from test_pinn import ODE

from pipeline.runs.json_files import read_json
from pipeline.runs.lookup import run_folders
from pipeline.runs.records import read_status

FAULT = "ValueError: no such font"
BROKEN = """
import runpy
from matplotlib.backends.backend_agg import FigureCanvasAgg

def fails(*_, **__):
    raise ValueError("no such font")

FigureCanvasAgg.print_png = fails
runpy.run_module("pipeline", run_name="__main__")
"""
DIGITS = ("dataset=digits", "model=linear", "training.epochs=1", "tracking=none")
WMMA = ("stage=wmma", "tracking=none", "stage.sizes=[64]", "stage.kernels=[numpy]")
GRAPH = (*QUICK, "stage.frameworks=[torch]")
LOADING = (*LOADS, "stage.frameworks=[torch]", "stage.sources=[memory]")
AMP = (*SMALL, "stage.precisions=[fp32,bf16]", "stage.repeats=1")
SEARCH = ("-m", "hydra/sweeper=optuna", "hydra.sweeper.trials=2", "optimizer=sgd,adam")


def undrawn(folder: Path, *words: str) -> tuple[int, str, Path]:
    """The status and stderr of a command that can save no figure, and the folder of its run, or of its sweep."""
    command = [sys.executable, "-c", BROKEN, *words]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    (run, *cells) = run_folders(folder / "runs")
    return done.returncode, done.stderr, next((one for one in (run, *cells) if (one / "cells").exists()), run)


@pytest.mark.parametrize(
    "words",
    [
        ("stage=matmul", "tracking=none", "stage.sizes=[16]", "stage.starts=2", "stage.frameworks=[torch]"),
        *(pytest.param(one, marks=pytest.mark.wide) for one in (ODE, GRAPH, LOADING, WMMA, AMP, SHORT)),
    ],
    ids=lambda words: next(word for word in words if word.startswith("stage=")),
)
@pytest.mark.wide
def test_a_fault_in_a_figure_costs_no_result(words: tuple[str, ...], tmp_path: Path) -> None:
    """It did but for trainings: an hour of measurements was FAILED, without a number."""
    code, stderr, run = undrawn(tmp_path, *words)
    status = read_status(run)
    assert code == 1, stderr
    assert status is not None and status.error is not None
    assert status.error.startswith(f"figures: not drawn: {FAULT}")
    assert read_json(run / "result.json")["scalars"]


@pytest.mark.parametrize("words", [("-m", "seed=0,1"), pytest.param(SEARCH, marks=pytest.mark.wide)])
@pytest.mark.wide
def test_a_fault_in_a_sweeps_figure_costs_no_table(words: tuple[str, ...], tmp_path: Path) -> None:
    _, stderr, sweep = undrawn(tmp_path, *words, *DIGITS)
    assert f"figure: not drawn: {FAULT}" in stderr
    result = read_json(sweep / "result.json")
    assert any(note.startswith(f"figure: not drawn: {FAULT}") for note in result["notes"])
    assert result["tables"]


@pytest.mark.wide
def test_figures_are_drawn_where_the_users_matplotlib_sets_all_text_by_tex(tmp_path: Path) -> None:
    """Without TeX nothing could be drawn; with it, no label with an underscore."""
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\n")
    done = pipeline(tmp_path, *DIGITS, MATPLOTLIBRC=str(tmp_path / "matplotlibrc"))
    assert done.returncode == 0, done.stderr
    (run,) = run_folders(tmp_path / "runs")
    assert (run / "artifacts/figures/training_curves.png").stat().st_size > 5_000
