"""What Hyperband saves: the recipe keras_search with it and without, the same sampler and seed, to the same number of
trials. A round counts only where the best accuracies agree: pruning that loses the best trial saves nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.measure import Side, agree, alternate, at_most, figure_rows, ratios, row
from pipeline.runs.lookup import run_folders
from pipeline.runs.records import read_metrics
from pipeline.runs.result import metrics_of

ROUNDS = 3
AGREEMENT = 0.01  # of the best validation accuracies, on 5,000 images: two standard deviations of one of them


def run() -> list[dict[str, object]]:
    """Rows of the table."""
    pruned = Side("keras_search, Hyperband", lambda: search("hyperband"))
    whole = Side("keras_search, no pruning", lambda: search("none"))
    alternate([pruned, whole], ROUNDS)
    agree([pruned, whole], "best_accuracy", AGREEMENT)
    return [
        *figure_rows([pruned, whole], "seconds", "s"),
        *figure_rows([pruned, whole], "epochs", "epochs trained"),
        *figure_rows([pruned, whole], "best_accuracy", "best validation accuracy"),
        at_most(row("Hyperband / no pruning, epochs", ratios(pruned, whole, "epochs"), "x"), 1.0),
        row("Hyperband / no pruning, time", ratios(pruned, whole, "seconds"), "x"),
    ]


def search(pruner: str) -> dict[str, float]:
    """Seconds of the search, epochs that its trials trained, and the best accuracy that it found."""

    with tempfile.TemporaryDirectory() as folder:
        words = ["experiment=keras_search", f"hydra.sweeper.pruner={pruner}", "tracking=none"]
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", "-m", *words], cwd=folder, capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - started
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        runs = run_folders(Path(folder) / "runs")
        (own,) = [found for found in runs if (found / "cells").exists()]
        epochs = sum(
            "epoch/number" in record.metrics for found in runs if found != own for record in read_metrics(found)
        )
        best = metrics_of(own)["best/validation/accuracy"].value
        return {"seconds": seconds, "epochs": float(epochs), "best_accuracy": best}
