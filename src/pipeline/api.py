"""Saved runs from Python: what `pipeline.open_run` and `pipeline.list_runs` give, by the code of the commands."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import UserError
from pipeline.runs.json_files import read_json
from pipeline.runs.listing import listed, of_folder
from pipeline.runs.lookup import find_run, reap_one
from pipeline.runs.records import EPOCH, read_config, read_metrics
from pipeline.runs.saved import saved_card
from pipeline.runs.start import CARD, SAVED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

    from pipeline.stages.predict_arrays import SavedModel


class SavedRun:
    """A run on disk. Each attribute reads its file when it is asked for: of a run that goes on, as it is then.

    `id`: its name; `folder`: where it lies. Each raises UserError where the folder is gone.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.id = folder, folder.name
        self._loaded: tuple[list[tuple[int, ...] | None], SavedModel] | None = None

    @property
    def state(self) -> str:
        """running, finished, failed, killed or pruned."""
        return of_folder(self._there()).status.state.lower()

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of result.json and of the last epoch by name; without a result the last ones of the journal."""
        return dict(of_folder(self._there()).metrics)

    @property
    def config(self) -> dict[str, Any]:
        """The resolved config, nested; empty where config.yaml is missing or damaged."""
        return read_config(self._there())

    @property
    def receipt(self) -> dict[str, Any]:
        """What really ran; empty until receipt.json is written."""
        return read_json(self._there() / "receipt.json")

    @property
    def epochs(self) -> list[dict[str, float]]:
        """The metrics of each epoch, with its last `step` and the `time` (s since 1970): rows for pandas.DataFrame.

        Of a training without epochs every record of its journal.
        """
        rows = [{"step": one.step, "time": one.time, **one.metrics} for one in read_metrics(self._there())]
        return [row for row in rows if EPOCH in row] or rows

    @property
    def classes(self) -> list[str] | None:
        """What the columns of a classifier's probabilities are; None of another model."""
        found = saved_card(self._there()).get("classes")
        return [str(name) for name in found] if isinstance(found, list) else None

    def predict(self, x: ArrayLike, *, logits: bool = False) -> np.ndarray:
        """What the saved model makes of raw examples, in float64, as stage=predict computes it.

        x, by what the model was trained on:

        - images (N, H, W, C), or (N, H, W) of one channel: integers as its data have them (bytes: 0 to 255), or real
          numbers from 0 to 1; of data without a scale, which entered as they were, real numbers as those;
        - rows (N, width), or a DataFrame, whose columns are found by name: as its data have them;
        - tokens (N, T): integers below the vocabulary, T the length that it was trained with;
        - points (N, d) in the domain of a run of stage=pinn.

        Returns class probabilities (N, classes), in the order of `classes`, or with `logits` the outputs that they are
        a softmax of; a regression's numbers (N, outputs); of tokens the logits (N, T, vocabulary); at points the
        solution (N, functions). Images and rows of numbers are scaled and normalised as in the training.

        The first call loads the model, after the hash of the weights was compared with the receipt; what could not be
        verified is a warning. A later one loads it again where its files have changed since. The settings of this
        process (dtypes, threads, generators, variables) are as before afterwards. Raises UserError for a run without a
        model, other weights, and examples that it does not take, and RunError for outputs that are not finite.
        """
        return self._model().predict(x, logits=logits)

    def _model(self) -> SavedModel:
        """The model, loaded again where the run's files of it are no longer those that it was loaded from."""
        from pipeline.stages.predict_arrays import saved_model

        files = [_version(self._there() / name) for name in (SAVED, CARD)]
        if self._loaded is None or self._loaded[0] != files:
            self._loaded = None
            model = saved_model(self.folder)
            self._loaded = (files, model)
            for note in model.notes:
                warnings.warn(note, stacklevel=3)  # of the line that calls predict
        return self._loaded[1]

    def _there(self) -> Path:
        """The folder. Raises UserError where somebody has deleted or moved it."""
        if not self.folder.is_dir():
            raise UserError(f"run={self.id}: {self.folder} is gone; it was deleted or moved after open_run")
        return self.folder

    def __repr__(self) -> str:
        if not self.folder.is_dir():
            return f"<SavedRun {self.id}: gone>"
        run = of_folder(self.folder)
        judged = f", {run.headline} {run.metrics[run.headline]:.4g}" if run.headline else ""
        return f"<SavedRun {self.id}: {run.status.state.lower()}{judged}>"


def open_run(run: str | Path, root: str | Path) -> SavedRun:
    """See pipeline.open_run. One whose process is gone is marked KILLED. Raises UserError."""
    reference = str(run)
    folder = find_run(Path(root), reference, holding=SAVED if reference == "latest" else "status.json")
    reap_one(folder)
    of_folder(folder)
    return SavedRun(folder)


def list_runs(root: str | Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """See pipeline.list_runs. Raises UserError."""
    from pipeline.runs.conditions import check_known
    from pipeline.stages.about_runs.runs import as_row, existing, heads_of

    if isinstance(columns, str):
        raise UserError(f"columns={columns}: needs a list of names, as columns=[{columns!r}]")
    every = listed(existing(str(root)))
    for key in columns:
        check_known(f"columns={key}", key, every)
    heads = heads_of(every, columns)
    return [{name: value for name, value in as_row(run, heads, columns).items() if value is not None} for run in every]


def _version(file: Path) -> tuple[int, ...] | None:
    """What differs where a file was written or replaced; None of one that is not there."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
