"""Sweeps: 16 one-epoch cells (digits, linear) as one grid against 16 separate commands, and 1,000 cells that are done.

The results must be the same to the bit. A cell's overhead is the time from the end of the cell before to its own end,
without the time that its run lay open: the fork, the checks, the folder, and the sweep's own bookkeeping.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.measure import Side, alternate, at_most, figure_rows, ratios, row, wall
from pipeline import experiment as experiments
from pipeline.runs.json_files import read_json
from pipeline.runs.lookup import run_folders
from pipeline.runs.records import read_config, read_status

ROUNDS = 3
CELLS = 16
MANY = 1000
COMMAND = [sys.executable, "-m", "pipeline"]
WORDS = ["dataset=digits", "model=linear", "training.epochs=1"]


def run() -> list[dict[str, object]]:
    """Rows of the table."""
    grid = Side(f"{CELLS} cells as one grid", as_grid)
    single = Side(f"{CELLS} separate commands", separately)
    alternate([grid, single], ROUNDS)
    if {side["weights"] for side in [*grid.seen, *single.seen]} != {grid.seen[0]["weights"]}:
        raise SystemExit("the weights of the grid's cells are not those of the separate commands")
    overhead = row("overhead of a cell after the first", grid.values("overhead_s"), "s")
    share = row("grid / separate commands", ratios(grid, single, "seconds"), "x")
    return [
        *figure_rows([grid, single], "seconds", "s"),
        at_most(share, 0.25),
        at_most(overhead, 0.3),
        at_most(row(f"a grid of {MANY} cells, all done", all_done(), "s"), 5.0),
    ]


def as_grid() -> dict[str, float]:
    """Seconds of the grid; the median overhead of its cells; a number that stands for all their weights."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = timed([*COMMAND, "-m", *WORDS, f"seed=range({CELLS})"], folder)
        found = [status for run in cells(folder) if (status := read_status(run)) is not None]
        ends = [status.ended or 0.0 for status in found]
        open_for = [(status.ended or 0.0) - status.started for status in found]
        overheads = [b - a - own for a, b, own in zip(ends, ends[1:], open_for[1:], strict=False)]
        return {"seconds": seconds, "overhead_s": statistics.median(overheads), "weights": fingerprint(folder)}


def separately() -> dict[str, float]:
    """Seconds of the commands, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = sum(timed([*COMMAND, *WORDS, f"seed={seed}"], folder) for seed in range(CELLS))
        return {"seconds": seconds, "weights": fingerprint(folder)}


def all_done() -> list[float]:
    """Seconds in which a grid says that it has nothing to do, its runs being copies of one under other seeds."""
    with tempfile.TemporaryDirectory() as folder:
        timed([*COMMAND, *WORDS, "tracking=none", "seed=0"], folder)
        (model,) = cells(folder)
        config, receipt = read_config(model), read_json(model / "receipt.json")
        for seed in range(1, MANY):
            copied = model.with_name(f"{model.name[:-4]}{seed:04d}")
            shutil.copytree(model, copied, ignore=shutil.ignore_patterns("artifacts"))
            changed = experiments.load({**config, "seed": seed})
            (copied / "receipt.json").write_text(json.dumps({**receipt, "config_sha256": changed.config_sha256()}))
        command = [*COMMAND, "-m", *WORDS, "tracking=none", f"seed=range({MANY})"]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        if f"{MANY} finished before" not in result.stderr:
            raise SystemExit(result.stderr[-2000:])
        return [timed(command, folder) for _ in range(5)]


def timed(command: list[str], folder: str) -> float:
    """Seconds of one command, which must succeed."""
    return wall(command, folder=folder)["seconds"]


def cells(folder: str) -> list[Path]:
    """The runs that trained something."""
    return [run for run in run_folders(Path(folder) / "runs") if not (run / "cells").exists()]


def fingerprint(folder: str) -> float:
    """One number for the weights of every seed."""
    hashes = {read_config(run)["seed"]: read_json(run / "receipt.json")["weights_sha256"] for run in cells(folder)}
    return float(int("".join(hashes[seed] for seed in sorted(hashes)), 16) % 1_000_003)
