"""What a saved run makes of arrays in memory: stage=predict for Python (pipeline.api), in the user's own process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.contracts.physics import Problem
from pipeline.errors import UserError, cut
from pipeline.experiment import load
from pipeline.machine.users_process import settings_kept
from pipeline.metrics import classification
from pipeline.models import Shapes
from pipeline.pinn import at_points, solution
from pipeline.ready import ready
from pipeline.runs import weights
from pipeline.runs.records import read_config
from pipeline.runs.saved import card_sha256, check_hashes, check_outputs, saved_card, saved_weights
from pipeline.runs.start import source_of
from pipeline.stages.measuring import input_dtype, said_of_margins
from pipeline.stages.predict_images import HALF_A_STEP
from pipeline.stages.predict_images import inputs_of as inputs_of_images
from pipeline.stages.predict_rows import inputs_of
from pipeline.tasks import beyond_vocabulary

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

BYTE = 255  # what integers are divided by where the data, real numbers from 0 to 1, have no scale
# Of the stages that start from a saved run this one takes models of every task. It is not run.
STAGE = {"_target_": "pipeline.stages.evaluate.Evaluate"}
OFF = {"_target_": "pipeline.profilers.none.Off"}


class SavedModel(ABC):
    """A saved run's model in this process. `notes`: what of it could not be verified."""

    notes: tuple[str, ...]

    @abstractmethod
    def predict(self, x: Any, *, logits: bool) -> np.ndarray:
        """See pipeline.api.SavedRun. Raises UserError, RunError."""


def saved_model(folder: Path) -> SavedModel:
    """The model of the run in `folder`. Raises UserError where it has none, or its weights are others now."""
    config = read_config(folder)
    source_of({"run": str(folder), "output_dir": str(folder.parent)})
    if not config:
        raise UserError(f"run={folder.name}: config.yaml is missing or damaged")
    with settings_kept():
        experiment = load(config)
        return Solved(experiment, folder) if isinstance(experiment.dataset, Problem) else Network(config, folder)


class Network(SavedModel):
    """A network that was trained on examples, on its run's backend, device and precision."""

    def __init__(self, config: Mapping[str, Any], folder: Path) -> None:
        self.folder, self.card = folder, saved_card(folder)
        if not {"task", "x", "outputs"} <= self.card.keys():
            raise UserError(f"run={folder.name}: artifacts/model/card.json is missing or damaged")
        asked = {**config, "stage": STAGE, "run": str(folder), "profiler": OFF}
        self.experiment, self.resolved = ready(asked, ())
        saved, card = saved_weights(folder), self.card
        self.notes = check_hashes(folder, {"weights": weights.digest(saved), "card": card_sha256(card)})
        if "classes" in card:
            self.notes += said_of_margins(self.experiment.loss, ["probabilities"])
        shapes = Shapes(tuple(card["x"]), tuple(card["outputs"]), card.get("vocabulary"))
        self.predictor = self.experiment.backend.load().predictor(self.experiment, shapes, saved, self.resolved)

    def predict(self, x: Any, *, logits: bool) -> np.ndarray:
        instead = f"; stage=generate run={self.folder.name} goes on with a text" if "tokens" in self.card else ""
        examples = self._checked(as_array(x, self.card.get("columns", ()), instead))
        size = self.experiment.training.evaluation_batch_size
        firsts = range(0, len(examples), size)
        with settings_kept():
            batches = [self.predictor(self._inputs(examples[first : first + size], first)) for first in firsts]
        outputs = np.concatenate(batches)
        check_outputs(outputs, "example {}", 0, self.folder, self.resolved.precision)
        return classification.probabilities(outputs) if "classes" in self.card and not logits else outputs

    def _checked(self, x: np.ndarray) -> np.ndarray:
        """Examples (N, *shape) that the model takes, as the user has them. Raises UserError."""
        shape = tuple(self.card["x"])
        if x.ndim == len(shape) and shape[-1] == 1 and x.shape[1:] == shape[:-1]:
            x = x[..., None]
        if x.shape[1:] == shape and not len(x):
            raise UserError(f"x: shape {x.shape}: no examples")
        if x.shape[1:] != shape:
            wanted = ", ".join(map(str, ("N", *shape)))
            one = "; x[None] makes a batch of the one example" if x.shape in (shape, shape[:-1]) else ""
            raise UserError(f"x: shape {x.shape}; run={self.folder.name} takes ({wanted}){one}")
        if not (finite := np.isfinite(x).reshape(len(x), -1).all(axis=1)).all():
            raise UserError(f"x: example {int(np.argmin(finite))} holds numbers that are not finite")
        if (vocabulary := self.card.get("vocabulary")) is not None:
            if x.dtype.kind not in "iu":
                raise UserError(f"x: {x.dtype}; run={self.folder.name} takes tokens, which are integers")
            if said := beyond_vocabulary(x, vocabulary):
                raise UserError(f"x: {said}")
        elif len(shape) == 3:
            self._check_pixels(x)
        return x

    def _check_pixels(self, x: np.ndarray) -> None:
        """Refuse images of another range than the model knows: they would be taken, and mean nothing."""
        low, high = map(float, self.card.get("range", (0, 1)))
        inside, integers = low >= -HALF_A_STEP and high <= 1 + HALF_A_STEP, x.dtype.kind in "iu"
        if not inside:
            if integers:
                raise UserError(
                    f"x: {x.dtype}; its run's data were numbers from {low:g} to {high:g} without a scale, and bytes "
                    "would be others: where x is as they were, give x.astype(float)"
                )
            return
        least, most, scale = float(x.min()), float(x.max()), self._scale
        if integers and not (least >= 0 and most <= scale):
            raise UserError(f"x: integers from {least:g} to {most:g}; its run's data have 0 to {scale:g}")
        if integers and most == 1 and not self.card.get("scale"):  # bytes that are nearly black, or integers like those
            raise UserError(
                f"x: {x.dtype} of 0 and 1; its run's data were numbers from {low:g} to {high:g} without a scale, and "
                f"bytes are divided by {BYTE}: give x.astype(float), or bytes as x / {BYTE}"
            )
        if x.dtype.kind == "f" and not (least >= -HALF_A_STEP and most <= 1 + HALF_A_STEP):
            raise UserError(
                f"x: real numbers from {least:g} to {most:g}; images of real numbers lie in 0 to 1, and integers are "
                f"taken from 0 to {scale:g}"
            )

    @property
    def _scale(self) -> float:
        return float(self.card.get("scale") or BYTE)

    def _inputs(self, x: np.ndarray, first: int) -> np.ndarray:
        """A batch as the model takes it. Raises UserError for numbers that its dtype does not hold."""
        if "vocabulary" in self.card:
            return x.astype(np.int32)
        dtype = input_dtype(self.resolved)
        with np.errstate(over="ignore", invalid="ignore"):
            if len(self.card["x"]) == 3:
                found = inputs_of_images(self.card, x / np.float64(self._scale) if x.dtype.kind in "iu" else x, dtype)
            else:
                found = inputs_of({"scale": None, **self.card}, x, dtype)
        wrong = ~np.isfinite(found.reshape(len(found), -1)).all(axis=1)
        if wrong.any():
            number = first + int(np.argmax(wrong))
            raise UserError(f"x: example {number} holds numbers that {dtype} cannot hold")
        return found


class Solved(SavedModel):
    """A problem's solution, which is computed in NumPy."""

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        source = folder / "artifacts" / "model" / "weights.npz"
        self.problem, self.folder, self.fitted = experiment.problem, folder, solution.load(source)
        self.notes = check_hashes(folder, {"weights": weights.digest(weights.load(source))})

    def predict(self, x: Any, *, logits: bool) -> np.ndarray:
        names = self.problem.domain.names
        points = as_array(x, names).astype(np.float64)
        points = points[:, None] if points.ndim == len(names) == 1 else points
        if points.ndim != 2 or points.shape[1] != len(names) or not len(points):
            raise UserError(f"x: shape {points.shape}; each row is a point ({', '.join(names)})")
        at_points.check_inside(points, self.problem, "x")
        return at_points.solved(self.fitted, self.problem, points, self.folder)


def as_array(x: Any, columns: tuple[str, ...] | list[str], instead: str = "") -> np.ndarray:
    """What the user gives, as an array of numbers; of a table with names the columns of the model, in its order.

    `instead`: what else can be done where it is of words. Raises UserError.
    """
    if columns and hasattr(x, "columns"):
        lacks = [name for name in columns if name not in x.columns]
        if lacks:
            raise UserError(
                f"x: has no column {cut(', '.join(lacks), 300)}; its run takes {cut(', '.join(columns), 300)}"
            )
        x = x[list(columns)]
    try:
        found = np.asarray(x)
    except Exception as error:  # whatever another library's tensor raises, as one on a GPU or with gradients
        raise UserError(f"x: cannot be made a NumPy array: {error}") from error
    if found.dtype.kind not in "iuf":
        of_words = [name for name in columns if hasattr(x, "columns") and np.asarray(x[name]).dtype.kind not in "iuf"]
        where = f"x: column {of_words[0]}" if of_words else "x"
        raise UserError(f"{where}: {found.dtype}; give an array of numbers{instead}")
    return found
