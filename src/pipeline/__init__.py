"""Declarative GPU machine-learning experiments: `python -m pipeline` runs them. Here Python opens what they saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.api import SavedRun


def open_run(run: str | Path = "latest", root: str | Path = "runs") -> SavedRun:
    """A saved run: its metrics, config, receipt and epochs, and what its model predicts (see pipeline.api.SavedRun).

    `run`: an id, the unique beginning of one, a folder, or `latest`, the newest below `root` that finished with a
    trained model. Raises pipeline.errors.UserError where it is not one run.
    """
    from pipeline import api

    return api.open_run(run, root)


def list_runs(root: str | Path = "runs", columns: tuple[str, ...] | list[str] = ()) -> list[dict[str, Any]]:
    """The runs below `root`, newest first, a dict each, as the CSV of stage=runs: `pandas.DataFrame(list_runs())`.

    `columns`: settings to have too, such as `["model", "seed"]`. What a run does not have, its dict lacks. Raises
    pipeline.errors.UserError for a folder that is not there and a column that no run has.
    """
    from pipeline import api

    return api.list_runs(root, columns)
