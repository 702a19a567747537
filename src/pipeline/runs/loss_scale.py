"""The loss scale of a training in mixed float16: how it went, read off its value after each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.runs.result import Metric, count


@dataclass
class LossScale:
    """Where the scale began, where it stands, its changes as (step, new scale), and how many steps were skipped.

    A step whose gradients overflow is skipped and lowers the scale; nothing else lowers it.
    """

    initial: float
    final: float = field(init=False)
    skipped_steps: int = 0
    changes: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.initial = self.final = float(np.float32(self.initial))  # as the frameworks keep it

    def take(self, scales: np.ndarray, step: int) -> list[tuple[int, float]]:
        """The scale after each of the steps (k,) that follow `step`. Returns the changes among them.

        None follow where a block of batches ends before the gradients of a step are complete.
        """
        if not len(scales):
            return []
        before = np.concatenate([[self.final], scales[:-1]])
        self.skipped_steps += int((scales < before).sum())
        changes = [(step + int(place) + 1, float(scales[place])) for place in np.flatnonzero(scales != before)]
        self.changes += changes
        self.final = float(scales[-1])
        return changes

    def plain(self) -> dict[str, Any]:
        """As plain data, for the receipt."""
        return {
            "initial": self.initial,
            "final": self.final,
            "skipped_steps": self.skipped_steps,
            "changes": [{"step": step, "scale": scale} for step, scale in self.changes],
        }

    def metrics(self) -> tuple[Metric, ...]:
        """The last scale and the number of skipped steps, as metrics of a result."""
        return Metric("loss_scale/final", self.final), count("loss_scale/skipped_steps", self.skipped_steps)
