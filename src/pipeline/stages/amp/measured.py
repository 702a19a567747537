"""One run of the stage, read from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.machine.precision import FORMATS, bytes_per_number
from pipeline.runs import weights
from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_config, read_metrics
from pipeline.runs.result import Metric, metrics_of, training_rate
from pipeline.stages.rates import score_of

STEP = "artifacts/probe/step.json"


def is_probed(folder: Path) -> bool:
    """Whether a run's step was taken apart; where that failed, the run has a note."""
    return (folder / STEP).is_file()


@dataclass(frozen=True)
class Measured:
    """A finished run of one precision and one seed."""

    precision: str
    seed: int
    folder: Path
    metrics: dict[str, Metric]
    receipt: dict[str, Any]
    step: dict[str, Any]
    units_per_batch: int

    @classmethod
    def read(cls, folder: Path) -> Measured:
        """What the run in a folder has measured, read from its files."""
        config, receipt = read_config(folder), read_json(folder / "receipt.json")
        return cls(
            precision=config["precision"]["name"],
            seed=config["seed"],
            folder=folder,
            metrics=metrics_of(folder),
            receipt=receipt,
            step=read_json(folder / STEP),
            units_per_batch=config["training"]["batch_size"] * receipt["task"]["units"],
        )

    @property
    def effective(self) -> str:
        """The precision that `mixed` came to."""
        return str(self.receipt["precision"]["effective"])

    @property
    def cores_of_others(self) -> float | None:
        """The share of the cores that others had while it trained; None where nobody counted."""
        share: float | None = self.receipt.get("training_rate", {}).get("cores_of_others")
        return share

    @property
    def cores_of_others_beside_step(self) -> float | None:
        """The share while the step and bare products were measured; None on a GPU, whose rates are not theirs."""
        share: float | None = self.step.get("cores_of_others")
        return share if self.on_cpu else None

    def value(self, name: str) -> float:
        """The run's metric of that name."""
        return self.metrics[name].value

    @property
    def rate(self) -> Metric:
        """The rate of training, in its task's unit: "images/s"."""
        return training_rate(self.metrics)

    @property
    def score(self) -> Metric:
        """Of the test set: accuracy, where the task has that."""
        return score_of(self.receipt, self.metrics)

    @property
    def units_per_s(self) -> float:
        return self.rate.value

    @property
    def training_step_s(self) -> float:
        """A step as it was trained, its loader included."""
        return self.units_per_batch / self.units_per_s

    @property
    def on_cpu(self) -> bool:
        return bool(self.receipt["device"]["effective"] == "cpu")

    @property
    def loss_scale(self) -> dict[str, Any] | None:
        """Its history, where the loss was scaled: initial, final, skipped_steps, changes."""
        found: dict[str, Any] | None = self.receipt["precision"].get("loss_scale")
        return found

    @property
    def wall_s(self) -> float:
        """End to end: data, training, test, figures; without the step that is measured after them."""
        return float(self.receipt["wall_time_s"] - self.receipt.get("probe_s", 0.0))

    @property
    def peak_bytes(self) -> int:
        """Of the GPU where there is one, else of the process."""
        peak = self.receipt["peak_memory"]
        return int(peak.get("device_bytes", peak["process_bytes"]))

    @property
    def weight_bytes(self) -> int:
        return int(self.receipt["parameters"]) * bytes_per_number(FORMATS[self.effective].parameters)

    @property
    def products(self) -> str:
        """The dtypes in which the matrix products were seen."""
        return ", ".join(sorted(self.receipt["precision"]["observed"]["matrix_products"]))

    @cached_property
    def gradients(self) -> np.ndarray:
        """The gradients of the first step, joined to one vector (parameters,)."""
        return flat(weights.load(self.folder / "artifacts" / "probe" / "gradients.npz"))

    @cached_property
    def first_weights(self) -> np.ndarray:
        """The weights after the first step, as one vector (parameters,)."""
        return flat(weights.load(self.folder / "artifacts" / "probe" / "weights.npz"))

    @cached_property
    def last_weights(self) -> np.ndarray:
        return flat(weights.load(self.folder / "artifacts" / "model" / "weights.npz"))

    def losses(self) -> tuple[list[int], list[float]]:
        """Steps, and the training loss there."""
        found = [(r.step, r.metrics["train/loss"]) for r in read_metrics(self.folder) if "train/loss" in r.metrics]
        return [step for step, _ in found], [loss for _, loss in found]


def flat(arrays: weights.Weights) -> np.ndarray:
    """Every number of a set of weights, in float64."""
    return np.concatenate([array.astype(np.float64).ravel() for array in arrays.values()])
