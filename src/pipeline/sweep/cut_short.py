"""A grid that was stopped after its last cell, before it had written all that came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.runs.lookup import began
from pipeline.runs.records import read_config, read_status
from pipeline.sweep.cell import run_of
from pipeline.sweep.plan import Decision


def cut_short(root: Path, grid: Mapping[str, str], decisions: Sequence[Decision]) -> Path | None:
    """The newest grid of these swept values that ran one of the cells decided on, if it was killed and none of these
    values has ended since.
    """
    ours = {decision.run.name for decision in decisions if decision.run is not None}
    grids = [(status, folder) for folder in _folders(root) if (status := read_status(folder)) is not None]
    alike = [(status, folder) for status, folder in grids if read_config(folder).get("grid") == grid]
    for status, folder in sorted(alike, key=lambda one: began(one[1], one[0]), reverse=True):
        if status.state != "KILLED":
            return None
        if ours & {run.name for note in folder.glob("cells/*.run") if (run := run_of(note)) is not None}:
            return folder
    return None


def _folders(root: Path) -> set[Path]:
    """Of grids. One that only wrote what another had left has no folder of cells, one that was killed has no table."""
    return {path.parent for path in root.glob("*/cells")} | {
        path.parents[1] for path in root.glob("*/artifacts/grid.csv")
    }
